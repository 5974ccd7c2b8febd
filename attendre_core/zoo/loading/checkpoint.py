"""What a loader needs to know about a file of weights, whatever its format."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from attendre_core.backend import Array, Backend
from attendre_core.errors import CheckpointError
from attendre_core.positions.rope import RoPE
from attendre_core.progress import progress_bar
from attendre_core.tree import tree_leaves, tree_map
from attendre_core.zoo.architectures.base import Architecture, EncoderDecoder, Params, Part, Tensor
from attendre_core.zoo.architectures.heads import HEAD, Head
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.loading.placing import Stored, placed

__all__ = ["Checkpoint", "Stored", "load_parameters"]


class Checkpoint(Protocol):
    """Weights and configuration of one model."""

    where: str
    config: RawConfig

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no such tensor."""

    def read(self, name: str) -> Stored:
        """Return a tensor, without reading its numbers yet."""


def load_parameters(
    checkpoint: Checkpoint,
    architecture: Architecture,
    backend: Backend,
    dtype: str,
    *,
    device: Any = None,
    progress: bool | None,
    head: Head | None = None,
) -> tuple[Params, str]:
    """Read all parameters of an architecture; every problem is found before the first is read.

    Parameters
    ----------
    dtype
        What they become; ``"auto"`` is the dtype that most of them are stored in.
    device
        A device of the library; None is its default.
    progress
        Whether to show a bar; None shows one on a terminal.
    head
        Whose parameters are read, too.

    Returns
    -------
    params
        Nested as the architecture names them.
    dtype
        The name of their dtype.
    """
    tensors = architecture.parameters()
    if head is not None:
        tensors[HEAD] = head.parameters()
    wanted: list[Tensor] = list(tree_leaves(tensors))
    names = _found(checkpoint, architecture, wanted)
    _refuse_odd_rotations(checkpoint.where, architecture)
    stored = {name: checkpoint.read(name) for name in names.values()}
    if dtype == "auto":
        dtype = _common_dtype(stored.values(), backend)
    bar = progress_bar(len(wanted), "loading", " tensors", progress)
    done: dict[Tensor, Array] = {}  # parameters that are one tensor stay one array

    def place(tensor: Tensor) -> Array:
        tensor = replace(tensor, name=names[tensor.name], also=())
        if tensor not in done:
            done[tensor] = placed(stored[tensor.name], tensor, backend, dtype, device)
        bar.update()
        return done[tensor]

    try:
        params: Params = tree_map(place, tensors)
    finally:
        bar.close()
    return params, dtype


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


def _common_dtype(stored: Iterable[Stored], backend: Backend) -> str:
    """Return the dtype that most of the numbers are stored in, or float32 if there is none.

    Norms are often stored wider than matrices; mixed, the residual stream would widen on its way
    and no longer fit a memory.
    """
    count: dict[str, int] = {}
    for each in stored:
        count[each.dtype] = count.get(each.dtype, 0) + math.prod(each.full_shape)
    most = max(count, key=lambda name: count[name])
    missing = most in ("bfloat16", "float64") and most not in backend.capabilities
    return "float32" if missing else most


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
