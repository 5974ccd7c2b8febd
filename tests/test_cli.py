"""The command line: what it prints, how it fails, what it leaves alone."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest

import attendre_core as at
from attendre_core.cli import build_parser, main
from attendre_core.presets import CONTROL_PRESETS, OPTIONS, PRESETS

COMMANDS = ("demo", "run", "chat", "tag", "embed", "eval", "trace", "bench", "info")


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def run_json(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(*arguments, "--json", capsys=capsys))
    return answer


class TestHelp:
    def test_no_command_prints_the_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "demo" in run(capsys=capsys)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_teaches(
        self, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) < 80
        assert re.search(rf"attendre {command} .*--", text.partition("examples:")[2])
        assert "--backend" in text
        assert "--json" in text

    @pytest.mark.parametrize("words", [[], ["completion"]])
    def test_the_rest_fits_too(
        self, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        assert max(map(len, capsys.readouterr().out.splitlines())) < 80

    @pytest.mark.parametrize("columns", ["60", "80", "200"])
    @pytest.mark.parametrize("command", COMMANDS)
    def test_examples_that_were_wrapped_are_the_same_commands(
        self,
        command: str,
        columns: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def words(text: str) -> list[list[str]]:
            lines = re.sub(r" \\\n\s+", " ", text).splitlines()
            # Behind three spaces there may be a remark, which may go on in the next line.
            return [
                shlex.split(re.split(r"\s{3,}", line.strip())[0])
                for line in lines
                if not line.startswith(" " * 20)
            ]

        parsers = build_parser()._subparsers
        assert parsers is not None
        (action,) = parsers._group_actions
        written = action.choices[command].epilog  # type: ignore[index, call-overload]
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit):
            main([command, "--help"])
        shown = capsys.readouterr().out
        assert words(shown[shown.index("examples:") :]) == words(written)

    def test_the_version_is_that_of_the_package(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as stopped:
            main(["--version"])
        assert stopped.value.code == 0
        assert capsys.readouterr().out == f"attendre-core {at.__version__}\n"

    @pytest.mark.parametrize("command", ["demo", "info"])
    def test_the_examples_of_the_help_run(
        self, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit):
            main([command, "--help"])
        examples = capsys.readouterr().out.partition("examples:\n")[2].splitlines()
        assert examples
        for line in examples:
            words = re.split(r"\s{3,}|\s\|", line.strip())[0].split()[1:]
            assert build_parser().parse_args(words)
            # The demo's take a minute each; tests/evaluation runs smaller ones.
            if command != "demo" and not {"torch", "jax", "all"} & set(words):
                run(*words, capsys=capsys)


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (
                ["demo", "--documents", "0"],
                "'0' (expected a whole number, 1 or more)",
            ),
            (["demo", "--documents", "many"], "invalid value: 'many'"),
            (["demo", "--seed", "-1"], "invalid value: '-1'"),
            (["demo", "--model", "gpt"], "invalid choice: 'gpt'"),
            (["demo", "--model", "prefix-lm,gpt"], "invalid choice: 'gpt'"),
            (["demo", "--policies", ","], "the list is empty; separate words by commas"),
            (["demo", "--picture", "no/such/folder/a.svg"], "there is no folder for the picture"),
            (["demo", "--backend", "nonsense"], "'nonsense' is not known"),
            (["demo", "--backend", "no_module:thing"], "not installed"),
            (["demo", "--policies", "MT,NONE"], "'NONE' is not known"),
            (["info", "--backend", "nonsense"], "'nonsense' is not known"),
            (["info", "--layers", "1.5"], "invalid value: '1.5'"),
            (["info", "--memory", "LRA-smu:8"], "Did you mean LRA-sum?"),
            (["info", "--memory", "MT"], "the size is missing, expected 'MT:1024'"),
            (["info", "--memory", "attendre:8"], "Use 'attendre-causal:8'"),
            (["info", "--memory", "full"], "full attention has no fixed size"),
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

        monkeypatch.setattr("attendre_core.cli.demo.plan_of", interrupt)
        assert main(["demo"]) == 130
        assert capsys.readouterr() == ("", "")


class TestTerminal:
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


class TestInfo:
    def test_backends_and_presets(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = run_json("info", capsys=capsys)
        status = {found["name"]: found["status"] for found in answer["backends"]}
        assert status["numpy"] == "imported"
        assert set(status) >= {"numpy", "array_api_strict", "torch", "jax"}
        assert set(answer["presets"]) == {*PRESETS, *CONTROL_PRESETS}
        assert answer["presets"]["LRA-sum"] == "LRA(pool='sum')"
        text = run("info", capsys=capsys)
        for option in OPTIONS:
            assert answer["options"][option.usage] == option.words
            assert f"  +{option.usage} " in text

    @pytest.mark.parametrize("columns", [60, 80, 200])
    def test_it_fits_the_terminal(
        self, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        long = "LRA-sum+softmax+hold+quantile=0.25+visible+sinks=4+recent=16:512"
        for words in ((), ("--backend", "all"), ("--memory", "H2O:1024"), ("--memory", long)):
            text = run("info", *words, capsys=capsys)
            assert max(map(len, text.splitlines())) <= columns

    def test_the_estimate_is_what_the_memory_says(self, capsys: pytest.CaptureFixture[str]) -> None:
        sizes = ("--memory", "MT:1024", "--kv-heads", "8", "--head-dim", "64", "--layers", "12")
        answer = run_json("info", *sizes, capsys=capsys)
        state = at.KeyValueMemory(size=1024).init(batch=1, heads=8, head_dim=64)
        real = sum(array.nbytes for array in state if array is not None)
        assert answer["memory"]["bytes_per_layer"] == real
        assert answer["memory"]["bytes"] == 12 * real
        assert "in 12 layers" in " ".join(run("info", *sizes, capsys=capsys).split())

    @pytest.mark.parametrize("name", [*PRESETS, *CONTROL_PRESETS])
    def test_a_name_is_the_same_system_in_python_and_here(
        self, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        both = ("--both-ways",) if name == "attendre" else ()
        answer = run_json("info", "--memory", f"{name}:64", *both, capsys=capsys)["memory"]
        assert at.preset(answer["name"]) == at.preset(name, kv_size=64)

    def test_a_budget(self, capsys: pytest.CaptureFixture[str]) -> None:
        answer = run_json("info", "--memory", "32MiB", "--batch", "2", capsys=capsys)["memory"]
        assert answer["name"] == f"attendre-causal:{answer['kv_size']}"
        assert answer["bytes"] <= 32 * 2**20

    def test_half_precision_is_smaller(self, capsys: pytest.CaptureFixture[str]) -> None:
        sizes = [
            run_json("info", "--memory", "64", "--dtype", dtype, capsys=capsys)["memory"]["bytes"]
            for dtype in ("bfloat16", "float16", "float32", "float64")
        ]
        assert sizes[0] == sizes[1] < sizes[2] < sizes[3]

    def test_nothing_is_imported_that_was_not_asked_for(self) -> None:
        code = """
import os, sys
from attendre_core.cli import build_parser, main
main(["info"]); main(["demo", "--documents", "2", "--policies", "MT", "--picture", os.devnull])
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
