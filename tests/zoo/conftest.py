"""What the tests of the models share: instances of transformers, saved and loaded by us."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

#: Largest difference of logits, relative to the largest logit.
TOLERANCE = 1e-4
#: Real models and texts that are not part of this repository, beside it.
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(params=["numpy", "torch", "jax"])
def library(request: pytest.FixtureRequest) -> str:
    """Name of a backend whose library is installed."""
    pytest.importorskip(request.param)
    return str(request.param)


@pytest.fixture
def randomised() -> Callable[..., Any]:
    """Give a model of transformers weights that make every part of it matter."""
    torch = pytest.importorskip("torch")

    def fill(model: Any, seed: int = 0, spread: float = 0.2) -> Any:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                if parameter.ndim > 1:
                    parameter.copy_(noise * spread)
                else:
                    parameter.add_(noise * 0.1)
        return model.eval()

    return fill


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], Path]:
    """Save a model of transformers into a folder of its own."""
    number = iter(range(1000))

    def save(model: Any) -> Path:
        folder = tmp_path / f"model-{next(number)}"
        model.save_pretrained(folder)
        return folder

    return save


def in_numpy(model: Any, array: Any) -> Any:
    """Turn an array of a model's backend into NumPy."""
    return np.asarray(model.backend.to_numpy(array))


@pytest.fixture
def difference() -> Callable[[Any, Any, Any], float]:
    """Return the largest difference, relative to the largest number that is expected."""

    def measured(model: Any, got: Any, want: Any) -> float:
        got, want = in_numpy(model, got), np.asarray(want)
        assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
        return float(np.abs(got - want).max() / np.abs(want).max())

    return measured


@pytest.fixture
def tolerance() -> float:
    """Return the largest relative difference that counts as equal."""
    return TOLERANCE


@pytest.fixture
def data_folder() -> Path:
    """Folder of real models and texts; skips where it is not there."""
    if not DATA.is_dir():
        pytest.skip(f"needs the folder of real models and texts at {DATA}")
    return DATA
