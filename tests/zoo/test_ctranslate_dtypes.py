"""Kinds of numbers in a made-up folder with tensors named by CTranslate2."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves
from attendre_core.zoo.architectures.ctranslate import CTranslate
from attendre_core.zoo.config import RawConfig

numpy_files = pytest.importorskip("safetensors.numpy")

SIZES = {"layers": 1, "vocabulary": 9, "ffn_dim": 12}
ROWS = [[3, 4, 5, 6], [7, 8]]
QUANTISED = "encoder/layer_0/ffn/linear_0/weight"


@pytest.fixture
def written(tmp_path):
    """Write the folder with numbers of one kind, and what `change` makes of the tensors."""
    sizes = {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in SIZES.items()}
    config = RawConfig({"d_model": 8, "num_heads": 2, "decoder_start_token_id": 1, **sizes}, "here")
    rng = np.random.default_rng(0)
    parts: dict[str, list[np.ndarray]] = {}
    for tensor in tree_leaves(CTranslate.from_config(config).parameters()):
        # Some are stored in one tensor, one below the other.
        parts.setdefault(tensor.name, []).append(0.5 * rng.standard_normal(tensor.shape))
    tensors = {name: np.concatenate(found) for name, found in parts.items()}
    (tmp_path / "config.json").write_text(json.dumps({"num_heads": 2}))

    def write(kind, change=lambda tensors: None):
        own = {name: array.astype(kind) for name, array in tensors.items()}
        change(own)
        numpy_files.save_file(own, tmp_path / "model.safetensors")
        return tmp_path

    return write


@pytest.mark.parametrize(("kind", "tolerance"), [("float16", 1e-2), ("float64", 1e-5)])
def test_other_floats_are_the_same_model(written, kind, tolerance):
    want = at.load(written("float32")).logits(ROWS, [[1, 3], [1, 4]])
    found = at.load(written(kind)).logits(ROWS, [[1, 3], [1, 4]])
    np.testing.assert_allclose(found, want, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "bool"])
def test_quantised_weights_are_refused(written, kind):
    """As the converter of CTranslate2 writes them: whole numbers, and what to multiply them by."""

    def quantised(tensors):
        tensors[QUANTISED] = np.ones(tensors[QUANTISED].shape, kind)
        tensors[f"{QUANTISED}_scale"] = np.ones(12, np.float32)

    with pytest.raises(at.CheckpointError, match=rf"{QUANTISED} is stored as \w+, expected one of"):
        at.load(written("float32", quantised))
