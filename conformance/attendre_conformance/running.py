"""What every test needs to run on the backend under test: NumPy in, NumPy out.

Where compiled code is cheap to make and eager code is not (JAX compiles every operation for every
shape), steps run through functions compiled once per spec. The eager path is tested apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attendre_conformance.options import COMPILED_STREAMS


def compiles(backend: Any) -> bool:
    """Whether streams run compiled on a backend, so that every spec and shape costs seconds."""
    return backend.name in COMPILED_STREAMS


def few(backend: Any, choices: Sequence[Any], most: int = 1) -> list[Any]:
    """Return all choices, or the first few where each has to be compiled."""
    return list(choices[:most] if compiles(backend) else choices)


def mixtures(backend: Any, *choices: Sequence[Any], most: int = 3) -> Any:
    """Return a strategy of tuples with one of each of several choices.

    Any of their combinations; where each has to be compiled, ``most`` of them, in which the first
    members of every list occur: the n-th of each, the shorter lists beginning anew.
    """
    if not compiles(backend):
        return st.tuples(*map(st.sampled_from, choices))
    count = min(most, max(map(len, choices)))
    return st.sampled_from([tuple(c[n % len(c)] for c in choices) for n in range(count)])


def to_numpy(backend: Any, tree: Any) -> Any:
    """Turn every array of a nested tuple or dict into a NumPy array of its own."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {name: to_numpy(backend, part) for name, part in tree.items()}
    if isinstance(tree, tuple):
        parts = [to_numpy(backend, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return np.array(backend.to_numpy(tree))


def from_numpy(backend: Any, tree: Any) -> Any:
    """Turn every NumPy array of a nested tuple or dict into an array of the backend."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {name: from_numpy(backend, part) for name, part in tree.items()}
    if isinstance(tree, tuple):
        parts = [from_numpy(backend, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return backend.from_numpy(np.array(tree))
