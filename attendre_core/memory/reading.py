"""Attention over a key-value memory: dense, by threshold, or gathered."""

from __future__ import annotations

from typing import Any, NamedTuple

from attendre_core import checks
from attendre_core.backend import Array, backend_of, numbers
from attendre_core.errors import ConfigError, ShapeError
from attendre_core.memory.attention import Attention, Share
from attendre_core.memory.chunk import check_flags
from attendre_core.memory.state import KeyValueState, RetrievedEntries
from attendre_core.ops.attention import (
    Part,
    attention,
    attention_over,
    grouped,
    logits_of,
    mix,
    ungrouped,
)
from attendre_core.ops.branches import all_true
from attendre_core.ops.finite import surely_finite
from attendre_core.ops.selection import lowest
from attendre_core.ops.slots import gather_slots
from attendre_core.ops.softmax import masked_softmax
from attendre_core.positions.base import Encoded, Encoding, Pairing, Piece, Pieces
from attendre_core.tree import tree_map

__all__ = ["Reading", "attend_dense", "attend_gathered", "attend_selected", "gather_top_k", "read"]


class Reading(NamedTuple):
    """Queries in the memory's layout, ready to attend.

    ``encoded`` holds queries and keys in the precision of the logits, with their positions
    applied; queries that may not be used are zeros. ``broken`` marks real ones with NaN or
    infinity; None if all queries are known to be used. ``view`` is cut off from gradients.
    """

    encoded: Encoded
    value: Array
    valid: Array
    broken: Array | None
    view: Attention
    dtype: Any

    def restore(self, output: Array) -> Array:
        """Bring (batch, G, R, queries, dim) back to (batch, queries, heads, dim)."""
        xp = backend_of(output).xp
        output = ungrouped(output)
        if self.broken is not None:
            output = xp.where(self.valid[:, :, None, None], output, xp.zeros_like(output))
            output = xp.where(self.broken[:, :, None, None], float("nan"), output)
        return xp.astype(output, self.dtype, copy=False)


def read(
    where: str,
    state: KeyValueState,
    query: Array,
    position: Array | None,
    valid: Array | None,
    *,
    scale: float | None,
    causal: bool,
    top_k: int | None,
    passes: int | None,
    encoding: Encoding | None = None,
    encoding_params: Any = None,
    document: Array | None = None,
    key_document: Array | None = None,
    key_sorted: bool = False,
    in_pieces: bool = False,
) -> Reading:
    """Check the queries and bring them into the memory's layout."""
    found = backend_of(state.key)
    xp = found.xp
    batch, heads, _, dim = state.key.shape
    checks.shape(
        where, "query", query, "batch, queries, heads, head_dim", (batch, None, None, dim),
        "Split the heads before attending.",
    )  # fmt: skip
    if query.shape[2] % heads or not query.shape[2]:
        raise ShapeError(
            f"{where}: query has {query.shape[2]} heads, expected a multiple of the memory's "
            f"{heads} K/V heads. Each K/V head serves the same number of query heads."
        )
    checks.same_dtype(where, "query", query, state.key.dtype)
    count = query.shape[1]
    valid = check_flags(where, "valid", valid, (batch, count), query, default=True)
    if position is None:
        position = state.clock[:, None] - count + numbers(count, query)
    else:
        checks.shape(
            where, "position", position, "batch, queries", (batch, count),
            "Give one number to each query of each row.",
        )  # fmt: skip
        position = checks.positions(where, "position", position)
    whole = all_true(valid) and surely_finite(query)
    usable, broken = valid, None
    if not whole:
        finite = checks.finite_rows(where, "query", query, valid, (0, 1))
        usable = valid & finite
        broken = valid & ~finite
    # Half precision would overflow in a sum of logits: products are made in float32.
    exact = xp.float32 if xp.finfo(query.dtype).bits < 32 else query.dtype
    rows = xp.astype(grouped(query, heads), exact, copy=False)
    rows = rows * (dim**-0.5 if scale is None else scale)
    if not whole:
        rows = xp.where(usable[:, None, None, :, None], rows, xp.zeros_like(rows))
    key = xp.astype(state.key, exact, copy=False)
    encoded = Encoded(rows, key)
    if encoding is not None:
        pairing = Pairing(position, usable, state.position, state.valid, key_sorted, in_pieces)
        encoded = encoding.encode(rows, key, pairing, encoding_params)
    same = _same_document(where, document, key_document, (batch, count))
    if encoded.near is not None:
        same = encoded.near if same is None else same & encoded.near

    def cut(array: Array | None) -> Array | None:
        return None if array is None else found.stop_gradient(array)

    def share(row: int, piece: Piece) -> Share:
        def own(array: Array) -> Array:
            array = array[row : row + 1, ...]
            if piece.slots is None:
                return array
            return xp.take(array, piece.slots, axis=array.ndim - 1)

        pairs = None if same is None else own(same)
        if piece.holds is not None:
            pairs = piece.holds if pairs is None else pairs & piece.holds
        view = Attention(
            query=cut(piece.query),
            key=cut(piece.key),
            position=position[row : row + 1, :],
            valid=usable[row : row + 1, :],
            key_position=own(state.position),
            key_valid=own(state.valid) if piece.real is None else piece.real,
            order=own(state.arrival),
            latest_before=state.latest_query[row : row + 1],
            causal=causal and not piece.past,
            same_document=pairs,
            whole=whole,
        )
        return Share(view, piece.slots)

    pieces = encoded.pieces
    rows_of = () if pieces is None else pieces.rows
    view = Attention(
        query=cut(encoded.query),
        key=cut(encoded.key),
        position=position,
        valid=usable,
        key_position=state.position,
        key_valid=state.valid,
        order=state.arrival,
        latest_before=state.latest_query,
        causal=causal,
        top_k=top_k,
        passes=passes,
        bias=cut(encoded.bias),
        logits=cut(encoded.logits),
        same_document=same,
        whole=whole,
        shares=tuple(tuple(share(i, piece) for piece in row) for i, row in enumerate(rows_of)),
        make_logits=None if pieces is None else lambda: cut(pieces.logits()),
    )
    value = xp.astype(state.value, exact, copy=False)
    return Reading(encoded, value, usable, broken, view, query.dtype)


def attend_dense(reading: Reading) -> Array:
    """Attend to every allowed entry."""
    encoded = reading.encoded
    if encoded.pieces is not None:
        return _attend_pieces(encoded.pieces, reading)
    if encoded.bias is None and encoded.logits is None:
        return attention(encoded.query, encoded.key, reading.value, reading.view.attended)
    return mix(masked_softmax(_logits(reading), reading.view.attended), reading.value)


def _attend_pieces(pieces: Pieces, reading: Reading) -> Array:
    """Attend row by row: another row's pieces have other shapes, and would change the rounding."""
    xp = backend_of(reading.value).xp
    rows = []
    for row, (mine, shares) in enumerate(zip(pieces.rows, reading.view.shares, strict=True)):
        value = reading.value[row : row + 1, ...]
        parts = [
            Part(
                piece.query,
                piece.key,
                value if piece.slots is None else xp.take(value, piece.slots, axis=2),
                share.view.attended,
            )
            for piece, share in zip(mine, shares, strict=True)
        ]
        rows.append(attention_over(parts))
    return rows[0] if len(rows) == 1 else xp.concat(rows, axis=0)


def attend_selected(reading: Reading) -> Array:
    """Attend to the top K, found by a threshold on the logits and never gathered."""
    return reading.view.over_top_k(_logits(reading), reading.value)


def attend_gathered(reading: Reading, top_k: int) -> Array:
    """Attend to the top K, gathered for every query and head as in the paper."""
    xp = backend_of(reading.value).xp
    index, allowed = _top_indices(reading.view, top_k)
    value = _gathered(reading.value, index)
    encoded = reading.encoded
    if encoded.logits is not None:
        logits = xp.take_along_axis(encoded.logits, index, axis=-1)
    else:
        key = _gathered(encoded.key, index)
        logits = xp.sum(encoded.query[..., None, :] * key, axis=-1, dtype=key.dtype)
        if encoded.bias is not None:
            bias = xp.broadcast_to(encoded.bias, reading.view.logits.shape)
            logits = logits + xp.take_along_axis(bias, index, axis=-1)
    weights = masked_softmax(logits, allowed)
    return xp.sum(weights[..., None] * value, axis=-2, dtype=value.dtype)


def _logits(reading: Reading) -> Array:
    """Compute the logits once, for the output and for the policy."""
    encoded = reading.encoded
    if encoded.logits is not None:
        return encoded.logits
    logits = logits_of(encoded.query, encoded.key)
    if encoded.bias is not None:
        logits = logits + encoded.bias
    reading.view.provide(backend_of(logits).stop_gradient(logits))
    return logits


def _same_document(
    where: str, document: Array | None, key_document: Array | None, expected: tuple[int, int]
) -> Array | None:
    """Compare document ids, (batch, 1 or G, 1, queries, slots); None when there are none."""
    if document is None:
        return None
    if key_document is None:
        raise ConfigError(
            f"{where}: document ids were given for the queries, but the entries have none. Insert "
            "them as aux={'document': ids} and make the state with such an example."
        )
    checks.shape(
        where, "document", document, "batch, queries", expected, "Give one id to each query."
    )
    keys = key_document
    keys = keys[:, None, None, None, :] if keys.ndim == 2 else keys[:, :, None, None, :]
    return document[:, None, None, :, None] == keys


def gather_top_k(reading: Reading, state: KeyValueState, top_k: int) -> RetrievedEntries:
    """Gather what each query and head retrieves, best first."""
    xp = backend_of(state.key).xp
    batch, heads, group, count, _ = reading.encoded.query.shape
    index, allowed = _top_indices(reading.view, top_k)
    similarity = xp.take_along_axis(reading.view.logits, index, axis=-1)
    per_head = state.valid.ndim == 3

    def public(x: Array) -> Array:
        """(batch, G, R, queries, K, ...) to (batch, queries, heads, K, ...)."""
        rest = tuple(range(4, x.ndim))
        x = xp.permute_dims(x, (0, 3, 1, 2, *rest))
        return xp.reshape(x, (batch, count, heads * group, *x.shape[4:]))

    def cleaned(x: Array) -> Array:
        flags = xp.reshape(allowed, allowed.shape + (1,) * (x.ndim - allowed.ndim))
        return public(xp.where(flags, x, xp.zeros_like(x)))

    def record(x: Array) -> Array:
        """Gather from (batch, slots, ...) or (batch, G, slots, ...)."""
        if not per_head:
            x = xp.broadcast_to(x[:, None, ...], (batch, heads, *x.shape[1:]))
        return _gathered(x, index)

    none = xp.full_like(index, -1)
    at = record(state.position)
    return RetrievedEntries(
        key=cleaned(_gathered(state.key, index)),
        value=cleaned(_gathered(state.value, index)),
        similarity=public(xp.where(allowed, similarity, -float("inf"))),
        position=public(xp.where(allowed, at, xp.full_like(at, -1))),
        valid=public(allowed),
        index=public(xp.where(allowed, index, none)),
        aux=tree_map(lambda leaf: cleaned(record(leaf)), state.aux),
    )


def _top_indices(view: Attention, top_k: int) -> tuple[Array, Array]:
    """Return the slots of the top K, (batch, G, R, queries, K), best first, and which are real."""
    xp = backend_of(view.logits).xp
    logits = view.logits
    allowed = xp.broadcast_to(view.allowed, logits.shape)
    upside_down = xp.where(allowed, -logits, float("inf"))
    index = lowest(upside_down, xp.broadcast_to(-view.order, logits.shape), top_k)
    return index, xp.take_along_axis(allowed, index, axis=-1)


def _gathered(array: Array, index: Array) -> Array:
    """Gather (batch, G, slots, ...) by (batch, G, R, queries, K)."""
    xp = backend_of(array).xp
    batch, heads, group, count, k = index.shape
    flat = xp.reshape(index, (batch, heads, group * count * k))
    taken = gather_slots(array, flat, axis=2)
    return xp.reshape(taken, (batch, heads, group, count, k, *array.shape[3:]))
