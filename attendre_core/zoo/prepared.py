"""Write against keys that were turned once: what decoding needs, and no more.

A `Writer` steps the memories of all layers for every token: it ranks, exchanges, numbers and
turns all keys again, though what was read stays as it is and what is written comes behind it. Here
the entries of a layer are sorted and turned before the first token; a token then adds one column::

    slots    0 ............ read - 1 | 0 ........ room - 1      of what is written the oldest
             by position             | as written               goes first, as in the memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from attendre_core.backend import Array, backend_of
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import LayerState
from attendre_core.ops.attention import attention, logits_of, mix
from attendre_core.ops.softmax import masked_softmax
from attendre_core.positions.base import Encoding
from attendre_core.positions.lm_infinite import LMInfinite
from attendre_core.positions.none import NoPosition
from attendre_core.positions.rope import RoPE
from attendre_core.zoo.stacks import runs_eagerly
from attendre_core.zoo.writing import Writer

__all__ = ["PreparedWriter", "can_prepare"]


def can_prepare(library: str, layers: Sequence[AttendreLayer], states: Any) -> bool:
    """Whether keys may be turned once, by rotary positions or none, and written in place."""
    return runs_eagerly(library) and all(
        state.kv.valid.ndim == 2
        and layer.top_k is None
        and not layer.trace
        and type(layer.encoding) in (Encoding, NoPosition, RoPE, LMInfinite)
        for layer, state in zip(layers, states, strict=True)
    )


class PreparedWriter(Writer):
    """A `Writer` that prepares the entries of all layers when the first token is written.

    It writes what a `Writer` writes, up to rounding. ``states`` are those before the first token,
    and empty after it.
    """

    _layers: tuple[_Prepared, ...] = ()
    _written = 0

    def write(self, tokens: Any, active: Any) -> Any:
        """Add a token to each active row; returns next-token logits, (batch, vocabulary)."""
        if not self._layers:
            self._layers = tuple(
                _prepared(layer, state, self.position)
                for layer, state in zip(self.stack.layers, self.states, strict=True)
            )
            self.states = ()
        active = np.asarray(active, dtype=bool)
        array = self.backend.from_numpy
        ids = array(np.asarray(tokens, dtype=np.int32)[:, None])
        at = array(self.position[:, None].copy())
        x = self.part.embed(self.params, ids, at)
        turns: dict[tuple[Encoding, float | None], _Turn] = {}
        for layer, block in zip(self._layers, self.blocks, strict=True):
            turn = turns.get((layer.encoding, layer.scale))
            if turn is None:
                turn = turns[layer.encoding, layer.scale] = _Turn(layer, at, self.part.heads)
            query, key, value = block.project(x, at)
            near, turned_key, at_limit = turn.turned(query, key)
            layer.put(self._written, turned_key, key, value, self.position, active)
            if at_limit is None:
                attended = layer.attend(near)
            else:
                attended = layer.attend_clamped(near, at_limit, self.position)
            x = block.finish(attended, x)
        self._written += 1
        self.position = self.position + active.astype(np.int32)
        return self.logits(self.part.final(self.params, x)[:, 0, :])

    def reorder(self, index: Any) -> None:
        """Take row ``index[i]`` as row i."""
        if not self._layers:
            super().reorder(index)
            return
        index = np.asarray(index)
        rows = self.backend.from_numpy(index.astype(np.int32))
        for layer in self._layers:
            layer.reorder(index, rows)
        self.reorder_inputs(index, rows)


class _Turn:
    """How queries and keys of the present token are turned and scaled; the same for many layers.

    There is one token a row: (batch, 1, heads, dim) and (batch, heads, 1, dim) are the same
    numbers in the same order, so axes are never exchanged here.
    """

    def __init__(self, layer: _Prepared, position: Array, heads: int) -> None:
        found = backend_of(position)
        self._xp = xp = found.xp
        self._heads, self._dtype, self._rope = heads, layer.key.dtype, layer.rope
        kv_heads, self._dim = layer.key.shape[1], layer.key.shape[3]
        self.scale = self._dim**-0.5 if layer.scale is None else layer.scale
        if self._rope is None:
            return
        self.scale = self.scale * self._rope.temperature**2
        place = position - found.from_numpy(layer.origin[:, None])
        # Only queries are scaled: by their cosines and sines, which costs nothing.
        places = [(place, heads, self.scale), (place, kv_heads, 1.0)]
        self._clamped = layer.raw is not None
        if self._clamped:  # queries once more, turned as far as the clamp lets them be
            places.append((xp.full_like(place, layer.limit), heads, self.scale))
        angles = [self._of(*each) for each in places]
        self._cosine, self._sine = (
            xp.concat([pair[i] for pair in angles], axis=2) for i in range(2)
        )

    def _of(self, place: Array, heads: int, scale: float) -> list[Array]:
        """Return cosine and sine, scaled, (batch, 1, heads, pairs of features)."""
        xp, rope = self._xp, cast(RoPE, self._rope)
        each = rope.angles(xp.astype(place, self._dtype), self._dim)
        return [
            xp.broadcast_to(a[:, :, None, :] * scale, (*a.shape[:2], heads, a.shape[2]))
            for a in each
        ]

    def turned(self, query: Array, key: Array) -> tuple[Array, Array, Array | None]:
        """Turn queries and keys, and scale the queries; these also as far as the clamp allows."""
        xp, heads = self._xp, self._heads
        query, key = (xp.astype(x, self._dtype, copy=False) for x in (query, key))
        if self._rope is None:
            return query * self.scale, key, None
        parts = [query, key, query] if self._clamped else [query, key]
        both = self._rope.turned(xp.concat(parts, axis=2), self._cosine, self._sine)
        behind = heads + key.shape[2]
        at_limit = both[:, :, behind:, :] if self._clamped else None
        return both[:, :, :heads, :], both[:, :, heads:behind, :], at_limit


@dataclass
class _Prepared:
    """The entries of one layer: keys turned, written in place, one column a token.

    Attributes
    ----------
    key, value
        (batch, kv_heads, slots, dim), in the precision of the logits.
    raw
        Keys as they were read, for those beyond ``limit``; None where there is no limit.
    position, valid
        NumPy, (batch, slots).
    origin
        NumPy, (batch,): the position from which keys are turned.
    read, used
        Slots of what was read, and slots in use, from the first on.
    whole
        No slot in use is empty.
    dtype
        Of the model.
    """

    encoding: Encoding
    rope: RoPE | None
    limit: int
    scale: float | None
    key: Array
    value: Array
    raw: Array | None
    position: Any
    valid: Any
    origin: Any
    read: int
    used: int
    whole: bool
    dtype: Any

    def put(
        self, number: int, turned: Array, key: Array, value: Array, position: Any, active: Any
    ) -> None:
        """Write the entries of a token; rows that are not active keep what is there."""
        column = self.read + number % (self.key.shape[2] - self.read)
        self.used = max(self.used, column + 1)
        new = [(self.key, turned), (self.value, value)]
        if self.raw is not None:
            new.append((self.raw, key))
        found = backend_of(key)
        flags = None if active.all() else found.from_numpy(active)[:, None, None]
        for array, entry in new:
            here = array[:, :, column, :]
            entry = found.xp.astype(entry[:, 0, ...], array.dtype, copy=False)
            array[:, :, column, :] = entry if flags is None else found.xp.where(flags, entry, here)
        self.position[active, column] = position[active]
        self.valid[active, column] = True
        self.whole = self.whole and flags is None

    def attend(self, query: Array) -> Array:
        """Attend with one query a row, (batch, 1, heads, head_dim), to all that is held."""
        key, value = self.key[:, :, : self.used, :], self.value[:, :, : self.used, :]
        return self._restored(query, attention(self._rows(query), key, value, self._allowed()))

    def attend_clamped(self, query: Array, at_limit: Array, position: Any) -> Array:
        """Attend likewise; what is beyond the limit is multiplied as if it were there."""
        found = backend_of(query)
        xp = found.xp
        held = slice(0, self.used)
        far = position[:, None] - self.position[:, held] >= self.limit
        split = int(far[0].sum())
        if split == 0 and not (far & self.valid[:, held]).any():
            return self.attend(query)
        key, raw = self.key[:, :, held, :], self.raw[:, :, held, :]  # type: ignore[index]
        near, beyond = self._rows(query), self._rows(at_limit)
        if far[:, :split].all() and not far[:, split:].any():  # entries are sorted by position
            parts = [
                logits_of(beyond, raw[:, :, :split, :]),
                logits_of(near, key[:, :, split:, :]),
            ]
            logits = xp.concat(parts, axis=-1)
        else:
            flags = found.from_numpy(far)[:, None, None, None, :]
            logits = xp.where(flags, logits_of(beyond, raw), logits_of(near, key))
        output = mix(masked_softmax(logits, self._allowed()), self.value[:, :, held, :])
        return self._restored(query, output)

    def _allowed(self) -> Array | None:
        if self.whole:
            return None
        return backend_of(self.key).from_numpy(self.valid[:, : self.used])[:, None, None, None, :]

    def _rows(self, query: Array) -> Array:
        """Sort query heads under their K/V heads: (batch, kv_heads, group, 1, dim)."""
        batch, _, heads, dim = query.shape
        kv_heads = self.key.shape[1]
        return backend_of(query).xp.reshape(query, (batch, kv_heads, heads // kv_heads, 1, dim))

    def _restored(self, query: Array, output: Array) -> Array:
        xp = backend_of(query).xp
        output = xp.reshape(output, (*query.shape[:3], output.shape[-1]))
        return xp.astype(output, self.dtype, copy=False)

    def reorder(self, index: Any, rows: Array) -> None:
        """Take row ``index[i]`` as row i."""
        take = backend_of(self.key).xp.take
        self.key, self.value = take(self.key, rows, axis=0), take(self.value, rows, axis=0)
        self.raw = None if self.raw is None else take(self.raw, rows, axis=0)
        self.position, self.valid = self.position[index], self.valid[index]
        self.origin = self.origin[index]


def _prepared(layer: AttendreLayer, state: LayerState, origin: Any) -> _Prepared:
    """Sort the entries of a layer by position, real ones first, and turn the keys."""
    kv, encoding = state.kv, layer.encoding
    found = backend_of(kv.key)
    xp = found.xp
    valid, position = (np.asarray(found.to_numpy(x)) for x in (kv.valid, kv.position))
    order = np.argsort(np.where(valid, position, np.iinfo(np.int32).max), axis=1, kind="stable")
    read = max(int(valid.sum(axis=1).max()), 1)
    order, room = order[:, :read], kv.key.shape[2] - read
    empty = np.zeros((len(valid), room), dtype=np.int32)
    valid = np.concatenate([np.take_along_axis(valid, order, axis=1), empty > 0], axis=1)
    position = np.concatenate([np.take_along_axis(position, order, axis=1), empty], axis=1)
    rope, limit = None, np.iinfo(np.int32).max
    if isinstance(encoding, RoPE):
        rope = encoding
    elif isinstance(encoding, LMInfinite):
        rope = encoding.rope or RoPE(base=encoding.base)
        limit = encoding.n_local
    exact = xp.float32 if xp.finfo(kv.key.dtype).bits < 32 else kv.key.dtype
    index = found.from_numpy(order.astype(np.int64))[:, None, :, None]

    def sorted_with_room(array: Array) -> Array:
        batch, heads, _, dim = array.shape
        device = found.device_of(array)
        where = xp.broadcast_to(index, (batch, heads, read, dim))
        held = xp.astype(xp.take_along_axis(array, where, axis=2), exact)
        behind = xp.zeros((batch, heads, room, dim), dtype=exact, device=device)
        return xp.concat([held, behind], axis=2)

    raw = sorted_with_room(kv.key)
    key = raw
    if rope is not None:
        place = found.from_numpy((position - origin[:, None]).astype(np.int32))
        key = rope.rotate(raw, place[:, None, :])
    return _Prepared(
        encoding=encoding,
        rope=rope,
        limit=limit,
        scale=layer.kv_memory.scale,
        key=key,
        value=sorted_with_room(kv.value),
        raw=raw if isinstance(encoding, LMInfinite) else None,
        position=position,
        valid=valid,
        origin=np.array(origin),
        read=read,
        used=read,
        whole=bool(valid[:, :read].all()),
        dtype=kv.key.dtype,
    )
