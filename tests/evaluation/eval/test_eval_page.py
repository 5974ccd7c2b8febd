"""The tables of the guide are those of the results beside it, and hold what is promised."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from attendre_core.cli import build_parser
from attendre_core.cli.eval_tasks import benchmark_of
from attendre_core.evaluation.sweep import cells_of, read_results

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"


@pytest.fixture(scope="module")
def writing() -> ModuleType:
    file = RESULTS / "write_checkpoint_tables.py"
    spec = importlib.util.spec_from_file_location("write_checkpoint_tables", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(writing: ModuleType) -> str:
    return writing.PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_results(writing, page):
    assert writing.BLOCK.search(page)
    assert page == writing.written(page), "run docs/results/write_checkpoint_tables.py"


def test_a_table_that_was_changed_by_hand_is_noticed(writing, page):
    changed = page.replace("| MT | 256 | 0 |", "| MT | 257 | 0 |", 1)
    assert changed != page
    assert writing.written(changed) == page


@pytest.mark.parametrize(
    "name",
    [
        "triviaqa-smollm2",
        "perplexity-smollm2",
        "perplexity-smollm2-wikitext",
        "embedding-minilm",
    ],
)
def test_the_commands_of_the_page_make_the_tables(page, name):
    """The commands above a table measure exactly its systems and sizes, at the same settings."""
    header, records = read_results(RESULTS / f"{name}.jsonl")
    before = page[: page.index(f"<!-- begin {name} -->")]
    block = re.findall(r"```console\n(attendre eval .*?)```", before, re.DOTALL)[-1]
    planned = set()
    for command in block.replace("\\\n", " ").strip().splitlines():
        given = build_parser().parse_args(command.split()[1:])
        benchmark, chunk, top_k = benchmark_of(given)
        settings = benchmark.identity()
        # The data itself need not be here.
        del settings["sha256"]
        settings |= {"task": given.task, "model": given.model, "chunk": chunk, "top_k": top_k}
        assert settings.items() <= header.items()
        controls = () if given.no_controls else benchmark.controls
        planned |= set(cells_of(given.policies, controls, given.kv, given.q))
        if given.limit is not None:
            assert len({record.item for record in records}) == given.limit
    assert {record.cell for record in records} == planned


def test_a_hundred_real_questions_stand_behind_every_row():
    header, records = read_results(RESULTS / "triviaqa-smollm2.jsonl")
    items: dict[object, set[str]] = {}
    for record in records:
        items.setdefault(record.cell, set()).add(record.item)
    assert min(len(found) for found in items.values()) >= 100
    assert len({frozenset(found) for found in items.values()}) == 1
    assert header["template"] == "Question: {question}\n\nContext: {context}\n\nAnswer: "
    # Scores and names of questions, none of their texts.
    assert all(re.fullmatch(r"test_\d+", record.item) for record in records)
