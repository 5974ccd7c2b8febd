"""Ray Data: an actor is killed at its work, and every document has its vector, once."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core.integrations import ray_data

pytest.importorskip("tokenizers")
pyarrow = pytest.importorskip("pyarrow")

PROGRAM = Path(__file__).with_name("ray_program.py")
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs ray: nox -s integrations"
)


def documents():
    """Return the documents of the program without importing Ray into this process."""
    text = PROGRAM.read_text(encoding="utf-8")
    start, stop = text.index("DOCUMENTS ="), text.index("def workers")
    namespace: dict = {}
    exec(compile(text[start:stop], str(PROGRAM), "exec", dont_inherit=True), namespace)
    return namespace["documents"]()


def rows_in(folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [row for file in folder.glob("*") for row in parquet.read_table(file).to_pylist()]
    return sorted(rows, key=lambda row: row["id"])


@needs_ray
@pytest.mark.thorough
def test_nothing_is_lost_or_twice_when_a_worker_is_killed(tmp_path, byte_llama, word_tagger):
    command = [sys.executable, str(PROGRAM), str(byte_llama), str(word_tagger), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    wanted = documents()
    written = json.loads(done.stdout.splitlines()[-1])["written"]
    assert written, "nothing was killed"
    assert 0 < written[0] < len(wanted) // 2, "it was not killed at its work"
    for kind in ("vectors", "spans"):
        found = [(row["id"], row["text"]) for row in rows_in(tmp_path / kind)]
        assert found == [(row["id"], row["text"]) for row in wanted]
    texts = [row["text"] for row in wanted]
    vectors = at.load(byte_llama, memory=64).embed(texts, "mean", True)
    got = [row["vector"] for row in rows_in(tmp_path / "vectors")]
    np.testing.assert_allclose(got, vectors, atol=1e-5)
    tagger = at.pipeline("token-classification", word_tagger, memory=64)
    for row, spans in zip(rows_in(tmp_path / "spans"), tagger(texts), strict=True):
        assert [(s["label"], s["start"], s["end"]) for s in row["spans"]] == [
            (span.label, span.start, span.end) for span in spans
        ]
    assert any(row["spans"] for row in rows_in(tmp_path / "spans"))


def test_what_an_actor_does_with_a_batch(byte_llama, word_tagger):
    """Columns are kept, the same type comes out of every batch, and a result may be made anew."""
    settings = {"memory": 64}
    embed = ray_data._Embedder(str(byte_llama), settings, "body", "vector", {"pooling": "max"})
    tag = ray_data._Tagger(str(word_tagger), settings, "body", "spans")
    batch = pyarrow.table({"n": [1, 2], "body": ["Ada Lovelace lived in London.", "Nobody."]})
    both = tag(embed(batch))
    assert both.column_names == ["n", "body", "vector", "spans"]
    first, second = both.to_pylist()
    assert [span["text"] for span in first["spans"]] == ["Ada Lovelace", "London"]
    assert second["spans"] == []
    want = at.load(byte_llama, **settings).embed(["Nobody."], "max")
    np.testing.assert_allclose(second["vector"], want[0], rtol=1e-4, atol=1e-5)
    assert tag(embed(batch.slice(1))).schema == both.schema
    assert embed(both).column_names == ["n", "body", "spans", "vector"]
    with pytest.raises(at.ConfigError, match="no column 'body', only text"):
        tag(pyarrow.table({"text": ["One."]}))
    with pytest.raises(at.ConfigError, match="row 1 of a batch has a NoneType under 'body'"):
        embed(pyarrow.table({"body": ["One.", None]}))


@needs_ray
def test_what_is_no_dataset_is_refused():
    with pytest.raises(at.ConfigError, match="dataset is a list, expected a ray.data.Dataset"):
        ray_data.embed_dataset([{"text": "One."}], "model")


def test_without_ray_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(at.ConfigError, match=r"pip install 'attendre-core\[ray\]'"):
        ray_data.tag_dataset([], "model")
