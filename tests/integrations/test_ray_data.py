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

PROGRAM = Path(__file__).with_name("ray_program.py")

for package in ("ray", "tokenizers"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: nox -s integrations", allow_module_level=True)


def program():
    """Return the documents of the program without importing Ray into this process."""
    text = PROGRAM.read_text(encoding="utf-8")
    start, stop = text.index("DOCUMENTS ="), text.index("def workers")
    namespace: dict = {}
    exec(compile(text[start:stop], str(PROGRAM), "exec", dont_inherit=True), namespace)
    return namespace["documents"]()


@pytest.mark.thorough
def test_nothing_is_lost_or_twice_when_a_worker_is_killed(tmp_path, byte_llama):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "vectors"
    command = [sys.executable, str(PROGRAM), str(byte_llama), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["killed"], "it ended before it was killed"
    rows = [row for file in out.glob("*.parquet") for row in parquet.read_table(file).to_pylist()]
    wanted = program()
    assert sorted(row["id"] for row in rows) == [row["id"] for row in wanted]
    rows.sort(key=lambda row: row["id"])
    assert [row["text"] for row in rows] == [row["text"] for row in wanted]
    model = at.load(byte_llama, memory=64)
    vectors = model.embed([row["text"] for row in wanted], "mean", True)
    np.testing.assert_allclose([row["vector"] for row in rows], vectors, atol=1e-5)


def test_what_is_no_dataset_is_refused():
    from attendre_core.integrations.ray_data import embed_dataset

    pytest.importorskip("ray.data")
    with pytest.raises(at.ConfigError, match="dataset is a list, expected a ray.data.Dataset"):
        embed_dataset([{"text": "One."}], "model")
