"""The tables of the guide are those of the results beside it, and hold what is promised."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from attendre_core.cli import build_parser
from attendre_core.cli.eval_cells import cells_for, names_of
from attendre_core.cli.eval_tasks import task_of
from attendre_core.evaluation.controls import SIZELESS, label_of
from attendre_core.evaluation.intervals import Interval
from attendre_core.evaluation.sweep import Cell, Measured, read_results
from attendre_core.evaluation.sweep.summary import paired, where_reading_helps
from attendre_core.evaluation.tasks import TriviaQA

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


def recorded(name):
    """Return what a results file holds, systems under their canonical names."""
    header, measured = read_results(RESULTS / f"{name}.jsonl")
    return header, [
        Measured(m.cell._replace(policy=label_of(m.cell.policy)), m.scores) for m in measured
    ]


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
def test_the_commands_of_the_page_make_the_tables(page, name, decoder):
    """The commands above a table measure exactly its systems and sizes, at the same settings."""
    header, measured = recorded(name)
    before = page[: page.index(f"<!-- begin {name} -->")]
    block = re.findall(r"```console\n(attendre eval .*?)```", before, re.DOTALL)[-1]
    planned = set()
    for command in block.replace("\\\n", " ").strip().splitlines():
        given = build_parser().parse_args(command.split()[1:])
        task, chunk, top_k = task_of(given)
        settings = task.identity()
        # The data itself need not be here.
        del settings["sha256"]
        settings |= {"task": given.task, "model": given.model, "chunk": chunk, "top_k": top_k}
        assert settings.items() <= header.items()
        controls = () if given.no_controls else task.controls
        names, sizes = names_of(given.policies), [int(size) for size in given.size]
        # Which model reads does not matter: sizes are numbers of entries.
        planned |= set(cells_for(decoder, names, controls, sizes, given.wait, chunk, top_k))
        if given.limit is not None:
            assert {len(found.scores) for found in measured} == {given.limit}
    assert {found.cell for found in measured} == planned


def test_a_hundred_real_questions_stand_behind_every_row():
    header, measured = recorded("triviaqa-smollm2")
    items = {frozenset(found.scores) for found in measured}
    assert len(items) == 1
    assert min(len(names) for names in items) >= 100
    assert header["template"] == "Question: {question}\n\nContext: {context}\n\nAnswer: "
    # Scores and names of questions, none of their texts.
    assert all(re.fullmatch(r"test_\d+", name) for names in items for name in names)


# ---------------------------------------------------------------- what the page says in words

FIRST, SEEN = "LRA-sum+softmax+c=0", "LRA-sum+softmax+c=0+visible"
QUOTA = "LRA-sum+softmax+quota=0.5"


def gap(name, one, other, metric, *, helped=False):
    """Return how much more of a metric one cell has than another, paired by item."""
    _, measured = recorded(name)
    if helped:
        measured = where_reading_helps(measured, TriviaQA.metrics[0])
    cells = {found.cell: found for found in measured}
    return paired(cells[one], cells[other], metric)


def more(name, one, other, metric, **options):
    return gap(name, one, other, metric, **options).low > 0


def alike(name, one, other, metric, **options):
    return not gap(name, one, other, metric, **options).excludes_zero


@pytest.mark.parametrize("helped", [False, True])
def test_the_words_about_questions(helped):
    def at(policy):
        return Cell(policy, 0 if policy in SIZELESS else 256, 0)

    def better(one, other):
        return more("triviaqa-smollm2", at(one), at(other), "log_likelihood", helped=helped)

    def same(one, other):
        return alike("triviaqa-smollm2", at(one), at(other), "log_likelihood", helped=helped)

    assert better("AS", "MT")
    assert better(FIRST, "AS")
    assert better(SEEN, FIRST)
    assert better(SEEN, "pinned")
    assert better(QUOTA, FIRST)
    assert better(QUOTA, "pinned")
    assert same(QUOTA, SEEN)
    assert same("MT", "no-memory")
    assert same("pinned", FIRST)
    if helped:
        assert same("first-M", "closed-book")
        assert same("LFA-1e-3", SEEN)
    else:
        assert same("full", "closed-book")
        assert all(better("LFA-1e-3", name) for name in ("MT", "AS", FIRST, "pinned", "random"))


def test_the_words_about_streams():
    alone = Cell("no-memory", 0, 0)

    def at(policy, kv=256):
        return Cell(policy, kv, 0)

    book, wiki = "perplexity-smollm2", "perplexity-smollm2-wikitext"
    assert more(book, at("MT"), alone, "loss")
    assert more(wiki, alone, at("MT"), "loss")
    refusing = ("LFA-1e-3", QUOTA, "first-M", "random")
    assert all(more(book, at(name), at("MT"), "loss") for name in refusing)
    same = gap(book, at(SEEN), at(f"{QUOTA}+visible"), "loss")
    assert same == Interval(0.0, 0.0, 0.0)
    assert alike(book, at(SEEN), at("TOVA"), "loss")
    assert alike(book, at(SEEN), at("H2O"), "loss")
    assert more(book, at(FIRST), at(SEEN), "loss")
    assert all(more(wiki, at("MT"), at(name), "loss") for name in ("AS", FIRST))
    assert all(more(wiki, at(name), at(SEEN), "loss") for name in ("AS", FIRST))
    for name, preset in ((book, SEEN), (wiki, SEEN)):
        equal = gap(name, at(FIRST, 384), at(preset), "loss")
        assert max(map(abs, equal)) < 1e-3


def test_the_words_about_an_encoder():
    def better(one, other, metric="cosine"):
        return more("embedding-minilm", Cell(*one), Cell(*other), metric)

    others = ("MT", "AS", "LFA-1e-3", "LFA-1e-3+c=0", "first-M", "random", "pinned")
    for m in (64, 128):
        assert better(("MT", m, 0), ("MT", m, m // 2))
        assert better(("attendre", m, m // 2), ("attendre", m, 0))
        assert better(("MT", m, 0), ("LFA-1e-3", m, 0))
        assert all(
            better(("attendre", m, m // 2), (name, m, m // 2))
            for name in (*others, "attendre+fixed")
        )
        for n in (0, m // 2):
            for ours in ("attendre", "attendre+fixed"):
                behind = [x for x in others if (x, m, n) != ("LFA-1e-3+c=0", 128, 0)]
                assert all(better((ours, m, n), (x, m, n), "token_cosine") for x in behind)
    assert better(("AS", 128, 0), ("attendre", 128, 0))
