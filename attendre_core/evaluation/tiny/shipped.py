"""Load the tiny models that ship with the package; their checksums are verified."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

from attendre_core.backend import Backend
from attendre_core.backend import backend as look_up
from attendre_core.errors import CheckpointError
from attendre_core.evaluation.tiny.recipe import architecture
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.config import RawConfig, read_json
from attendre_core.zoo.loading.checkpoint import Stored, load_parameters
from attendre_core.zoo.loading.folder import mapped_tensors
from attendre_core.zoo.model import Model

__all__ = ["load_tiny", "manifest"]

_HERE = Path(__file__).parent


def manifest(folder: Path = _HERE) -> dict[str, Any]:
    """Return the manifest of the shipped models: hash, recipe, seed, accuracy and more.

    Examples
    --------
    >>> from attendre_core.evaluation.tiny.recipe import MODELS
    >>> sorted(manifest()["models"]) == sorted(MODELS)
    True
    """
    return cast("dict[str, Any]", read_json(folder / "manifest.json"))


def load_tiny(
    name: str,
    memory: MemoryConfig | None = None,
    backend: str | Backend = "numpy",
    *,
    folder: Path = _HERE,
) -> Model:
    """Load a model that ships with the package; this needs only NumPy.

    Parameters
    ----------
    name
        ``"prefix-lm"`` (rotary positions, reads in both directions) or ``"encoder-decoder"``
        (T5's relative positions).
    memory, backend
        As in `attendre_core.load`, which loads the same folders.
    folder
        The folder of the models and their manifest; by default that of the package.

    Examples
    --------
    >>> load_tiny("prefix-lm").causal
    False
    """
    tiny = architecture(name)
    file = folder / name / "model.safetensors"
    wanted = manifest(folder)["models"][name]["sha256"]
    try:
        given = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from error
    if given != wanted:
        raise CheckpointError(
            f"{file}: has the SHA-256 {given[:16]}..., expected {wanted[:16]}... as the manifest "
            "says. Install the package again."
        )
    library = look_up(backend)
    params, _ = load_parameters(_Verified(file), tiny, library, "float32", progress=False)
    return Model(
        tiny,
        params,
        memory=memory,
        library=library.name,
        attention="prefix" if tiny.kind == "decoder" else None,
    )


class _Verified:
    """A checkpoint whose hash has been verified, so that its header can be trusted."""

    def __init__(self, file: Path) -> None:
        self.where = str(file)
        self.config = RawConfig(json.loads((file.parent / "config.json").read_text()), self.where)
        self._tensors = mapped_tensors(file, trusted=True)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no such tensor."""
        tensor = self._tensors.get(name)
        return None if tensor is None else tuple(tensor.array.shape)

    def read(self, name: str) -> Stored:
        """Return a memory-mapped tensor."""
        return self._tensors[name]
