"""Decode against keys that are rotated once.

Stepping a memory for every new token would rank its entries and rotate its keys each time, although
what was read does not change and new tokens come after it. Here the entries of a layer are sorted
and rotated before the first token; each token then adds one column::

    slots    0 ............ read - 1 | read ...... read + room - 1
             sorted by position      | in the order of writing; when full, the oldest is replaced
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attendre_core import ops
from attendre_core.backend import Array, backend_of, beside
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.block import Block
from attendre_core.layer.records import LayerState
from attendre_core.positions.base import Encoding, Places, Term
from attendre_core.positions.lm_infinite import LMInfinite
from attendre_core.positions.none import NoPosition
from attendre_core.positions.rope import RoPE
from attendre_core.zoo.blocks import runs_eagerly
from attendre_core.zoo.token_rotation import TokenRotation, cast_to

__all__ = ["DecodeCache", "can_cache"]


def can_cache(library: str, layers: Sequence[AttendreLayer], states: Any) -> bool:
    """Whether keys can be rotated once and written in place."""
    return runs_eagerly(library) and all(
        state.kv.valid.ndim == 2
        and layer.top_k is None
        and not layer.trace
        and type(layer.encoding) in (Encoding, NoPosition, RoPE, LMInfinite)
        for layer, state in zip(layers, states, strict=True)
    )


class DecodeCache:
    """The entries of all layers, for tokens that are written one at a time.

    The outputs are those of stepping the memories, up to rounding.

    Parameters
    ----------
    layers, states
        From `Stack.decoding`, with room for what will be written.
    position
        NumPy, (batch,): the position of the first token that will be written.
    """

    def __init__(self, layers: Sequence[AttendreLayer], states: Any, position: Any) -> None:
        self._layers = tuple(
            _prepared(layer, state, position) for layer, state in zip(layers, states, strict=True)
        )
        self._origin = np.array(position)
        self._rotations: dict[tuple[Encoding, float | None], TokenRotation] = {}
        self._written = 0

    def step(
        self, blocks: Sequence[Block], x: Array, at: Array, position: Any, active: Any
    ) -> Array:
        """Add one token per row.

        Parameters
        ----------
        blocks
            Of all layers.
        x, at
            (batch, 1, dim) and int32 (batch, 1).
        position, active
            NumPy, (batch,): the same positions, and which rows get a token.
        """
        place = at - beside(self._origin[:, None], at)
        for rotation in self._rotations.values():
            rotation.move(place)
        for layer, block in zip(self._layers, blocks, strict=True):
            query, key, value = block.project(x, at)
            kind = (layer.encoding, layer.scale)
            if kind not in self._rotations:
                self._rotations[kind] = TokenRotation(
                    layer.encoding, layer.terms, query.shape[2], layer.scale, place
                )
            queries, keys = self._rotations[kind].of(query, key)
            layer.add(self._written, keys, value, position, active)
            x = block.finish(layer.attend(queries, position), x)
        self._written += 1
        return x

    def reorder(self, index: Any, rows: Array) -> None:
        """Reorder rows: row ``index[i]`` becomes row i. ``rows`` is ``index`` as an array."""
        for layer in self._layers:
            layer.reorder(index, rows)
        self._origin = self._origin[index]


@dataclass
class _Entries:
    """The entries of one layer; each token writes one column in place.

    Attributes
    ----------
    terms
        Terms of the encoding for a query at the origin. The first rotates queries and keys by
        their positions; the second, if there is one, is for keys at a distance of ``low`` or
        more, and rotates only keys, all by the same angle.
    keys
        The rotated keys of each term, (batch, kv_heads, slots, dim), in the precision of the
        logits.
    value
        (batch, kv_heads, slots, dim).
    position, valid
        NumPy, (batch, slots).
    read, used
        Number of slots with entries that were read, and of slots in use.
    whole
        No slot in use is empty.
    dtype
        Of the model.
    """

    encoding: Encoding
    scale: float | None
    terms: tuple[Term, ...]
    keys: list[Array]
    value: Array
    position: Any
    valid: Any
    read: int
    used: int
    whole: bool
    dtype: Any

    def add(
        self, number: int, keys: Sequence[Array], value: Array, position: Any, active: Any
    ) -> None:
        """Write the entries of one token; inactive rows keep what the column holds."""
        column = self.read + number % (self.value.shape[2] - self.read)
        self.used = max(self.used, column + 1)
        found = backend_of(value)
        flags = None if active.all() else beside(active, value)[:, None, None]
        for array, entry in zip([*self.keys, self.value], [*keys, value], strict=True):
            entry = cast_to(entry[:, 0, ...], array.dtype)
            if flags is not None:
                entry = found.xp.where(flags, entry, array[:, :, column, :])
            array[:, :, column, :] = entry
        self.position[active, column] = position[active]
        self.valid[active, column] = True
        self.whole = self.whole and flags is None

    def attend(self, queries: Sequence[Array], position: Any) -> Array:
        """Attend to all entries, with one query per row.

        Parameters
        ----------
        queries
            Of each term: (batch, 1, heads, head_dim), scaled and rotated.
        position
            NumPy, (batch,).
        """
        held = slice(0, self.used)
        value = self.value[:, :, held, :]
        found = backend_of(value)
        allowed = None
        if not self.whole:
            allowed = beside(self.valid[:, held], value)[:, None, None, None, :]
        near, *beyond = [
            (self._rows(query), key[:, :, held, :])
            for query, key in zip(queries, self.keys, strict=True)
        ]
        logits = self._logits(near, beyond[0], position) if beyond else None
        if logits is None:
            output = ops.attention(*near, value, allowed)
        else:
            output = ops.mix(ops.masked_softmax(logits, allowed), value)
        output = found.xp.reshape(output, (*queries[0].shape[:3], output.shape[-1]))
        return cast_to(output, self.dtype)

    def _logits(
        self, near: tuple[Array, Array], far: tuple[Array, Array], position: Any
    ) -> Array | None:
        """Return the logits, with the term that applies to each slot; None if it is the first."""
        found = backend_of(near[0])
        distance = position[:, None] - self.position[:, : self.used]
        is_far = distance >= self.terms[1].low
        count = int(is_far[0].sum())
        if count == 0 and not (is_far & self.valid[:, : self.used]).any():
            return None
        if is_far[:, :count].all() and not is_far[:, count:].any():  # sorted: the far come first
            parts = [
                ops.logits_of(far[0], far[1][:, :, :count, :]),
                ops.logits_of(near[0], near[1][:, :, count:, :]),
            ]
            return found.xp.concat(parts, axis=-1)
        flags = beside(is_far, near[0])[:, None, None, None, :]
        return found.xp.where(flags, ops.logits_of(*far), ops.logits_of(*near))

    def _rows(self, query: Array) -> Array:
        """Group query heads by K/V head: (batch, kv_heads, group, 1, dim).

        With one query per row they are in this order already.
        """
        batch, _, heads, dim = query.shape
        groups = self.value.shape[1]
        return backend_of(query).xp.reshape(query, (batch, groups, heads // groups, 1, dim))

    def reorder(self, index: Any, rows: Array) -> None:
        """Reorder rows: row ``index[i]`` becomes row i."""
        take = backend_of(self.value).xp.take
        self.keys = [take(key, rows, axis=0) for key in self.keys]
        self.value = take(self.value, rows, axis=0)
        self.position, self.valid = self.position[index], self.valid[index]


def _prepared(layer: AttendreLayer, state: LayerState, origin: Any) -> _Entries:
    """Sort the entries of a layer by position, empty slots last, and rotate the keys."""
    kv = state.kv
    found = backend_of(kv.key)
    xp = found.xp
    valid, position = (np.asarray(found.to_numpy(x)) for x in (kv.valid, kv.position))
    order = np.argsort(np.where(valid, position, np.iinfo(np.int32).max), axis=1, kind="stable")
    read = max(int(valid.sum(axis=1).max()), 1)
    order, room = order[:, :read], kv.key.shape[2] - read
    empty = np.zeros((len(valid), room), dtype=np.int32)
    valid = np.concatenate([np.take_along_axis(valid, order, axis=1), empty > 0], axis=1)
    position = np.concatenate([np.take_along_axis(position, order, axis=1), empty], axis=1)
    exact = xp.float32 if xp.finfo(kv.key.dtype).bits < 32 else kv.key.dtype
    index = beside(order.astype(np.int64), kv.key)

    def sorted_with_room(array: Array) -> Array:
        held = xp.astype(ops.gather_slots(array, index, axis=2), exact)
        shape, device = (*held.shape[:2], room, held.shape[3]), found.device_of(array)
        return xp.concat([held, xp.zeros(shape, dtype=exact, device=device)], axis=2)

    key = sorted_with_room(kv.key)
    at = beside((position - origin[:, None]).astype(np.int32)[:, None, :], key)
    real = beside(valid[:, None, :], key)
    places = Places(at[:, :, None, :1] * 0, at, real[:, 0, :1] | True, real)
    encoded = layer.encoding.encode(key[:, :, None, :1, :], key, places)
    # An upper bound is for keys ahead of the query, and nothing that is stored is ahead.
    terms = tuple(term for term in encoded.terms if term.high is None)
    return _Entries(
        encoding=layer.encoding,
        scale=layer.kv_memory.scale,
        terms=terms,
        keys=[term.key for term in terms],
        value=sorted_with_room(kv.value),
        position=position,
        valid=valid,
        read=read,
        used=read,
        whole=bool(valid[:, :read].all()),
        dtype=kv.key.dtype,
    )
