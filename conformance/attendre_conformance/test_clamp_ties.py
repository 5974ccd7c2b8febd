"""Laws of ties under LM-Infinite: beyond the band all pairs are alike, to the last bit.

Keys have a single number that is not zero, so that a clamped logit is one product: no library can
round it in two ways, and equal keys tie wherever and however they are multiplied.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing, options
from attendre_conformance.options import law
from attendre_conformance.running import few, from_numpy, to_numpy
from attendre_conformance.streams import dyadic

pytestmark = pytest.mark.attendre_profile("laws")

ROWS, SIZE, HEADS, DIM = options.rows, 7, 2, 4
MEMORY = at.KeyValueMemory(SIZE)


def filled(backend: Any, key: Any, value: Any, position: Any) -> Any:
    """Return a full state with one K/V head."""
    state = MEMORY.init(batch=ROWS, heads=1, head_dim=DIM, xp=backend)
    return MEMORY.insert(state, *from_numpy(backend, (key, value, position)))[0]


@lru_cache(maxsize=64)
def attending(backend: Any, encoding: Any, top_k: int, compiled: bool) -> Any:
    """Return a function that attends, the same one for the same choices."""

    def attend(state: Any, query: Any, position: Any) -> Any:
        return MEMORY.attend(state, query, position, top_k=top_k, encoding=encoding)[1]

    return backend.compile(attend) if compiled else attend


def attended(backend: Any, encoding: Any, top_k: int, compiled: bool, *arrays: Any) -> Any:
    """Let NumPy queries attend: keys, values and positions of the entries, then of the queries."""
    state = filled(backend, *arrays[:3])
    function = attending(backend, encoding, top_k, compiled)
    return to_numpy(backend, function(state, *from_numpy(backend, arrays[3:])))


def ways(backend: Any) -> list[bool]:
    """Return how steps may run on a backend: eager, compiled or both."""
    both = [False, True] if "compile" in backend.capabilities else [False]
    return few(backend, both[::-1])


@law()
@given(data=st.data())
def test_equal_keys_at_and_beyond_the_clamp_tie(backend: Any, data: st.DataObject) -> None:
    """Entries with equal keys, all n_local or more away, tie: the last inserted are retrieved.

    SPEC, row 31: the distance is clamped; rows 15 and 17: of equals the later one.
    """
    near = data.draw(st.sampled_from(few(backend, (3, 1, 0, 6), 2)), label="n_local")
    top_k = data.draw(st.sampled_from(few(backend, (2, 1, 5))), label="top_k")
    ahead = data.draw(st.booleans(), label="entries lie ahead of the queries")
    stride = data.draw(st.sampled_from((1, 2)), label="distance of positions")
    compiled = data.draw(st.sampled_from(ways(backend)), label="compiled")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    # Arrival and position are two things: entries come in any order.
    order = np.stack([rng.permutation(SIZE) for _ in range(ROWS)])
    position = (40 + np.arange(ROWS)[:, None] * 9 + stride * order).astype(np.int32)
    key = np.zeros((ROWS, SIZE, 1, DIM), dtype=np.float32)
    for row in range(ROWS):
        key[row, :, 0, rng.integers(DIM)] = rng.choice((-0.5, 0.25, 2.0))
    value = np.zeros((ROWS, SIZE, 1, DIM), dtype=np.float32)
    value[..., 0] = np.arange(SIZE)[:, None]  # says which entry it is
    query = rng.standard_normal((ROWS, 3, HEADS, DIM)).astype(np.float32)
    # The first query is n_local from the nearest entry, the second farther; the third is among
    # the entries, so that some of them are near to one query and far from another.
    if ahead:
        places = position.min(axis=1)[:, None] + np.asarray([-near, -near - 5, 2])
    else:
        places = position.max(axis=1)[:, None] + np.asarray([near, near + 5, -2])
    got = attended(
        backend, at.LMInfinite(near), top_k, compiled, key, value, position, query,
        places.astype(np.int32),
    )  # fmt: skip
    want = np.full((ROWS, 2, HEADS), np.mean(np.arange(SIZE - top_k, SIZE)))
    comparing.assert_close(
        got[:, :2, :, 0],
        want,
        f"n_local={near}, top_k={top_k}, {'compiled' if compiled else 'eager'}, entries at "
        f"{position.tolist()}, queries at {places.tolist()}: mean number of the entries retrieved",
    )


@law()
@given(data=st.data())
def test_a_band_of_nothing_ties_as_no_positions_do(backend: Any, data: st.DataObject) -> None:
    """With n_local = 0 every pair is clamped: nothing is turned, so nothing is rounded.

    SPEC, rows 15, 17 and 31: dyadic logits have exact ties, which must not be broken.
    """
    top_k = data.draw(st.sampled_from(few(backend, (3, 1, 5))), label="top_k")
    compiled = data.draw(st.sampled_from(ways(backend)), label="compiled")
    count = ROWS * SIZE * (2 + HEADS) * DIM
    raw = data.draw(st.binary(min_size=count, max_size=count), label="contents")
    numbers = dyadic(raw, 3).reshape(ROWS, SIZE, 2 + HEADS, DIM)
    key, value, query = numbers[:, :, :1], numbers[:, :, 1:2].copy(), numbers[:, :, 2:]
    value[..., 0] = np.arange(SIZE)[:, None]
    position = (np.arange(ROWS)[:, None] * 7 + np.arange(SIZE) * 2).astype(np.int32)
    arrays = (key, value, position, query, position)
    got, want = (
        attended(backend, encoding, top_k, compiled, *arrays)
        for encoding in (at.LMInfinite(0), at.NoPosition())
    )
    comparing.assert_close(got, want, f"top_k={top_k}: output, against no positions")
