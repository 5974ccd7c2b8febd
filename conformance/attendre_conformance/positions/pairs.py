"""Queries and keys with positions, and the logits that a scheme gives them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attendre_conformance import options
from attendre_conformance.positions.cases import table_for
from attendre_conformance.running import compiles, from_numpy
from attendre_core import ops
from attendre_core.backend import numbers
from attendre_core.positions import Places

BATCH, GROUPS, SHARE, QUERIES, SLOTS, DIM = options.rows, 2, 2, 3, 5, 8


def pairs_of(encoding: Any, query: Any, key: Any, where: tuple[Any, ...], table: Any) -> Any:
    """Set queries against keys under a scheme: what a memory does before it attends."""
    query_at, query_valid, key_at, key_valid = where
    if key_at.ndim == 2:
        key_at, key_valid = key_at[:, None, :], key_valid[:, None, :]
    places = Places(query_at[:, None, None, :], key_at, query_valid, key_valid)
    encoded = encoding.encode(query, key, places, table)
    return ops.Pairs(
        query_position=places.query,
        key_position=key_at,
        query_valid=query_valid,
        key_valid=key_valid,
        order=numbers(key_at.shape[-1], key_at)[None, None, :],
        terms=encoded.terms,
        query_place=encoded.places.query,
        key_place=encoded.places.key,
        bias=encoded.bias,
        near=encoded.near,
    )


@lru_cache(maxsize=64)
def encoder(backend: Any, encoding: Any, compiled: bool) -> Any:
    """Return the logits under a scheme as a function of arrays alone."""

    def encode(query: Any, key: Any, where: Any, table: Any) -> Any:
        return ops.logits(pairs_of(encoding, query, key, where, table))

    return backend.compile(encode) if compiled else encode


def logits_of(backend: Any, encoding: Any, arrays: tuple[Any, ...], eager: bool = False) -> Any:
    """Apply a scheme to (query, key, positions and flags) and multiply: NumPy in and out."""
    query, key, *where = from_numpy(backend, arrays)
    table = from_numpy(backend, table_for(encoding, GROUPS * SHARE, DIM))
    function = encoder(backend, encoding, compiles(backend) and not eager)
    return np.asarray(backend.to_numpy(function(query, key, tuple(where), table)))


@st.composite
def pairings(draw: st.DrawFn, per_head: bool = False, far: int = 40) -> tuple[Any, ...]:
    """Draw queries, keys, and their positions, in any order; some of them are not real."""
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
