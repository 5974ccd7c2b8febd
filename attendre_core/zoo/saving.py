"""Nested arrays in a safetensors file, and back into the same nesting."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.backend import Backend
from attendre_core.errors import ConfigError, StateError
from attendre_core.tree import tree_leaves, tree_map

__all__ = ["Arrays", "read_arrays", "write_arrays"]

_FORMAT = "attendre-stream-1"


class Arrays:
    """Arrays of a file, in the order in which they were written."""

    def __init__(self, arrays: list[Any], path: str | Path) -> None:
        self.arrays, self.path = arrays, path

    def fill(self, like: Any, to: Backend) -> Any:
        """Return the nesting of ``like`` with the arrays of the file, in its dtypes."""
        own = list(tree_leaves(like))
        if len(own) != len(self.arrays):
            raise StateError(
                f"Model.restore: {self.path} holds {len(self.arrays)} arrays, expected "
                f"{len(own)}. It was saved by another version or another kind of model."
            )
        rest = iter(self.arrays)

        def taken(leaf: Any) -> Any:
            array = next(rest)
            if tuple(array.shape) != tuple(leaf.shape):
                raise StateError(
                    f"Model.restore: {self.path} holds an array of shape {tuple(array.shape)}, "
                    f"expected {tuple(leaf.shape)}. It belongs to another model or memory."
                )
            return to.xp.astype(to.from_numpy(array), leaf.dtype)

        return tree_map(taken, like)


def write_arrays(
    path: str | Path, tree: Any, to_numpy: Callable[[Any], Any], notes: dict[str, Any]
) -> None:
    """Write nested arrays and some notes; the file is complete or not there."""
    save = _safetensors().save_file
    leaves = list(tree_leaves(tree))
    arrays = {f"{i:05d}": np.array(to_numpy(leaf), order="C") for i, leaf in enumerate(leaves)}
    target = Path(path)
    handle, aside = tempfile.mkstemp(prefix=target.name, suffix=".part", dir=target.parent)
    os.close(handle)
    try:
        save(arrays, aside, metadata={"format": _FORMAT, "notes": json.dumps(notes)})
        Path(aside).replace(target)
    finally:
        Path(aside).unlink(missing_ok=True)


def read_arrays(path: str | Path) -> tuple[Arrays, dict[str, Any]]:
    """Read what `write_arrays` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            notes = file.metadata() or {}
            arrays = [file.get_tensor(name) for name in sorted(file.keys())]
    except (OSError, SafetensorError) as error:
        raise StateError(
            f"Model.restore: {path} cannot be read as a saved stream ({error})."
        ) from error
    if notes.get("format") != _FORMAT:
        raise StateError(
            f"Model.restore: {path} is no saved stream, expected one that Stream.save wrote."
        )
    return Arrays(arrays, path), json.loads(notes["notes"])


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ModuleNotFoundError as error:
        raise ConfigError(
            "saving a stream needs safetensors. Install it with: pip install 'attendre-core[zoo]'."
        ) from error
    return safetensors.numpy
