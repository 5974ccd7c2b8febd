"""Results on disk survive kills, belong to one thing, and are written by one process."""

from __future__ import annotations

import json

import pytest

from attendre_core.errors import StateError
from attendre_core.evaluation.sweep import Cell, Measured, ResultStore, read_results

IDENTITY = {"task": "made-up", "model": "none", "chunk": 16, "depth": None}
CELL = Cell("MT", 16, 0)


def test_results_survive(tmp_path):
    file = tmp_path / "results.jsonl"
    with ResultStore(file, IDENTITY) as store:
        store.append(CELL, [("a", {"score": 1 / 3}), ("b", {"score": -2.0, "bytes": 12.0})])
        there = store.measured
    with ResultStore(file, IDENTITY) as store:
        assert store.done(CELL) == {"a", "b"}
        assert store.done(Cell("MT", 16, 8)) == set()
        assert store.measured == there
    identity, measured = read_results(file)
    assert identity == IDENTITY
    assert measured == [
        Measured(CELL, {"a": {"score": 0.33333}, "b": {"score": -2.0, "bytes": 12.0}})
    ]
    lines = file.read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_without_a_file_results_are_the_same(tmp_path):
    scores = [("a", {"score": 1 / 3}), ("b", {"score": -2.0})]
    with ResultStore(None, IDENTITY) as kept, ResultStore(tmp_path / "r", IDENTITY) as written:
        for store in (kept, written):
            store.append(CELL, scores)
            store.append(Cell("AS", 16, 0), scores[:1])
        assert kept.measured == written.measured
        assert kept.done(CELL) == {"a", "b"}
    assert kept.measured == read_results(tmp_path / "r")[1]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_line_that_was_cut_short_is_measured_again(tmp_path, cut):
    file = tmp_path / "results.jsonl"
    with ResultStore(file, IDENTITY) as store:
        store.append(CELL, [("a", {"score": 1.0})])
        store.append(CELL, [("b", {"score": 2.0})])
    file.write_bytes(file.read_bytes()[:-cut])
    with ResultStore(file, IDENTITY) as store:
        assert store.done(CELL) == {"a"}
        store.append(CELL, [("b", {"score": 2.0})])
    assert [list(found.scores) for found in read_results(file)[1]] == [["a", "b"]]


def test_a_header_that_was_cut_short_is_written_again(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_text('{"attendre-ev')
    with ResultStore(file, IDENTITY) as store:
        store.append(CELL, [("a", {"score": 1.0})])
    assert read_results(file)[0] == IDENTITY


def test_results_of_something_else_are_refused(tmp_path):
    file = tmp_path / "results.jsonl"
    with ResultStore(file, IDENTITY):
        pass
    before = file.read_bytes()
    with pytest.raises(StateError, match="chunk 16, now 32.*--out"):
        ResultStore(file, {**IDENTITY, "chunk": 32})
    with pytest.raises(StateError, match="model 'none', now 'other'"):
        ResultStore(file, {**IDENTITY, "model": "other"})
    with pytest.raises(StateError, match="seed None, now 3"):
        ResultStore(file, {**IDENTITY, "seed": 3})
    assert file.read_bytes() == before


FIRST = json.dumps({"attendre-eval": 1, **IDENTITY}) + "\n"
LINE = b'{"policy": "MT", "kv": 16, "q": 0, "item": "a", "score": 1.5}\n'
FOREIGN = {
    "an object": b'{"name": "not ours"}\n',
    "no newline": b"notes that took a year",
    "no newline at the end": b"one line\nand another",
    "no text": b"\xff\xfe\n\x00",
    "the first line of other settings, cut short": b'{"attendre-eval": 1, "task": "other"',
    "nested too deep": FIRST.encode() + b"[" * 100_000 + b"\n",
    "a line of others at the end": FIRST.encode() + LINE + b"some text",
    "a size that is a flag": FIRST.encode() + LINE.replace(b"16", b"true"),
    "a size that is no whole number": FIRST.encode() + LINE.replace(b"16", b"1.5"),
    "a name that is a list": FIRST.encode() + LINE.replace(b'"MT"', b'["MT"]'),
    "a name that cannot be written": FIRST.encode() + LINE.replace(b"MT", b"\\ud800"),
    "a score that is a text": FIRST.encode() + LINE.replace(b"1.5", b'"1.5"'),
    "a score too large": FIRST.encode() + LINE.replace(b"1.5", b"1" + 4000 * b"0"),
    "too many digits": FIRST.encode() + LINE.replace(b"1.5", b"1" + 5000 * b"0"),
    "an empty line": FIRST.encode() + b"\n",
    "a line without end": b"[" + 2**24 * b" " + b"]\n",
    "a size without end": FIRST.encode() + b'{"policy": "MT", "kv": Infinity, "q": 0}\n',
}


@pytest.mark.parametrize("contents", FOREIGN.values(), ids=FOREIGN)
def test_files_of_others_are_refused_and_not_touched(tmp_path, contents):
    file = tmp_path / "results.jsonl"
    file.write_bytes(contents)
    with pytest.raises(StateError, match="is not a results file of attendre"):
        ResultStore(file, IDENTITY)
    assert file.read_bytes() == contents


@pytest.mark.parametrize("depth", [400, 900, 2_000, 20_000, 100_000])
def test_first_lines_that_are_nested_deep(tmp_path, depth):
    file = tmp_path / "results.jsonl"
    contents = FIRST[:-2] + ', "more": ' + "[" * depth + "]" * depth + "}\n"
    file.write_text(contents)
    with pytest.raises(StateError, match="other settings|is not a results file"):
        ResultStore(file, IDENTITY)
    assert file.read_text() == contents


def test_zeros_that_a_system_left_are_cut_off(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_bytes(FIRST.encode() + LINE + bytes(100))
    with ResultStore(file, IDENTITY) as store:
        assert store.done(CELL) == {"a"}
    assert file.read_bytes() == FIRST.encode() + LINE


def test_scores_without_end_are_kept(tmp_path):
    """A loss may overflow; that is a result."""
    file = tmp_path / "results.jsonl"
    with ResultStore(file, IDENTITY) as store:
        store.append(CELL, [("a", {"loss": float("inf")}), ("b", {"loss": float("nan")})])
    with ResultStore(file, IDENTITY) as store:
        (found,) = store.measured
    assert found.column("loss")["a"] == float("inf")
    assert found.column("loss")["b"] != found.column("loss")["b"]


def test_two_processes_cannot_write_one_file(tmp_path):
    pytest.importorskip("fcntl")
    file = tmp_path / "results.jsonl"
    with (
        ResultStore(file, IDENTITY),
        pytest.raises(StateError, match="written by another process"),
    ):
        ResultStore(file, IDENTITY)
