"""The command line: what it prints, how it fails, what it leaves alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.cli import build_parser, main
from attendre_core.cli.planted import Fate, plant, stream_through
from attendre_core.presets import PRESETS

SMALL = ("--length", "256", "--kv", "32", "--chunk", "16")


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def run_json(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(*arguments, "--json", capsys=capsys))
    return answer


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "attendre_core.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
    )


class TestHelp:
    def test_no_command_prints_the_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "demo" in run(capsys=capsys)

    @pytest.mark.parametrize("command", ["demo", "run", "bench", "info"])
    def test_every_command_teaches(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        assert f"attendre {command} --" in text.partition("examples:")[2]
        assert "--backend" in text
        assert "--json" in text

    @pytest.mark.parametrize("command", ["demo", "info"])
    def test_the_examples_of_the_help_run(
        self, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        examples = capsys.readouterr().out.partition("examples:\n")[2].splitlines()
        assert examples
        for line in examples:
            words = re.split(r"\s{3,}|\s\|", line.strip())[0].split()[1:]
            assert build_parser().parse_args(words)
            if not {"torch", "jax", "all"} & set(words):
                run(*words, capsys=capsys)


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["demo", "--kv", "0"], "'0' is not possible; give a whole number, 1 or more"),
            (["demo", "--kv", "many"], "'many' is not possible"),
            (["demo", "--chunk", "-3"], "'-3' is not possible"),
            (["demo", "--seed", "-1"], "'-1' is not possible"),
            (["demo", "--sigmas", "nan"], "'nan' is not possible; give a finite number"),
            (["demo", "--length", "64", "--kv", "64"], "nothing would have to go"),
            (["demo", "--backend", "nonsense"], "'nonsense' is not known"),
            (["demo", "--backend", "no_module:thing"], "not installed"),
            (["demo", "--presets", "MT", "NONE"], "'NONE' is not known"),
            (["demo", "--compile"], "numpy has no compiler"),
            (["info", "--backend", "nonsense"], "'nonsense' is not known"),
            (["info", "--kv", "1.5"], "'1.5' is not possible"),
            (["info", "--dtype", "int8"], "invalid choice: 'int8'"),
            (["dance"], "invalid choice: 'dance'"),
            (["demo", "--nonsense"], "unrecognized arguments: --nonsense"),
        ],
    )
    def test_one_line_and_exit_code_2(
        self, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        try:
            code = main(arguments)
        except SystemExit as stopped:
            code = stopped.code
        captured = capsys.readouterr()
        assert code == 2
        assert captured.out == ""
        assert words in captured.err
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("attendre")


class TestQuietEnds:
    def test_a_reader_that_goes_away(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run(
            [sys.executable, "-m", "attendre_core.cli", "info"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
        os.close(writer)
        assert result.stderr == ""
        assert result.returncode == 141

    def test_ctrl_c(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("attendre_core.cli.demo.stream_through", interrupt)
        assert main(["demo"]) == 130
        assert capsys.readouterr() == ("", "")


class TestDemo:
    def test_every_preset_is_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        lines = run("demo", *SMALL, capsys=capsys).splitlines()
        shown = [line.split()[0].partition("│")[0] for line in lines if "│" in line]
        assert shown == list(PRESETS)

    def test_the_figures_add_up(self, capsys: pytest.CaptureFixture[str]) -> None:
        for present in ("compete", "visible"):
            answer = run_json("demo", *SMALL, "--present", present, capsys=capsys)
            for policy in answer["policies"]:
                assert policy["kept"] + policy["evicted"] + policy["refused"] == 256
                assert policy["kept"] == len(policy["kept_positions"]) == 32
                gone = policy["evicted"] + policy["refused"]
                assert policy["admitted_share"] == pytest.approx(policy["evicted"] / gone)
                assert policy["planted"] == [
                    "kept" if at_ in policy["kept_positions"] else fate
                    for at_, fate in zip(answer["planted"], policy["planted"], strict=True)
                ]

    def test_fifo_keeps_the_last_entries(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = run_json("demo", *SMALL, capsys=capsys)
        (fifo,) = (policy for policy in answer["policies"] if policy["name"] == "MT")
        assert fifo["kept_positions"] == list(range(224, 256))
        assert fifo["refused"] == 0

    def test_the_sentences_follow_the_results(self, capsys: pytest.CaptureFixture[str]) -> None:
        for seed in ("0", "1"):
            answer = run_json("demo", *SMALL, "--seed", seed, capsys=capsys)
            holders = answer["reading"][1]
            none = [
                policy["name"] for policy in answer["policies"] if "kept" not in policy["planted"]
            ]
            assert (f"none: {', '.join(none)}." in holders) == bool(none)
            shares = {p["admitted_share"]: p["name"] for p in reversed(answer["policies"])}
            assert f"{min(shares):.2f} ({shares[min(shares)]})" in answer["reading"][-1]

    def test_a_seed_fixes_everything(self, capsys: pytest.CaptureFixture[str]) -> None:
        first, again, other = (
            run("demo", *SMALL, "--seed", seed, capsys=capsys) for seed in ("1", "1", "2")
        )
        assert first == again != other

    @pytest.mark.parametrize("library", ["array_api_strict", "torch", "jax"])
    def test_backends_keep_the_same(self, library: str, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip(library)
        few = ("--presets", "AS", "LRA-max", "LFA-1e-3", "LFU")
        more = ["--compile"] if library == "jax" else []
        here = run_json("demo", *SMALL, *few, capsys=capsys)
        there = run_json("demo", *SMALL, *few, "--backend", library, *more, capsys=capsys)
        assert there["policies"] == here["policies"]

    def test_a_length_that_is_not_a_multiple_of_the_chunk(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sizes = ("--length", "101", "--kv", "9", "--chunk", "7")
        for policy in run_json("demo", *sizes, capsys=capsys)["policies"]:
            assert policy["kept"] + policy["evicted"] + policy["refused"] == 101

    def test_a_plain_pipe_gets_no_colour(self) -> None:
        out, err = start("demo", *SMALL).communicate(timeout=120)
        assert err == ""
        assert "\x1b" not in out
        assert "│" in out

    def test_an_ascii_terminal_gets_ascii(self) -> None:
        out, err = start("demo", *SMALL, PYTHONIOENCODING="ascii").communicate(timeout=120)
        assert err == ""
        assert out.isascii()

    @pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
    @pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
    def test_colour_on_a_terminal(self, environment: dict[str, str], coloured: bool) -> None:
        import pty

        script = "import sys; from attendre_core.cli.terminal import Terminal;"
        script += "print(Terminal().paint('x', 'green'))"
        ours, theirs = pty.openpty()
        base = {name: v for name, v in os.environ.items() if name not in ("NO_COLOR", "TERM")}
        subprocess.run(
            [sys.executable, "-c", script],
            stdout=theirs,
            check=True,
            timeout=120,
            env={**base, "TERM": "xterm", **environment},
        )
        shown = os.read(ours, 1000)
        os.close(ours)
        os.close(theirs)
        assert (b"\x1b[32m" in shown) == coloured


class TestPlanted:
    def test_planted_keys_attract_the_queries(self) -> None:
        stream = plant(512, seed=3)
        logits = np.einsum("bqhd,bkhd->bhqk", stream.query, stream.key)
        mean = logits.mean(axis=(0, 1, 2))
        assert set(np.argsort(mean)[-4:]) == set(stream.planted)
        assert max(stream.planted) < 256

    def test_fates_are_those_of_the_memory(self) -> None:
        stream = plant(128, seed=0)
        memory = at.KeyValueMemory(size=16, policy=at.AttentionSink(sinks=2))
        outcome = stream_through(memory, stream, chunk=8, top_k=None, on=at.backend("numpy"))
        kept = np.flatnonzero(outcome.fate == Fate.KEPT).tolist()
        assert kept == [0, 1, *range(114, 128)]
        assert np.all(outcome.fate[2:114] == Fate.EVICTED)


class TestInfo:
    def test_backends_and_presets(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = run_json("info", capsys=capsys)
        status = {found["name"]: found["status"] for found in answer["backends"]}
        assert status["numpy"] == "imported"
        assert set(status) >= {"numpy", "array_api_strict", "torch", "jax"}
        assert set(answer["presets"]) == set(PRESETS)

    def test_the_estimate_is_what_the_memory_says(self, capsys: pytest.CaptureFixture[str]) -> None:
        sizes = ("--kv", "1024", "--heads", "8", "--head-dim", "64", "--layers", "12")
        answer = run_json("info", *sizes, capsys=capsys)
        state = at.KeyValueMemory(size=1024).init(batch=1, heads=8, head_dim=64)
        real = sum(array.nbytes for array in state if array is not None)
        assert answer["memory"]["bytes_per_layer"] == real
        assert answer["memory"]["bytes"] == 12 * real
        assert "for 12 layers" in run("info", *sizes, capsys=capsys)

    def test_half_precision_is_smaller(self, capsys: pytest.CaptureFixture[str]) -> None:
        sizes = [
            run_json("info", "--kv", "64", "--dtype", dtype, capsys=capsys)["memory"]["bytes"]
            for dtype in ("bfloat16", "float16", "float32", "float64")
        ]
        assert sizes[0] == sizes[1] < sizes[2] < sizes[3]

    def test_nothing_is_imported_that_was_not_asked_for(self) -> None:
        code = """
import sys
from attendre_core.cli import build_parser, main
main(["info"]); main(["demo", "--length", "128"])
print([name for name in ("torch", "jax", "array_api_strict") if name in sys.modules])
"""
        result = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            timeout=120,
            encoding="utf-8",
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )
        assert result.stdout.splitlines()[-1] == "[]"

    def test_all_backends_are_imported_on_request(self, capsys: pytest.CaptureFixture[str]) -> None:
        for found in run_json("info", "--backend", "all", capsys=capsys)["backends"]:
            assert found["status"] in ("imported", "missing")
