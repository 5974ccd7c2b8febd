"""The scripts of ``attendre completion``, asked as a shell asks them."""

from __future__ import annotations

import argparse
import shutil
import subprocess

import pytest

from attendre_core.cli import build_parser, main

COMMANDS = ("demo", "run", "chat", "tag", "embed", "eval", "trace", "bench", "info", "completion")


def script(shell, capsys):
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.fixture
def completed(capsys):
    """Complete the last of some words with bash."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    source = script("bash", capsys)

    def ask(*words):
        quoted = " ".join(f"'{word}'" for word in ("attendre", *words))
        asked = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _attendre; "
        asked += 'printf "%s\\n" "${COMPREPLY[@]}"'
        answer = subprocess.run(
            ["bash", "--norc", "-uc", f"{source}\n{asked}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return answer.stdout.split()

    return ask


def parsers():
    (action,) = (
        each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)
    )
    return action.choices


def test_commands(completed):
    assert set(completed("")) == {*COMMANDS, "-h", "--help", "--version"}
    assert completed("e") == ["embed", "eval"]
    assert set(COMMANDS) == set(parsers())


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_those_of_the_command(completed, command):
    options = {option for action in parsers()[command]._actions for option in action.option_strings}
    assert set(completed(command, "-")) == options
    assert set(completed(command, "--anything", "value", "--hel")) == {"--help"}


def test_values(completed):
    assert completed("demo", "--backend", "to") == ["torch"]
    assert "attendre-causal" in completed("run", "--memory", "attendre")
    assert completed("info", "--dtype", "bf") == ["bfloat16"]
    assert completed("info", "--layers", "") == []  # a number
    assert completed("run", "--model", "") == []  # a file, with which bash goes on
    assert "needle" in completed("eval", "n")
    assert completed("completion", "") == ["bash", "zsh", "fish", "-h", "--help"]
    # Lists go on behind a comma.
    assert completed("trace", "--policies", "MT,LRA-m") == ["MT,LRA-max"]
    assert completed("trace", "--policies", "MT,AS,ful") == ["MT,AS,full"]
    # A value that is called like a command is none.
    assert "--seed" in completed("demo", "--policies", "eval", "--s")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells(shell, capsys):
    text = script(shell, capsys)
    for command, parser in parsers().items():
        assert command in text
        for action in parser._actions:
            for option in action.option_strings:
                assert (option if shell == "zsh" else option.lstrip("-")) in text
    if shutil.which(shell) is None:
        return
    subprocess.run([shell, "-n"], input=text, text=True, check=True)


def test_an_unknown_shell(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "tcsh"])
    assert stopped.value.code == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
