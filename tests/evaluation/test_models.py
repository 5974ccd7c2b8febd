"""The shipped models: whole, small, good at what they were trained on, and loaded anywhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.evaluation import load_tiny, measure, system
from attendre_core.evaluation.tasks import SYNTHETIC
from attendre_core.evaluation.tiny import shipped
from attendre_core.evaluation.tiny.recipe import MODELS
from attendre_core.evaluation.tiny.shipped import manifest
from attendre_core.zoo.model import Model

FOLDER = Path(shipped.__file__).parent


def test_they_are_small() -> None:
    files = [path for name in MODELS for path in (FOLDER / name).iterdir()]
    assert {path.name for path in files} == {"config.json", "model.safetensors"}
    assert sum(path.stat().st_size for path in files) < 2_000_000


@pytest.mark.parametrize("name", MODELS)
def test_the_manifest_says_how_they_were_made(name: str) -> None:
    known = manifest()["models"][name]
    assert known["bytes"] == (FOLDER / name / "model.safetensors").stat().st_size
    assert known["parameters"] == load_tiny(name).parameter_count
    assert set(known["short_context_accuracy"]) == {
        f"{task}, {answers}" for task in SYNTHETIC for answers in ("repeat", "single")
    }
    assert min(known["short_context_accuracy"].values()) >= 0.99


def test_they_were_made_in_a_quarter_of_an_hour() -> None:
    assert sum(manifest()["models"][name]["seconds"] for name in MODELS) < 15 * 60


def test_they_answer_what_they_were_trained_on(tiny: Model) -> None:
    for task in SYNTHETIC.values():
        documents = list(task("single").documents(77, 50, chunks=(3, 8)))
        assert measure(tiny, documents, system("full", 16)).right.mean() > 0.95


@pytest.mark.parametrize("name", MODELS)
def test_load_reads_the_same_folder(name: str) -> None:
    pytest.importorskip("safetensors")
    ours = load_tiny(name)
    loaded = at.load(FOLDER / name, attention=ours.attention)
    rows = [[1, 60, 61, 4, 2, 70, 30, 12, 3], [1, 60, 61, 5, 3]]
    assert np.array_equal(loaded.logits(rows), ours.logits(rows))


def test_numpy_is_enough() -> None:
    """No other package is imported, not even if it is there."""
    script = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("safetensors", "torch", "jax", "tqdm", "matplotlib"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
from attendre_core.evaluation import load_tiny
print([load_tiny(name).parameter_count for name in ("prefix-lm", "encoder-decoder")])
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    counts = [manifest()["models"][name]["parameters"] for name in ("prefix-lm", "encoder-decoder")]
    assert json.loads(result.stdout) == counts


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "prefix-lm", tmp_path / "prefix-lm")
    shutil.copy(FOLDER / "manifest.json", tmp_path)
    assert load_tiny("prefix-lm", folder=tmp_path).parameter_count
    file = tmp_path / "prefix-lm" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="SHA-256 .* as the manifest says"):
        load_tiny("prefix-lm", folder=tmp_path)
    file.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tiny("prefix-lm", folder=tmp_path)


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match="'gpt' is not known; known are prefix-lm"):
        load_tiny("gpt")
