"""``attendre trace``: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendre_core import progress
from attendre_core.cli import build_parser, main
from attendre_core.evaluation import load_tiny
from attendre_core.presets import CONTROL_PRESETS, PRESETS, TIER_PRESETS, preset
from attendre_core.zoo.model import Model

#: One policy on one layer is enough for most tests.
FEW = ("--policies", "MT", "--layer", "0")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let files be written where they are thrown away, and spare the time to draw pictures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    return tmp_path


def trace(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["trace", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refused(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code: Any = main(["trace", *arguments])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_without_arguments(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.figure")
    pytest.importorskip("matplotlib")
    text = trace(capsys=capsys)
    assert "\nall memories: +k=16+chunk=16:32\n" in text
    for name in ("MT+wait=16", "AS+wait=16", "LRA-sum+c=0+wait=16"):
        told = rf"\n{re.escape(name)}  \u2717 wrong: .*\n  holds 32 of 256 tokens \(M = 32\), "
        assert re.search(told, text), name
    room = re.escape("holds 48 of 256 tokens (M + S = 32 + 16), ")
    assert re.search(rf"\nattendre  \u2713 right: library 100 %\n  {room}", text)
    assert "\nfull  \u2713 right: library 100 %\n  holds all 256 tokens\n" in text
    assert "step 16" in text
    assert "library is found with LFA-1e-3+c=0+wait=16, attendre, full; not with MT" in text
    assert max(map(len, text.splitlines())) <= 110
    assert "attendre-trace/trace.html" in text
    assert (elsewhere / "attendre-trace/trace.html").read_text().startswith("<!doctype html>")
    assert (elsewhere / "attendre-trace/trace.png").read_bytes().startswith(b"\x89PNG")


def test_json_says_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(
        trace("--json", "--policies", "mt,MT+pin=0-10", "--out", "a/b", capsys=capsys)
    )
    assert answer["page"] == str(Path("a/b/trace.html"))
    assert len(answer["words"]) == 256
    first, second = answer["policies"]
    assert first["name"] == "MT+k=16+chunk=16:32"
    assert second["name"] == "MT+pin=0-10+k=16+chunk=16:32"
    assert (first["kv_size"], first["q_size"], first["steps"]) == (32, 0, 16)
    for layer in first["layers"]:
        assert layer["survivors"] == list(range(224, 256))
        assert layer["born"] == [p // 16 for p in range(256)]
        assert layer["gone"] == [p // 16 + 2 if p < 224 else None for p in range(256)]
        assert layer["reason"] == ["oldest"] * 224 + ["none"] * 32
        assert sum(layer["attended"]["weight"]) == pytest.approx(1, abs=1e-4)
    assert second["layers"][0]["survivors"][:10] == list(range(10))
    data = re.search(r'id="data">(.*?)</script>', Path(answer["page"]).read_text(), re.S)
    assert data is not None
    assert json.loads(data[1])["words"] == answer["words"]


def test_without_matplotlib_there_is_a_page(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    text = trace(*FEW, capsys=capsys)
    assert "No picture: the package matplotlib is not installed" in text
    assert "pip install 'attendre-core[eval]'" in text
    assert (elsewhere / "attendre-trace/trace.html").exists()
    assert not (elsewhere / "attendre-trace/trace.png").exists()
    assert json.loads(trace(*FEW, "--json", capsys=capsys))["picture"] is None


def test_the_other_model_task_and_document(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", "encoder-decoder", "--task", "past-only", "--seed", "3")
    text = trace(*options, "--policies", "H2O", capsys=capsys)
    assert text.startswith("encoder-decoder reads a past-only document of 256 tokens")
    assert re.search(r"\nH2O  \S (right|wrong): value", text)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model of one byte a token behind the name ``own``."""

    class Bytes:
        def encode(self, text: str) -> list[int]:
            return [byte % 80 for byte in text.encode()]

        def decode(self, tokens: list[int]) -> str:
            return "".join(chr(32 + token) for token in tokens)

    tiny = load_tiny("prefix-lm")
    model = Model(tiny.architecture, tiny.params, tokenizer=Bytes(), attention="causal")

    def load(path: str, **options: Any) -> Model:
        assert path == "own"
        return model

    monkeypatch.setattr("attendre_core.zoo.load", load)
    return model


def test_a_model_and_a_text_of_ones_own(
    own: Model, elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    (elsewhere / "text.txt").write_text("It was a bright cold day in April. " * 20)
    sizes = ("--model", "own", "--size", "8", "--chunk", "4", "--json")
    answer = json.loads(trace("--text", "text.txt", *sizes, "--limit", "50", capsys=capsys))
    assert answer["title"] == "own reads text.txt, 50 tokens"
    assert [policy["name"] for policy in answer["policies"]] == [
        "MT+chunk=4:8", "AS+chunk=4:8", "LRA-sum+c=0+chunk=4:8", "LFA-1e-3+c=0+chunk=4:8",
        "attendre-causal+chunk=4:8", "full",
    ]  # fmt: skip
    assert {policy["q_size"] for policy in answer["policies"]} == {0}
    assert "".join(answer["words"]) == own.text(
        own.tokens("It was a bright cold day in April. " * 2)[:50]
    )
    prompt = ("--prompt", "Hello </script> you", "--policies", "MT")
    answer = json.loads(trace(*prompt, *sizes, capsys=capsys))
    assert answer["policies"][0]["layers"][0]["survivors"] == list(range(11, 19))
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    answer = json.loads(trace("--text", "-", *sizes, "--policies", "MT", capsys=capsys))
    assert answer["title"] == "own reads standard input, 11 tokens"


@pytest.mark.parametrize(
    ("windows", "options", "traced"),
    [((5, None), (), [1]), ((None, 5), (), [0]), ((5, 5), (), [0, 1]), ((5, None), ("0",), [0])],
)
def test_layers_with_a_window_are_traced_if_asked_for(
    windows: Any, options: Any, traced: list[int], own: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    own.architecture = replace(own.architecture, windows=windows)  # type: ignore[type-var]
    layers = ("--layer", *options) if options else ()
    given = ("--model", "own", "--prompt", "x" * 40, "--policies", "MT", "--size", "8", *layers)
    (policy,) = json.loads(trace(*given, "--json", capsys=capsys))["policies"]
    assert [layer["layer"] for layer in policy["layers"]] == traced
    if windows[traced[-1]]:
        # M is 8 and S, too: what 8 queries with a window of 5 each can see.
        told = "holds 12 of 40 tokens (sliding window of 5, room for 12), 28 evicted"
        assert told in trace(*given, capsys=capsys)


@pytest.mark.parametrize("name", [*sorted({*PRESETS} - {*TIER_PRESETS}), *CONTROL_PRESETS])
def test_a_name_is_the_same_system_in_python_and_here(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.loads(trace("--policies", name, "--layer", "0", "--json", capsys=capsys))
    (policy,) = answer["policies"]
    assert preset(policy["name"]) == preset(name, 32, chunk=16, top_k=16)


@pytest.mark.parametrize("name", TIER_PRESETS)
def test_tiers_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--policies", name, "--layer", "0", "--json"]) == 2
    told = capsys.readouterr().err
    assert "Tiers cannot be traced" in told
    assert len(told) < 300, "the settings of all memories say nothing about it"


def test_a_policy_of_ones_own(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "own_traced_policy.py").write_text(
        "import attendre_core as at\nclass Mine(at.FIFO):\n    pass\n"
    )
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    options = ("--policies", "own_traced_policy:Mine,MT", "--layer", "0", "--json")
    mine, plain = json.loads(trace(*options, capsys=capsys))["policies"]
    assert mine["name"] == "own_traced_policy:Mine+k=16+chunk=16:32"
    assert mine["layers"] == plain["layers"]


def test_a_budget_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--policies", "MT,attendre:64KiB", "--size", "32KiB", "--layer", "0", "--json")
    answer = json.loads(trace(*options, capsys=capsys))
    names = [policy["name"] for policy in answer["policies"]]
    model = load_tiny("prefix-lm")
    assert names == [
        model.with_memory("MT+k=16+chunk=16:32KiB").memory.name,
        model.with_memory("attendre+k=16+chunk=16:64KiB").memory.name,
    ]


def test_equal_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--policies", "MT+wait=half,attendre,H2O", "--size", "48", "--json")
    found = json.loads(trace(*options, "--equal-bytes", capsys=capsys))["policies"]
    sizes = [policy["bytes"] for policy in found]
    assert found[0]["kv_size"] == 48
    assert all(0.95 * sizes[0] < size <= sizes[0] for size in sizes)
    plain = [p["bytes"] for p in json.loads(trace(*options, capsys=capsys))["policies"]]
    assert plain[0] == sizes[0]
    assert plain[1] > sizes[1]


def test_a_short_text_fits_into_the_memory(own: Model, capsys: pytest.CaptureFixture[str]) -> None:
    text = trace("--model", "own", "--prompt", "short", "--policies", "LFA-0", capsys=capsys)
    assert "holds 5 of 5 tokens (M = 256), 0 evicted, 0 refused" in text


def test_progress_goes_to_stderr_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trace(*FEW, capsys=capsys)
    monkeypatch.setattr(progress, "_LINE_PAUSE", 0)
    assert main(["trace", *FEW]) == 0
    shown = capsys.readouterr()
    assert shown.out == plain
    done = [line.split()[1] for line in shown.err.splitlines()]
    assert done == [f"{count}/256" for count in (64, 128, 192, 256)]


def test_full_attention_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text = trace("--policies", "full", capsys=capsys)
    assert "\nfull  \u2713 right: library 100 %\n  holds all 256 tokens\n" in text
    (policy,) = json.loads(trace("--policies", "full", "--json", capsys=capsys))["policies"]
    assert policy["layers"][1]["survivors"] == list(range(256))


def test_full_attention_holds_the_window_of_a_layer_that_has_one(
    own: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    own.architecture = replace(own.architecture, windows=(5, None))  # type: ignore[type-var]
    given = ("--model", "own", "--prompt", "x" * 40, "--policies", "MT:8,full", "--layer")
    full = trace(*given, "0", capsys=capsys).partition("\nfull")[2]
    assert "\n  holds 12 of 40 tokens (sliding window of 5, room for 12), 28 evicted" in full
    assert "\n  holds all 40 tokens\n" in trace(*given, "1", capsys=capsys)


def test_line_breaks_and_spaces_are_shown(
    own: Model, elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """In what the last query attends to, and as the next word."""
    monkeypatch.setattr(own, "text", lambda tokens: "\n" * len(tokens))
    (elsewhere / "text.txt").write_text("text")
    given = ("--model", "own", "--text", "text.txt", "--policies", "MT", "--layer", "0")
    text = trace(*given, capsys=capsys)
    assert re.search(r"\nMT  next: \u21b5 \d", text)
    assert re.search(r"  last query: \u21b5 @\d", text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policies", "XYZ"), "'XYZ' is not known"),
        (("--policies", "full:8"), "full attention has no size and no options"),
        (("--size", "few"), "the size is 'few'"),
        (("--policies", ","), "the list is empty; separate words by commas"),
        (("--model", "own", "--prompt", "x", "--policies", "attendre"), "Use 'attendre-causal"),
        (("--text", "x.txt"), "reads only documents of its own tasks"),
        (("--limit", "3"), "--limit is for models that read text, not for prefix-lm"),
        (("--layer", "2"), "layer 2 does not exist; the model has layers 0 to 1"),
        (("--size", "8", "--policies", "MT+wait=8"), "expected q_size < kv_size"),
        (("--model", "own"), "Give --text FILE or --prompt TEXT"),
        (("--model", "own", "--text", "none.txt"), "none.txt cannot be read (No such file"),
        (("--model", "own", "--prompt", ""), "the text is empty"),
        (("--model", "nowhere", "--prompt", "x"), "nowhere"),
        (("--backend", "abacus"), "abacus"),
        (("--out", "file/inside"), "the folder file/inside cannot be created"),
    ],
)
def test_what_is_impossible_is_said_in_a_line(
    arguments: tuple[str, ...],
    words: str,
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if "own" in arguments:
        request.getfixturevalue("own")
    (elsewhere / "file").write_text("")
    assert words in refused(*arguments, capsys=capsys)


def test_help_teaches_and_its_examples_are_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # each example on a line of its own
    with pytest.raises(SystemExit):
        main(["trace", "--help"])
    text = capsys.readouterr().out
    examples = text.partition("examples:\n")[2].splitlines()
    assert len(examples) >= 5
    for line in examples:
        words = re.split(r"\s\|\s", line.strip())
        (command,) = [part for part in words if part.startswith("attendre")]
        quoted = re.findall(r'"[^"]*"|\S+', command)
        assert build_parser().parse_args([part.strip('"') for part in quoted[1:]])


def test_numpy_is_enough(tmp_path: Path) -> None:
    """Neither an array library nor a drawing library is imported without need."""
    code = (
        "import sys; sys.modules['matplotlib'] = None; from attendre_core.cli import main; "
        f"main(['trace', *{FEW!r}, '--json']); "
        "print([n for n in ('torch', 'jax', 'safetensors') if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=120, cwd=tmp_path,
        encoding="utf-8",
    )  # fmt: skip
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)["picture"] is None


def test_the_trained_model_finds_the_answer_where_the_memory_kept_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the example of the guide, FIFO and sinks lose the answer and LFA has it."""
    names = ("MT", "AS", "LFA-1e-3+c=0")
    options = ("--policies", ",".join(f"{name}+wait=half" for name in names), "--json")
    answer = json.loads(trace(*options, capsys=capsys))
    right = answer["answer"]
    assert f"{right} is right" in answer["title"]
    words = [policy["next"][0]["word"] for policy in answer["policies"]]
    found = dict(zip(("MT", "AS", "LFA-1e-3"), words, strict=True))
    assert found["LFA-1e-3"] == right
    assert found["MT"] != right
    assert found["AS"] != right
    layer = answer["policies"][2]["layers"][1]["attended"]
    best = layer["position"][int(np.argmax(layer["weight"]))]
    assert answer["words"][best].strip() == right
