"""Queries and keys with positions, and the logits that a scheme gives them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attendre_conformance import options
from attendre_conformance.positions.cases import table_for
from attendre_conformance.running import compiles, from_numpy
from attendre_core.positions import Pairing

BATCH, GROUPS, SHARE, QUERIES, SLOTS, DIM = options.rows, 2, 2, 3, 5, 8


@lru_cache(maxsize=64)
def encoder(backend: Any, encoding: Any, compiled: bool) -> Any:
    """Return a scheme as a function of arrays alone."""

    def encode(query: Any, key: Any, where: Any, table: Any) -> Any:
        return encoding.encode(query, key, Pairing(*where), table)

    return backend.compile(encode) if compiled else encode


def logits_of(backend: Any, encoding: Any, arrays: tuple[Any, ...], eager: bool = False) -> Any:
    """Apply a scheme to (query, key, positions and flags) and multiply: NumPy in and out."""
    query, key, *where = from_numpy(backend, arrays)
    table = from_numpy(backend, table_for(encoding, GROUPS * SHARE))
    function = encoder(backend, encoding, compiles(backend) and not eager)
    encoded = function(query, key, tuple(where), table)
    if encoded.logits is not None:
        return np.asarray(backend.to_numpy(encoded.logits))
    q, k = (np.asarray(backend.to_numpy(x)) for x in (encoded.query, encoded.key))
    logits = np.einsum("bgrqd,bgkd->bgrqk", q, k)
    return logits if encoded.bias is None else logits + np.asarray(backend.to_numpy(encoded.bias))


@st.composite
def pairings(draw: st.DrawFn, per_head: bool = False, far: int = 40) -> tuple[Any, ...]:
    """Draw queries, keys, and where they stand, in any order; some of them are not real."""
    seed = draw(st.integers(0, 2**32 - 1), label="seed of the numbers")
    rng = np.random.default_rng(seed)
    slots = (BATCH, GROUPS, SLOTS) if per_head else (BATCH, SLOTS)

    def numbers(below: int, shape: tuple[int, ...], label: str) -> Any:
        size = int(np.prod(shape))
        raw = draw(st.binary(min_size=size, max_size=size), label=label)
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape) % below

    return (
        rng.standard_normal((BATCH, GROUPS, SHARE, QUERIES, DIM)).astype(np.float32),
        rng.standard_normal((BATCH, GROUPS, SLOTS, DIM)).astype(np.float32),
        numbers(far + 1, (BATCH, QUERIES), "query positions").astype(np.int32),
        numbers(4, (BATCH, QUERIES), "query flags") > 0,
        numbers(far + 1, slots, "key positions").astype(np.int32),
        numbers(4, slots, "key flags") > 0,
    )
