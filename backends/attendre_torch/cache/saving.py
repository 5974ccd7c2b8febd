"""Save a cache in a safetensors file, and restore it.

Nothing in a file is trusted: a scratch cache reads one token, and what the file holds must look
like what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attendre_core.backend import backend
from attendre_core.checks import LAST_POSITION
from attendre_core.errors import StateError
from attendre_core.presets import MemoryConfig
from attendre_core.tree import tree_map
from attendre_core.zoo.identity import differences
from attendre_core.zoo.saving import (
    SavedArrays,
    fingerprint,
    named_leaves,
    read_arrays,
    write_arrays,
)

__all__ = ["restore_layers", "save_layers"]


def save_layers(path: str | Path, layers: Sequence[Any], model: Any, memory: MemoryConfig) -> None:
    """Write all tensors and numbers of all layers."""
    tree = {str(number): tensors_of(layer) for number, layer in enumerate(layers)}
    notes = {**_identity(model, memory), "layers": [_numbers_of(layer) for layer in layers]}
    write_arrays(path, tree, backend("torch").to_numpy, notes)


def restore_layers(
    path: str | Path,
    layers: Sequence[Any],
    scratch: Sequence[Any],
    model: Any,
    memory: MemoryConfig,
) -> None:
    """Read what `save_layers` wrote.

    Parameters
    ----------
    layers
        Filled with what the file holds, all or none of them.
    scratch
        Layers of the same kinds that have read one token.
    """
    saved = read_arrays(path)
    for name, own in _identity(model, memory).items():
        if saved.notes.get(name) != own:
            told = differences(name, saved.notes.get(name), own)
            raise StateError(
                f"AttendreCache.restore: {path} was saved with {told}. Make the cache for the "
                "same model with the same memory."
            )
    noted = saved.notes.get("layers")
    if not isinstance(noted, list) or len(noted) != len(layers):
        raise saved.refused(f"does not have notes on {len(layers)} layers")
    like = {str(number): tensors_of(layer) for number, layer in enumerate(scratch)}
    if dict(named_leaves(like)).keys() != saved.arrays.keys():
        raise saved.refused("does not hold the arrays of this model's layers")
    rows = {array.shape[:1] for array in saved.arrays.values() if array.ndim}
    if len(rows) > 1:
        raise saved.refused("holds arrays of different numbers of rows")
    names = iter(dict(named_leaves(like)))
    found = tree_map(lambda leaf: _tensor(saved, next(names), leaf), like)
    numbers = [_checked(saved, _numbers_of(layer), noted[i]) for i, layer in enumerate(scratch)]
    for number, layer in enumerate(layers):
        layer.reset()
        layer.__dict__.update(scratch[number].__dict__)
        layer.__dict__.update(found[str(number)])
        layer.__dict__.update(numbers[number])


def tensors_of(layer: Any) -> dict[str, Any]:
    """Return everything that a layer holds in tensors, nested."""
    return {
        name: value
        for name, value in vars(layer).items()
        if name == "state"
        or isinstance(value, Tensor)
        or (isinstance(value, dict) and value and isinstance(next(iter(value.values())), Tensor))
    }


def _numbers_of(layer: Any) -> dict[str, Any]:
    """Return the numbers and flags of a layer."""
    return {name: value for name, value in vars(layer).items() if type(value) in (int, bool)}


def _identity(model: Any, memory: MemoryConfig) -> dict[str, Any]:
    stored = model.state_dict().values()
    every = [x.to_local() if hasattr(x, "to_local") else x for x in stored]  # of this process
    weights = [
        x
        for x in every
        if x.is_floating_point() and x.numel() and not x.is_meta  # meta: offloaded
    ]
    return {
        "cache of": type(model).__name__,
        "memory": repr(memory),
        "weights": fingerprint(weights, backend("torch").to_numpy),
    }


def _tensor(saved: SavedArrays, name: str, like: Tensor) -> Tensor:
    """Return a tensor of the file; all but the lengths of rows and texts must be as expected."""
    array = saved.arrays[name]
    free = {0, 1} if ".state." not in f".{name}" and like.ndim < 4 else {0}
    free = {0, 2} if ".state." not in f".{name}" and like.ndim == 4 else free
    same = array.ndim == like.ndim and all(
        own == expected
        for axis, (own, expected) in enumerate(zip(array.shape, like.shape, strict=False))
        if axis not in free
    )
    kinds = "f" if like.is_floating_point() else "b" if like.dtype == torch.bool else "i"
    if not same or array.dtype.kind != kinds:
        raise saved.refused(f"holds {name} as {array.dtype} of shape {array.shape}")
    return torch.from_numpy(array.copy()).to(dtype=like.dtype, device=like.device)


def _checked(saved: SavedArrays, own: dict[str, Any], noted: Any) -> dict[str, Any]:
    """Return the numbers of a layer; they have the names and kinds of a layer of this model."""
    good = isinstance(noted, dict) and noted.keys() == own.keys()
    if not good or any(
        type(noted[n]) is not type(own[n]) or not 0 <= noted[n] <= LAST_POSITION for n in own
    ):
        raise saved.refused("has notes that do not belong to this model's layers")
    return dict(noted)
