"""``attendre run``: a file goes in, a text and a summary come out."""

from __future__ import annotations

import io
import json
import sys

import pytest

import attendre_core as at
from attendre_core import progress
from attendre_core.cli import main
from attendre_core.presets.systems import NAMES

TEXT = "Once upon a time there was a memory that forgot what it did not need. " * 40
SMALL = ("--memory", "LRA-sum+c=0+chunk=16:64", "--max-new-tokens", "6")


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


def answer(capsys, *arguments):
    assert main(["run", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_continues_a_file_and_says_what_that_took(tiny_folder, book, capsys):
    assert main(["run", "--model", str(tiny_folder), *SMALL, str(book)]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip()
    assert f"read {len(TEXT):,} tokens through 2 layers on numpy" in shown.err
    assert "memory LRA-sum+c=0+chunk=16:64" in shown.err
    assert "full attention would hold" in shown.err


def test_progress_goes_to_stderr_in_lines(tiny_folder, book, capsys, monkeypatch):
    """Without a pause between lines, there is one for each piece that was read."""
    read, written = len(TEXT), []
    for pause in (0, 1e9):
        monkeypatch.setattr(progress, "_LINE_PAUSE", pause)
        assert main(["run", "--model", str(tiny_folder), *SMALL, str(book)]) == 0
        shown = capsys.readouterr()
        written.append(shown.out)
        lines = [line for line in shown.err.splitlines() if line.startswith("reading: ")]
        done = [int(line.split()[1].split("/")[0]) for line in lines]
        assert done == ([*range(64, read, 64), read] if pause == 0 else [])
    assert written[0] == written[1]
    assert "reading" not in written[0]


def test_the_memory_stays_small_and_full_attention_does_not(tiny_folder, book, capsys):
    bounded = answer(capsys, "--model", tiny_folder, *SMALL, book)
    assert bounded["tokens_read"] == len(TEXT)
    assert bounded["kept_per_layer"] == 64
    assert bounded["memory_bytes"] < bounded["full_attention_bytes"]
    full = answer(capsys, "--model", tiny_folder, *SMALL, "--memory", "full", book)
    assert full["memory"] == "full"
    assert full["memory_bytes"] >= full["full_attention_bytes"]


def named(capsys, folder, book, *options):
    few = ("--limit", 8, "--max-new-tokens", 1)
    return answer(capsys, "--model", folder, *few, *options, book)["memory"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "attendre"])
def test_a_name_is_the_same_system_in_python_and_here(name, tiny_folder, book, capsys):
    expected = at.preset(name, kv_size=128)
    assert named(capsys, tiny_folder, book, "--memory", f"{name}:128") == expected.name
    assert at.load(tiny_folder, memory=f"{name}:128").memory == expected
    assert at.preset(expected.name) == expected


def test_what_is_recommended_is_the_default(tiny_folder, book, capsys):
    assert named(capsys, tiny_folder, book) == "attendre-causal:1024"
    assert named(capsys, tiny_folder, book, "--memory", "64") == "attendre-causal:64"
    both_ways = ("--attention", "prefix")
    assert named(capsys, tiny_folder, book, *both_ways) == "attendre:1024"
    assert named(capsys, tiny_folder, book, "--memory", "64", *both_ways) == "attendre:64"
    assert at.load(tiny_folder, memory=64).memory == at.preset("attendre-causal:64")
    loaded = at.load(tiny_folder, memory=64, attention="prefix")
    assert loaded.memory == at.preset("attendre:64")
    assert loaded.with_memory("LRA-sum:32").memory == at.preset("LRA-sum:32")
    assert at.load(tiny_folder, memory="full").memory is None


@pytest.mark.parametrize("attention", ["causal", "prefix"])
@pytest.mark.parametrize("budget", ["300KiB", "MT:300KiB", "LFA-0+wait=half+chunk=16:300KiB"])
def test_a_budget_is_kept_while_reading(budget, attention, tiny_folder, book, tmp_path, capsys):
    model = at.load(tiny_folder, memory=budget, attention=attention)
    stream = model.stream()
    stream.feed(TEXT)
    stream.save(tmp_path / "state.safetensors")
    with (tmp_path / "state.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    spans = [tensor["data_offsets"] for name, tensor in header.items() if name.startswith("states")]
    real = sum(stop - start for start, stop in spans)
    part = model.reading_part
    shape = {
        "layers": part.layers, "kv_heads": part.kv_heads, "head_dim": part.head_dim,
        "heads": part.heads, "carry_dim": part.dim,
    }  # fmt: skip
    assert real == model.used_memory.nbytes(**shape) <= 300 * 1024
    memory = named(capsys, tiny_folder, book, "--memory", budget, "--attention", attention)
    assert memory == model.memory.name


def test_a_policy_of_ones_own_in_the_current_folder(
    tiny_folder, book, tmp_path, capsys, monkeypatch
):
    (tmp_path / "own_policy_here.py").write_text(
        "from dataclasses import dataclass\n"
        "import attendre_core as at\n"
        "@dataclass(frozen=True)\n"
        "class Mine(at.FIFO):\n"
        "    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != ""])
    memory = "own_policy_here:Mine+chunk=16:64"
    assert named(capsys, tiny_folder, book, "--memory", memory) == memory
    told = answer(capsys, "--model", tiny_folder, "--memory", memory, book)
    plain = answer(capsys, "--model", tiny_folder, "--memory", "MT+chunk=16:64", book)
    assert told["text"] == plain["text"]


def test_text_so_far_is_what_comes_out_in_the_end(tiny_folder, book, capsys):
    told = answer(capsys, "--model", tiny_folder, *SMALL, book)["text"]
    assert main(["run", "--model", str(tiny_folder), *SMALL, str(book)]) == 0
    assert capsys.readouterr().out == told + "\n"


def test_a_question_goes_into_the_template(tiny_folder, book, capsys):
    options = ("--question", "Who forgot?", "--template", "{question} {context}")
    told = answer(capsys, "--model", tiny_folder, *SMALL, *options, book)
    assert told["tokens_read"] == len(TEXT) + len("Who forgot? ")
    assert (
        main(["run", "--model", str(tiny_folder), "--question", "x", "--template", "y", str(book)])
        == 2
    )
    assert "has no {question}" in capsys.readouterr().err


def test_saved_and_restored_is_read_in_one_go(tiny_folder, book, tmp_path, capsys):
    whole = answer(capsys, "--model", tiny_folder, *SMALL, book)
    first, rest = tmp_path / "first.txt", tmp_path / "rest.txt"
    first.write_text(TEXT[:1000])
    rest.write_text(TEXT[1000:])
    state = tmp_path / "state.safetensors"
    answer(capsys, "--model", tiny_folder, *SMALL, "--save", state, first)
    told = answer(capsys, "--model", tiny_folder, *SMALL, "--restore", state, rest)
    assert told == whole


def test_it_reads_standard_input_up_to_a_limit(tiny_folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    told = answer(capsys, "--model", tiny_folder, *SMALL, "--limit", 100, "-")
    assert told["tokens_read"] == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "no-such-folder", "book"), "no such file or folder"),
        (("--model", "MODEL", "no-such-book"), "cannot be read"),
        (("--model", "MODEL", "--memory", "LFA-x:64", "book"), "'LFA-x' is not known"),
        (("--model", "MODEL", "--memory", "MT", "book"), "size is missing, expected 'MT:1024'"),
        (("--model", "MODEL", "--memory", "MT+wait=64:64", "book"), "q_size < kv_size"),
        (("--model", "MODEL", "--memory", "attendre:64", "book"), "Use 'attendre-causal:64'"),
        (("--model", "MODEL", "--memory", "100B", "book"), "100B is too small"),
        (("--model", "MODEL", "--memory", "no_such_module:P:64", "book"), "there is no module"),
        (("--model", "MODEL", "--dtype", "int8", "book"), "dtype is 'int8'"),
        (("--model", "MODEL", "--temperature", "-1", "book"), "temperature is -1.0"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(arguments, message, tiny_folder, book, capsys):
    words = [{"MODEL": str(tiny_folder), "book": str(book)}.get(a, a) for a in arguments]
    assert main(["run", *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1
