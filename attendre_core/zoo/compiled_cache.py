"""The cache of prepared keys for libraries that compile: `DecodeCache` without writing in place.

A layer is one program, as in reading. Its shapes depend on the sizes of the memory and on the room
for new tokens, not on how much was read, so another text needs no other program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from attendre_core import ops
from attendre_core.backend import Array, backend_of
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import LayerState
from attendre_core.zoo.blocks import ModelBlock, compiled, compiling
from attendre_core.zoo.decode_cache import Entries, prepared, terms_of
from attendre_core.zoo.token_rotation import TokenRotation, cast_to

__all__ = ["CompiledCache"]


class _Held(NamedTuple):
    """The arrays of `Entries`."""

    keys: tuple[Array, ...]
    value: Array
    position: Array
    valid: Array


class CompiledCache:
    """The entries of all layers, for tokens that are written one at a time.

    Parameters, methods and results are those of `DecodeCache`.
    """

    def __init__(
        self, layers: Sequence[AttendreLayer], states: Sequence[LayerState], at: Array, room: int
    ) -> None:
        self._layers, self._room, self._origin = tuple(layers), room, at
        self._library = backend_of(at).name
        self._held = [
            _preparing(self._library, layer, room)(state, at)
            for layer, state in zip(layers, states, strict=True)
        ]
        self._written = at[0, 0] * 0
        self._one = self._written + 1  # on the device: no number is copied in a step

    def step(
        self, blocks: Sequence[ModelBlock], x: Array, at: Array, real: Array, every: bool
    ) -> Array:
        """Add one token per row; parameters as in `DecodeCache.step`."""
        run = compiling(self._library)
        for number, (layer, block) in enumerate(zip(self._layers, blocks, strict=True)):
            self._held[number], x = run(
                _step, layer, block, self._held[number], x, at, real, self._origin, self._written,
                room=self._room, donate=True,
            )  # fmt: skip
        self._written = self._written + self._one
        return x

    def reorder(self, rows: Array) -> None:
        """Reorder rows: row ``rows[i]`` becomes row i."""
        take = backend_of(rows).xp.take
        self._held = [
            _Held(
                tuple(take(key, rows, axis=0) for key in held.keys),
                *(take(array, rows, axis=0) for array in held[1:]),
            )
            for held in self._held
        ]
        self._origin = take(self._origin, rows, axis=0)


@lru_cache(maxsize=512)
def _preparing(library: str, layer: AttendreLayer, room: int) -> Any:
    """Return a program that sorts and rotates the entries of one layer."""

    def prepare(state: LayerState, origin: Array) -> _Held:
        return _held(prepared(layer, state, origin, room))

    return compiled(library, prepare)


def _held(entries: Entries) -> _Held:
    return _Held(tuple(entries.keys), entries.value, entries.position, entries.valid)


def _step(
    layer: AttendreLayer,
    block: ModelBlock,
    held: _Held,
    x: Array,
    at: Array,
    real: Array,
    origin: Array,
    written: Array,
    *,
    room: int,
    donate: bool,
) -> tuple[_Held, Array]:
    """Send one token per row through a layer."""
    query, key, value = block.project(x, at)
    encoding, scale = layer.encoding, layer.kv_memory.scale
    # Only shapes and constant angles are taken from these terms: no key is rotated again.
    terms = terms_of(encoding, held.keys[0], held.position, held.valid, origin)
    rotation = TokenRotation(encoding, terms, query.shape[2], scale, at - origin)
    queries, keys = rotation.of(query, key)
    read = held.value.shape[2] - room
    held = _with_token(held, written % room + read, keys, value, at, real, donate)
    entries = Entries(
        encoding, scale, terms, list(held.keys), held.value, held.position, held.valid,
        read=read, used=read + room, whole=False, dtype=key.dtype,
    )  # fmt: skip
    return held, block.finish(entries.attend(queries, at), x)


def _with_token(
    held: _Held, column: Array, keys: Sequence[Array], value: Array, at: Array, real: Array,
    donate: bool,
) -> _Held:  # fmt: skip
    """Write the entries of one token, (batch, 1, kv_heads, dim), into a column of slots."""
    xp = backend_of(at).xp
    index = xp.zeros_like(at) + column
    arrays = (*held.keys, held.value)
    new = [
        cast_to(xp.permute_dims(entry, (0, 2, 1, 3)), array.dtype)
        for entry, array in zip((*keys, value), arrays, strict=True)
    ]
    *turned, value = ops.write_slots(arrays, index, new, real, axis=2, donate=donate)
    records = (held.position, held.valid)
    shape = (*held.valid.shape[:2], 1)
    told = [xp.broadcast_to(x[:, None, :], shape) for x in (at, real)]
    return _Held(
        tuple(turned), value, *ops.write_slots(records, index, told, real, axis=2, donate=donate)
    )
