"""Terms for different distances, in compiled code: sorted keys, a block at a time.

::

    keys by position   | far . . . | far . near | near . . . |
    each block         one product   all three    one product      decided when the program runs

With keys sorted by position, all pairs of a block need the same term and are multiplied once,
except in blocks at the edges of a term. There are few blocks, because compiled code contains every
branch of each.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attendre_core.backend import Array, wide
from attendre_core.ops.dense import logits_of, masked_softmax, mix
from attendre_core.ops.pairs import Pairs, Term, allowed_pairs, visible_pairs
from attendre_jax.kernels import gather_slots

__all__ = ["attend", "sum_logits"]

_BLOCK = 128
_MOST_BLOCKS = 8
_FAR = 2**30


class _Sorted(NamedTuple):
    """Pairs with slots sorted by position, empty ones last; the sorting index; the logits."""

    pairs: Pairs
    index: Array
    logits: Array


def attend(pairs: Pairs, value: Array) -> Array:
    """Attend to sorted slots; decline single terms, biases and masks."""
    found = _sorted(pairs)
    if found is None:
        return NotImplemented
    value = gather_slots(value, found.index, axis=2)
    return mix(masked_softmax(found.logits, visible_pairs(found.pairs)), value)


def sum_logits(pairs: Pairs, weight: Array | None = None) -> Array:
    """Sum the logits of sorted slots and put the sums back in order."""
    found = _sorted(pairs)
    if found is None:
        return NotImplemented
    factor = pairs.query_valid.astype(found.logits.dtype)
    factor = factor if weight is None else factor * weight
    if pairs.causal:
        amounts = found.logits * factor[:, None, None, :, None]
        sums = jnp.sum(jnp.where(allowed_pairs(found.pairs), amounts, 0.0), axis=3)
    else:
        sums = jnp.matmul(factor[:, None, None, None, :], found.logits)[..., 0, :]
    return _back(sums, found.index)


def _back(array: Array, index: Array) -> Array:
    """Undo the sorting of slots on the last axis."""
    back = jnp.argsort(index, axis=-1)

    def of_row(row: Array, where: Array) -> Array:
        return row.at[..., where].get(mode="promise_in_bounds")

    return jax.vmap(of_row)(array, back)


def _sorted(pairs: Pairs) -> _Sorted | None:
    if len(pairs.terms) == 1 or not pairs.is_plain or pairs.near is not None:
        return None
    slots = pairs.key_place.shape[2]
    if pairs.key_place.shape[1] != 1 or not isinstance(slots, int) or slots < 2 * _BLOCK:
        return None
    place = jnp.where(pairs.key_valid, pairs.key_place, _FAR)[:, 0, :]
    index = jnp.argsort(place, axis=-1, stable=True)

    def taken(array: Array) -> Array:
        return gather_slots(array[:, 0, :], index, axis=1)[:, None, :]

    key = gather_slots(pairs.terms[0].plain_key, index, axis=2)
    terms = tuple(
        Term(
            *(term.query, key, term.rotate, None),
            term.key_at if term.key_at is None or term.key_at.shape[2] == 1 else taken(term.key_at),
            *(term.low, term.high),
        )
        for term in pairs.terms
    )
    arranged = pairs._replace(
        key_position=taken(pairs.key_position), key_valid=taken(pairs.key_valid),
        order=taken(pairs.order), key_place=taken(pairs.key_place), terms=terms,
    )  # fmt: skip
    return _Sorted(arranged, index, _by_blocks(arranged))


def _by_blocks(pairs: Pairs) -> Array:
    slots = pairs.key_place.shape[2]
    width = max(_BLOCK, -(-slots // _MOST_BLOCKS))
    parts = [slice(start, min(start + width, slots)) for start in range(0, slots, width)]
    return jnp.concatenate([_block(pairs, part) for part in parts], axis=-1)


def _block(pairs: Pairs, part: slice) -> Array:
    """Multiply one block for the single term that all its pairs need, or for all terms."""
    real = pairs.query_valid[:, None, None, :]
    at, held = pairs.key_place[:, :, part], pairs.key_valid[:, :, part]
    first = jnp.min(jnp.where(real, pairs.query_place, _FAR), axis=-1)
    last = jnp.max(jnp.where(real, pairs.query_place, -_FAR), axis=-1)
    some = held & (first <= last)
    taken, flags = jnp.zeros_like(held), []
    for term in reversed(pairs.terms):
        flags.append(jnp.any(some & _inside(term, last - at, first - at) & ~taken))
        taken = taken | _inside(term, first - at, last - at)
    flags.reverse()
    number = sum(flag.astype(jnp.int32) for flag in flags)
    which = sum(flag.astype(jnp.int32) * i for i, flag in enumerate(flags))
    which = jnp.where(number > 1, len(flags), which)
    distance = pairs.query_place[..., None] - at[:, :, None, None, :]

    def of(term: Term) -> Array:
        keys, by = wide(term.plain_key[:, :, part, :]), term.key_at
        if by is not None and term.rotate is not None:
            keys = term.rotate(keys, by if by.shape[2] == 1 else by[:, :, part])
        return logits_of(term.query, keys)

    def merged() -> Array:
        result = of(pairs.terms[0])
        for term in pairs.terms[1:]:
            result = jnp.where(_inside(term, distance, distance), of(term), result)
        return result

    branches = [lambda term=term: of(term) for term in pairs.terms]
    result: jax.Array = lax.switch(which, [*branches, merged])
    return result


def _inside(term: Term, lower: Array, upper: Array) -> Array:
    """Return whether ``lower`` reaches a term's low bound and ``upper`` is below its high bound."""
    inside = lower == lower if term.low is None else lower >= term.low
    return inside if term.high is None else inside & (upper < term.high)
