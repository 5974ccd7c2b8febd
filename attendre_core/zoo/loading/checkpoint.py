"""What a loader needs to know about a file of weights, whatever its format."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from attendre_core.backend import Array, Backend
from attendre_core.checks import dtype_name, dtype_named
from attendre_core.errors import CheckpointError
from attendre_core.positions.rope import RoPE
from attendre_core.progress import progress_bar
from attendre_core.tree import tree_leaves, tree_map
from attendre_core.zoo.architectures.base import Architecture, EncoderDecoder, Params, Part, Tensor
from attendre_core.zoo.config import RawConfig

__all__ = ["Checkpoint", "Stored", "load_parameters"]


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in a file, usually mapped and not read yet.

    Attributes
    ----------
    array
        In NumPy; the bits as uint16 for bfloat16, which NumPy lacks.
    dtype
        ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"float64"``.
    """

    array: Any
    dtype: str


class Checkpoint(Protocol):
    """Weights and configuration of one model."""

    where: str
    config: RawConfig

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no such tensor."""

    def read(self, name: str) -> Stored:
        """Return a tensor."""


def load_parameters(
    checkpoint: Checkpoint,
    architecture: Architecture,
    backend: Backend,
    dtype: str,
    *,
    progress: bool | None,
) -> tuple[Params, str]:
    """Read all parameters of an architecture; every problem is found before the first is read.

    Parameters
    ----------
    dtype
        What they become; ``"auto"`` is the dtype that most of them are stored in.
    progress
        Whether to show a bar; None shows one on a terminal.

    Returns
    -------
    params
        Nested as the architecture names them.
    dtype
        The name of their dtype.
    """
    wanted: list[Tensor] = list(tree_leaves(architecture.parameters()))
    names = _found(checkpoint, architecture, wanted)
    _refuse_odd_rotations(checkpoint.where, architecture)
    bar = progress_bar(len(wanted), "loading", " tensors", progress)
    read: dict[Tensor, Array] = {}

    def placed(tensor: Tensor) -> Array:
        tensor = replace(tensor, name=names[tensor.name], also=())
        if tensor not in read:
            stored = checkpoint.read(tensor.name)
            array = stored.array
            if tensor.rows is not None:
                array = array[tensor.rows[0] : tensor.rows[1]]
            if tensor.transposed:
                array = array.T
            read[tensor] = _placed(backend, array, stored.dtype, dtype)
        bar.update()
        return read[tensor]

    try:
        params: Params = tree_map(placed, architecture.parameters())
    finally:
        bar.close()
    return _levelled(params, backend) if dtype == "auto" else (params, dtype)


def _found(
    checkpoint: Checkpoint, architecture: Architecture, wanted: list[Tensor]
) -> dict[str, str]:
    """Find every tensor under its name or with a prefix more or less; list what is wrong."""
    names: dict[str, str] = {}
    problems = []
    for tensor in wanted:
        candidates = []
        for known in (tensor.name, *tensor.also):
            candidates.append(known)
            for prefix in architecture.prefixes:
                candidates += [known.removeprefix(prefix), prefix + known]
        name = next((c for c in candidates if checkpoint.shape(c) is not None), None)
        if name is None:
            problems.append(f"{tensor.name} is missing")
            continue
        names[tensor.name] = name
        given = checkpoint.shape(name) or ()
        if not _fits(tensor, given):
            problems.append(f"{name} has shape {given}, expected {_asked_for(tensor)}")
    if problems:
        shown = "; ".join(problems[:4]) + ("; ..." if len(problems) > 4 else "")
        raise CheckpointError(
            f"{checkpoint.where}: {len(problems)} of {len(wanted)} tensors do not fit the "
            f"configuration: {shown}. Download the checkpoint again, or check that config.json "
            "belongs to it. Nothing was loaded."
        )
    return names


def _asked_for(tensor: Tensor) -> str:
    shape = tensor.shape[::-1] if tensor.transposed else tensor.shape
    if tensor.rows is None:
        return str(shape)
    return f"({', '.join([f'{tensor.rows[1]} or more', *map(str, shape[1:])])})"


def _fits(tensor: Tensor, given: tuple[int, ...]) -> bool:
    expected = tensor.shape[::-1] if tensor.transposed else tensor.shape
    if tensor.rows is None:
        return given == expected
    start, stop = tensor.rows
    return (
        len(given) == len(expected)
        and given[1:] == expected[1:]
        and stop <= given[0]
        and stop - start == expected[0]
    )


def _placed(backend: Backend, array: Any, stored: str, wanted: str) -> Array:
    """Hand an array over to the library, shared with the file where nothing has to change."""
    if isinstance(array, np.ndarray):  # a model in memory hands over the library's own arrays
        array = np.require(array, requirements="A")  # a careless writer may have packed it tightly
    share = backend.share
    if share is None:
        if stored == "bfloat16":
            array = (np.asarray(array).astype(np.uint32) << 16).view(np.float32)
        result = backend.from_numpy(array)
    else:
        result = share(array, stored)
    if wanted == "auto":
        return result
    dtype = dtype_named(backend.xp, wanted)
    return result if result.dtype == dtype else backend.xp.astype(result, dtype)


def _levelled(params: Params, backend: Backend) -> tuple[Params, str]:
    """Give all parameters the dtype that most of their numbers have, and name it.

    Norms are often stored wider than matrices; mixed, the residual stream would widen on its way
    and no longer fit a memory.
    """
    count: dict[str, int] = {}
    for leaf in tree_leaves(params):
        name = dtype_name(leaf.dtype)
        count[name] = count.get(name, 0) + math.prod(leaf.shape)
    most = max(count, key=lambda name: count[name])
    dtype = dtype_named(backend.xp, most)
    done: dict[int, Array] = {}  # parameters that are one array stay one array

    def cast(leaf: Array) -> Array:
        if leaf.dtype == dtype:
            return leaf
        if id(leaf) not in done:
            done[id(leaf)] = backend.xp.astype(leaf, dtype)
        return done[id(leaf)]

    return tree_map(cast, params), most


def _refuse_odd_rotations(where: str, architecture: Architecture) -> None:
    """Refuse rotations that cannot be computed, before anything is read."""
    parts: list[object] = [architecture]
    if isinstance(architecture, EncoderDecoder):
        parts = [architecture.encoder, architecture.decoder]
    for part in parts:
        if not isinstance(part, Part):
            continue
        for rope in {part.encoding(i) for i in range(part.layers)}:
            if isinstance(rope, RoPE) and not _turns(rope, part.head_dim):
                raise CheckpointError(
                    f"{where}: heads of {part.head_dim} features cannot be rotated by {rope!r}, "
                    "expected an even width and settings that give finite angles. Check that the "
                    "configuration belongs to it."
                )


def _turns(rope: RoPE, head_dim: int) -> bool:
    try:
        angles = rope.frequencies(head_dim)
    except (ArithmeticError, ValueError):
        return False
    return all(map(math.isfinite, angles)) and math.isfinite(rope.temperature)
