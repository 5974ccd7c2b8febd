"""`attendre embed`, as users run it: folders to tables, through kills and unreadable files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core import progress
from attendre_core.cli import main
from attendre_core.corpus import embedding as corpus_embedding

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

WORDS = "the memory forgot what nobody had asked for and kept the rest".split()  # noqa: SIM905


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """150 documents, short and long, in the folder where the command runs."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    (tmp_path / "docs/deep").mkdir(parents=True)
    for number in range(20):
        text = " ".join(rng.choice(WORDS, size=rng.integers(1, 60)))
        (tmp_path / f"docs/{'deep/' * (number % 2)}{number:02}.txt").write_text(text)
    rows = [{"id": f"row {n}", "text": " ".join(rng.choice(WORDS, size=3))} for n in range(130)]
    (tmp_path / "docs/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def embed(byte_llama, capsys):
    """Run the command; return its exit code, what it printed, and its errors."""

    def run(*arguments, memory="64"):
        words = ["embed", "--model", str(byte_llama), "--memory", memory, *map(str, arguments)]
        code = main(words)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def table(path):
    """Read a table as ``{id: (tokens, vector)}``, whatever its format; no id is there twice."""
    if Path(path).suffix == ".jsonl":
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    found = {row["id"]: (row["tokens"], np.asarray(row["vector"], np.float32)) for row in rows}
    assert len(found) == len(rows)
    return found


def same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name][0] == other[name][0]
        np.testing.assert_allclose(one[name][1], other[name][1], atol=1e-6)


def test_vectors_are_those_of_the_model(folder, embed, byte_llama):
    code, _, errors = embed("--out", "v.parquet", "--normalize", "docs")
    assert code == 0, errors
    found = table("v.parquet")
    assert len(found) == 150
    model = at.load(byte_llama, memory=64)
    texts = {path.as_posix(): path.read_text() for path in Path("docs").rglob("*.txt")}
    assert set(texts) < set(found)
    for name, text in list(texts.items())[:4]:
        tokens, vector = found[name]
        assert tokens == len(model.tokens(text)) > 0
        mean = np.asarray(model.encode(text), dtype=np.float64)[0].mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)
    arrow = pytest.importorskip("pyarrow.parquet").read_schema("v.parquet")
    assert str(arrow.field("vector").type).startswith("fixed_size_list")
    notes = json.loads(arrow.metadata[b"attendre"])
    assert notes["memory"] == "attendre-causal:64"
    assert notes["pooling"] == "mean"
    assert not list(Path().glob("v.parquet.*"))


def test_progress_goes_to_stderr_in_lines(folder, embed, monkeypatch):
    monkeypatch.setattr(progress, "_LINE_PAUSE", 0)
    code, out, errors = embed("--out", "v.jsonl", "docs")
    assert code == 0
    assert "embedding" not in out
    lines = [line for line in errors.splitlines() if line.startswith("embedding: ")]
    assert [line.split()[1] for line in lines] == ["64", "128", "150"]


KILLED = """
import os, signal, sys
from attendre_core.cli import main
from attendre_core.corpus import embedding as corpus_embedding
from attendre_core.cli import embed

class Bar:
    done = 0
    def update(self, count):
        Bar.done += count
        if Bar.done >= 128:  # after the second write of 64
            with open("v.jsonl.journal", "a") as file:
                file.write('{"id": "cut sh')
            os.kill(os.getpid(), signal.SIGKILL)

embed.progress_bar = lambda *arguments, **options: Bar()
main(sys.argv[1:])
"""


def test_a_killed_run_continues_and_nothing_is_lost_or_twice(folder, embed, byte_llama):
    arguments = ("--out", "v.jsonl", "docs")
    command = ["embed", "--model", str(byte_llama), "--memory", "64", *arguments]
    died = subprocess.run([sys.executable, "-c", KILLED, *command], check=False)
    assert died.returncode == -signal.SIGKILL
    assert not Path("v.jsonl").exists()
    # Other settings are refused, and cost nothing.
    journal = Path("v.jsonl.journal").read_bytes()
    code, _, errors = embed(*arguments, "--pooling", "max")
    assert code == 2
    assert "pooling 'mean', now 'max'" in errors
    code, _, errors = embed(*arguments, memory="32")
    assert code == 2
    assert "memory 'attendre-causal:64', now 'attendre-causal:32'" in errors
    assert Path("v.jsonl.journal").read_bytes() == journal
    # A document that was changed meanwhile is embedded again, a deleted one is not in the table.
    Path("docs/00.txt").write_text("changed")
    Path("docs/02.txt").unlink()
    code, out, errors = embed(*arguments, "--json")
    assert code == 0, errors
    summary = json.loads(out)
    assert summary["documents"] == 149
    assert summary["embedded"] == 150 - 128 + 1
    assert not Path("v.jsonl.journal").exists()
    assert embed("--out", "whole.jsonl", "docs")[0] == 0
    same(table("v.jsonl"), table("whole.jsonl"))


def test_an_interrupted_run_says_that_it_continues(folder, embed, monkeypatch):
    """Ctrl-C after the first write of 64; no terminal, so progress comes in lines."""
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr("attendre_core.progress.time.monotonic", lambda: next(clock))
    writes = corpus_embedding.Journal.append

    def append(journal, lines):
        writes(journal, lines)
        if journal.path.read_bytes().count(b"\n") > 65:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus_embedding.Journal, "append", append)
        code, out, errors = embed("--out", "v.jsonl", "docs")
    assert (code, out) == (130, "")
    assert errors.splitlines()[-1] == (
        "embed: interrupted; what is done is in v.jsonl.journal, and the same command continues."
    )
    code, out, _ = embed("--out", "v.jsonl", "docs")
    assert code == 0
    assert "128 of them were there from an earlier run" in out
    assert embed("--out", "whole.jsonl", "docs")[0] == 0
    same(table("v.jsonl"), table("whole.jsonl"))


def test_what_cannot_be_read_is_named_and_the_rest_is_done(folder, embed):
    Path("docs/latin.txt").write_bytes(b"caf\xe9")
    Path("docs/.hidden").write_text("secret")
    arguments = ("--out", "docs/v.jsonl", "docs", "none.txt")
    code, out, errors = embed(*arguments)
    assert code == 2
    assert "skipped 1 hidden: docs/.hidden" in out
    assert "docs/latin.txt: not UTF-8 (byte 3)" in errors
    assert "none.txt: there is no such file" in errors
    assert len(table("docs/v.jsonl")) == 150
    # Repaired, the same command adds what was missing and embeds nothing else.
    Path("docs/latin.txt").write_text("café")
    code, out, errors = embed(*arguments[:-1], "--json")
    assert code == 0, errors
    assert json.loads(out)["embedded"] == 1
    assert "docs/latin.txt" in table("docs/v.jsonl")
    # What is complete is not overwritten.
    code, _, errors = embed(*arguments)
    assert code == 2
    assert "exists and is complete" in errors


def test_what_an_earlier_run_did_is_not_left_out_of_the_table(folder, embed):
    Path("latin.txt").write_bytes(b"caf\xe9")
    arguments = ("--out", "v.jsonl", "docs/rows.jsonl", "docs/00.txt", "latin.txt")
    assert embed(*arguments)[0] == 2
    before = Path("v.jsonl").read_bytes(), Path("v.jsonl.journal").read_bytes()
    # Repaired, and now alone: the table would have nothing else.
    Path("latin.txt").write_text("café")
    code, _, errors = embed("--out", "v.jsonl", "latin.txt")
    assert code == 2
    assert "documents of docs/00.txt, docs/rows.jsonl from an earlier run" in errors
    assert (Path("v.jsonl").read_bytes(), Path("v.jsonl.journal").read_bytes()) == before
    # Another way to say the same files, and one that is gone.
    Path("docs/00.txt").unlink()
    code, out, errors = embed("--out", "v.jsonl", "latin.txt", "docs/../docs/rows.jsonl")
    assert code == 0, errors
    assert "131 documents" in out
    assert "docs/00.txt" not in table("v.jsonl")
    code, out, _ = embed("--out", "one.jsonl", "latin.txt")
    assert out == f"one.jsonl: 1 document, {table('one.jsonl')['latin.txt'][0]} tokens\n"


def test_poolings(folder, embed, byte_llama):
    arguments = ("docs/00.txt", "docs/02.txt")
    code, _, errors = embed("--pooling", "cls", "--out", "cls.jsonl", *arguments)
    assert code == 2
    assert "this model reads only forwards" in errors
    for pooling in ("max", "last"):
        out = f"{pooling}.jsonl"
        assert embed("--pooling", pooling, "--out", out, *arguments)[0] == 0
        tokens, vector = table(out)["docs/00.txt"]
        states = np.asarray(at.load(byte_llama, memory=64).encode(Path("docs/00.txt").read_text()))
        want = {"max": states[0].max(axis=0), "last": states[0, tokens - 1]}
        np.testing.assert_allclose(vector, want[pooling], atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "v.csv", "docs"), "expected .parquet or .jsonl"),
        (("--out", "no/v.jsonl", "docs"), "there is no folder no"),
        (("--out", "v.jsonl", "docs/.git"), "there is no document to embed.*no such file"),
        (("--out", "v.jsonl", "--batch-size", "0", "docs"), ""),
    ],
)
def test_impossible_requests(folder, embed, arguments, message, capsys):
    if not message:
        with pytest.raises(SystemExit):
            embed(*arguments)
        return
    code, _, errors = embed(*arguments)
    assert code == 2
    assert re.search(message, errors)
    assert not list(Path().glob("v.*"))
