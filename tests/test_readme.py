"""The README is short, its links lead somewhere, and it says what the project says elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(#[\w-]+)?\)|src=\"([^\"]+)\"")


def sections() -> dict[str, str]:
    """Return the text below each heading."""
    parts = re.split(r"^## (.+)$", README, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_it_is_short_and_has_no_grid_of_digits() -> None:
    lines = README.splitlines()
    assert len(lines) < 200
    assert all(len(re.findall(r"\d+(?:\.\d+)?", line)) < 10 for line in lines)


def test_it_begins_with_one_line_a_picture_and_numbers() -> None:
    head = README.partition("\n## ")[0]
    assert re.match(r"# attendre-core\n\n\*\*[^\n]{40,110}\*\*\n", head)
    assert head.index("docs/pictures/front.svg") < head.index("<!-- begin numbers -->")


@pytest.mark.parametrize("target", sorted({a or b for a, _, b in LINK.findall(README)}))
def test_a_link_leads_to_a_file(target: str) -> None:
    assert (ROOT / target).is_file()


@pytest.mark.parametrize("command", ["pip install . && attendre demo", "pip install nox && nox"])
def test_the_two_commands(command: str) -> None:
    assert f"```console\n{command}\n```" in README


def test_the_picture_says_its_message_without_being_seen() -> None:
    """An index of packages shows no pictures of a repository, only their words."""
    (words,) = re.findall(r'alt="([^"]+)"', README)
    assert "\n\n" not in words
    assert all(name in words for name in ("FIFO", "attention sinks", "attendre"))


def test_the_systems_it_names_exist() -> None:
    from attendre_core.presets import preset

    table = sections()["Which system?"]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[1])]
    assert len(rows) == 5
    assert {"attendre-causal:1024", "attendre:512", "MT", "AS"} <= set(names)
    for name in names:
        preset(name if ":" in name else f"{name}+c=0:64" if "-" in name else f"{name}:64")


def test_the_largest_model_that_was_measured() -> None:
    """Nothing larger than Gemma 3 270M is in the records."""
    assert "270 million parameters" in sections()["What it is not"]
    small = {"SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf", "stories15M.bin"}
    small |= {"all-MiniLM-L6-v2", "model", "prefix-lm", "encoder-decoder", None}
    named = set()
    for file in (ROOT / "docs" / "results").rglob("*.jsonl"):
        with file.open(encoding="utf-8") as lines:
            named.add(json.loads(next(lines)).get("model"))
    assert "gemma-3-270m-q4_k_m.gguf" in named
    assert named <= small, "a record of another model: is it larger?"


def test_the_citation_is_that_of_the_documentation() -> None:
    (entry,) = re.findall(r"```bibtex\n(.*?)```", README, re.DOTALL)
    assert entry.strip() in (ROOT / "docs" / "citing.md").read_text(encoding="utf-8")
