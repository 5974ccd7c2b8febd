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

from attendre_core import ops
from attendre_core.backend import Array, backend_of
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.block import Block
from attendre_core.layer.records import LayerState
from attendre_core.positions.base import Encoding, Places, Term
from attendre_core.positions.lm_infinite import LMInfinite
from attendre_core.positions.none import NoPosition
from attendre_core.positions.rope import RoPE
from attendre_core.zoo.token_rotation import TokenRotation, cast_to

__all__ = ["DecodeCache", "Entries", "can_cache", "prepared", "terms_of"]

#: Larger than every position.
_LAST = 2**31 - 1


def can_cache(layers: Sequence[AttendreLayer]) -> bool:
    """Whether keys can be rotated once."""
    return all(
        layer.top_k is None
        and not layer.trace
        and type(layer.encoding) in (Encoding, NoPosition, RoPE, LMInfinite)
        for layer in layers
    )


class DecodeCache:
    """The entries of all layers, for tokens that are written one at a time.

    The outputs are those of stepping the memories, up to rounding.

    Parameters
    ----------
    layers, states
        From `Stack.decoding`, with room for what will be written.
    at
        int32, (batch, 1): the position of the first token that will be written.
    room
        Maximum number of tokens that will be written.
    """

    def __init__(self, layers: Sequence[AttendreLayer], states: Any, at: Array, room: int) -> None:
        self._layers = tuple(
            prepared(layer, state, at, room) for layer, state in zip(layers, states, strict=True)
        )
        self._origin = at
        self._rotations: dict[tuple[Encoding, float | None], TokenRotation] = {}
        self._written = 0

    def step(self, blocks: Sequence[Block], x: Array, at: Array, real: Array, every: bool) -> Array:
        """Add one token per row.

        Parameters
        ----------
        blocks
            Of all layers.
        x, at, real
            (batch, 1, dim), int32 and boolean (batch, 1): the tokens, their positions, and which
            rows get one.
        every
            Whether all rows get one.
        """
        place = at - self._origin
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
            layer.add(self._written, keys, value, at, real, every)
            x = block.finish(layer.attend(queries, at), x)
        self._written += 1
        return x

    def reorder(self, rows: Array) -> None:
        """Reorder rows: row ``rows[i]`` becomes row i."""
        for layer in self._layers:
            layer.reorder(rows)
        self._origin = backend_of(rows).xp.take(self._origin, rows, axis=0)


@dataclass
class Entries:
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
    position
        int32, (batch, 1 or kv_heads, slots): heads may hold different tokens. What is written gets
        one only if there are two terms.
    valid
        Boolean, of the same shape. Not kept up while ``whole``.
    read, used
        Number of slots with entries that were read, and of slots in use.
    whole
        It is known that no slot in use is empty.
    dtype
        Of the model.
    """

    encoding: Encoding
    scale: float | None
    terms: tuple[Term, ...]
    keys: list[Array]
    value: Array
    position: Array
    valid: Array
    read: int
    used: int
    whole: bool
    dtype: Any

    def add(
        self,
        number: int,
        keys: Sequence[Array],
        value: Array,
        at: Array,
        real: Array,
        every: bool,
    ) -> None:
        """Write the entries of one token; rows that get none keep what the column holds."""
        column = self.read + number % (self.value.shape[2] - self.read)
        xp = backend_of(value).xp
        flags = None if every else real[:, :, None]
        if self.whole and not every:
            self.valid[..., : self.used] = True
            self.whole = False
        self.used = max(self.used, column + 1)
        for array, entry in zip([*self.keys, self.value], [*keys, value], strict=True):
            entry = cast_to(entry[:, 0, ...], array.dtype)
            if flags is not None:
                entry = xp.where(flags, entry, array[:, :, column, :])
            array[:, :, column, :] = entry
        if not self.whole:
            self.valid[..., column] = self.valid[..., column] | real
        if len(self.terms) > 1:
            self.position[..., column] = xp.where(real, at, self.position[..., column])

    def attend(self, queries: Sequence[Array], at: Array) -> Array:
        """Attend to all entries, with one query per row.

        Parameters
        ----------
        queries
            Of each term: (batch, 1, heads, head_dim), scaled and rotated.
        at
            int32, (batch, 1): their positions.
        """
        held = slice(0, self.used)
        value = self.value[:, :, held, :]
        found = backend_of(value)
        allowed = None
        if not self.whole:
            allowed = self.valid[:, :, None, None, held]
        near, *beyond = [
            (self._rows(query), key[:, :, held, :])
            for query, key in zip(queries, self.keys, strict=True)
        ]
        logits = self._logits(near, beyond[0], at) if beyond else None
        if logits is None:
            output = ops.attention(*near, value, allowed)
        else:
            output = ops.mix(ops.masked_softmax(logits, allowed), value)
        output = found.xp.reshape(output, (*queries[0].shape[:3], output.shape[-1]))
        return cast_to(output, self.dtype)

    def _logits(
        self, near: tuple[Array, Array], far: tuple[Array, Array], at: Array
    ) -> Array | None:
        """Return the logits, with the term that applies to each slot; None if it is the first."""
        found = backend_of(near[0])
        is_far = at[:, :, None] - self.position[..., : self.used] >= self.terms[1].low
        if found.is_concrete(is_far):  # looking is free: multiply only what is needed
            seen = found.to_numpy(is_far)
            held = True if self.whole else found.to_numpy(self.valid)[..., : self.used]
            count = int(seen[0, 0].sum())
            if count == 0 and not (seen & held).any():
                return None
            if (
                seen[..., :count].all() and not seen[..., count:].any()
            ):  # sorted: the far come first
                parts = [
                    ops.logits_of(far[0], far[1][:, :, :count, :]),
                    ops.logits_of(near[0], near[1][:, :, count:, :]),
                ]
                return found.xp.concat(parts, axis=-1)
        flags = is_far[:, :, None, None, :]
        return found.xp.where(flags, ops.logits_of(*far), ops.logits_of(*near))

    def _rows(self, query: Array) -> Array:
        """Group query heads by K/V head: (batch, kv_heads, group, 1, dim).

        With one query per row they are in this order already.
        """
        batch, _, heads, dim = query.shape
        groups = self.value.shape[1]
        return backend_of(query).xp.reshape(query, (batch, groups, heads // groups, 1, dim))

    def reorder(self, rows: Array) -> None:
        """Reorder rows: row ``rows[i]`` becomes row i."""
        take = backend_of(self.value).xp.take
        self.keys = [take(key, rows, axis=0) for key in self.keys]
        self.value = take(self.value, rows, axis=0)
        self.position = take(self.position, rows, axis=0)
        self.valid = take(self.valid, rows, axis=0)


def prepared(layer: AttendreLayer, state: LayerState, origin: Array, room: int) -> Entries:
    """Sort the entries of a layer by position, empty slots last, and rotate the keys.

    Where looking at them is free, empty slots are left out. Elsewhere there are as many slots as
    the memory may hold, and no step waits for the device.
    """
    kv = state.kv
    found = backend_of(kv.key)
    xp, device = found.xp, found.device_of(kv.key)
    per_head = kv.valid.ndim == 3
    position, valid = (x if per_head else x[:, None, :] for x in (kv.position, kv.valid))
    read, whole = kv.key.shape[2] - room, False
    if found.is_concrete(valid):
        held = found.to_numpy(valid).sum(axis=-1)
        read = max(int(held.max()), 1)
        whole = bool((held == read).all())
    room = kv.key.shape[2] - read
    last = xp.full_like(position, _LAST)
    order = xp.argsort(xp.where(valid, position, last), axis=-1, stable=True)[..., :read]

    def with_room(array: Array, index: Array) -> Array:
        held = ops.gather_slots(array, index, axis=2)
        shape = (*held.shape[:2], room, *held.shape[3:])
        return xp.concat([held, xp.zeros(shape, dtype=held.dtype, device=device)], axis=2)

    exact = xp.float32 if xp.finfo(kv.key.dtype).bits < 32 else kv.key.dtype
    by_head = order if per_head else order[:, 0, :]
    key, value = (cast_to(with_room(x, by_head), exact) for x in (kv.key, kv.value))
    position, real = with_room(position, order), with_room(valid, order)
    terms = terms_of(layer.encoding, key, position, real, origin)
    return Entries(
        encoding=layer.encoding,
        scale=layer.kv_memory.scale,
        terms=terms,
        keys=[term.key for term in terms],
        value=value,
        position=position,
        valid=real,
        read=read,
        used=read,
        whole=whole,
        dtype=kv.key.dtype,
    )


def terms_of(
    encoding: Encoding, key: Array, position: Array, valid: Array, origin: Array
) -> tuple[Term, ...]:
    """Return the terms for a query at the origin, of keys that are not rotated yet."""
    at = position - origin[:, :, None]
    places = Places(at[:, :1, None, :1] * 0, at, valid[:, 0, :1] | True, valid)
    encoded = encoding.encode(key[:, :, None, :1, :], key, places)
    # An upper bound is for keys ahead of the query, and nothing that is stored is ahead.
    return tuple(term for term in encoded.terms if term.high is None)
