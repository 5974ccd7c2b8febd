"""Laws of ties under LM-Infinite: beyond the band all pairs are alike, to the last bit.

Where keys have a single number that is not zero, a clamped logit is one product: no library can
round it in two ways, and equal keys tie wherever and however they are multiplied. Where they have
more, the same row must at least be rounded in the same way whatever is in other rows.
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
from attendre_conformance.memory.streams import dyadic
from attendre_conformance.options import law
from attendre_conformance.running import compiles, few, from_numpy, to_numpy

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

    Specification, reading 31: the distance is clamped; readings 15 and 17: of equals the later one.
    """
    compiled = data.draw(st.sampled_from(ways(backend)), label="compiled")
    near = data.draw(st.sampled_from((3,) if compiled else (3, 1, 0, 6)), label="n_local")
    top_k = data.draw(st.sampled_from((2,) if compiled else (2, 1, 5)), label="top_k")
    ahead = data.draw(st.booleans(), label="entries lie ahead of the queries")
    stride = data.draw(st.sampled_from((1, 2)), label="distance of positions")
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
    """With n_local = 0 every pair is clamped: nothing is rotated, so nothing is rounded.

    Specification, readings 15, 17 and 31: dyadic logits have exact ties, which must not be broken.
    """
    compiled = data.draw(st.sampled_from(ways(backend)), label="compiled")
    top_k = data.draw(st.sampled_from((3,) if compiled else (3, 1, 5)), label="top_k")
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


#: Slots, queries and head_dim of a memory that is too long to be multiplied in one piece.
LONG, QUERIES, WIDTH = 300, 6, 64


def long_rows(data: st.DataObject) -> tuple[Any, ...]:
    """Draw a long memory and queries: key, value, position, query and its position."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    stride = data.draw(st.sampled_from((1, 3)), label="distance of positions")
    middle = data.draw(st.sampled_from((0, 150, 330)), label="where the queries are")
    spread = data.draw(st.sampled_from((1, 40)), label="distance of queries")
    order = np.stack([rng.permutation(LONG) for _ in range(ROWS)])
    offset = np.arange(ROWS)[:, None] * data.draw(st.sampled_from((0, 170)), label="rows apart")
    places = stride * (middle + offset + spread * np.arange(QUERIES))
    return (
        rng.standard_normal((ROWS, LONG, 1, WIDTH)).astype(np.float32),
        rng.standard_normal((ROWS, LONG, 1, WIDTH)).astype(np.float32),
        (stride * order).astype(np.int32),
        rng.standard_normal((ROWS, QUERIES, HEADS, WIDTH)).astype(np.float32),
        places.astype(np.int32),
    )


@lru_cache(maxsize=16)
def attending_long(backend: Any, near: int, top_k: int | None) -> Any:
    """Return a function that attends to a long memory, compiled where streams are."""
    memory = at.KeyValueMemory(LONG)

    def attend(key: Any, value: Any, position: Any, query: Any, places: Any) -> Any:
        state = memory.init(batch=ROWS, heads=1, head_dim=WIDTH, xp=backend)
        state, _ = memory.insert(state, key, value, position)
        encoding = at.LMInfinite(near)
        return memory.attend(state, query, places, top_k=top_k, encoding=encoding)[1]

    return backend.compile(attend) if compiles(backend) else attend


def attend_long(backend: Any, near: int, top_k: int | None, arrays: tuple[Any, ...]) -> Any:
    """Attend to a long memory, NumPy in and out."""
    function = attending_long(backend, near, top_k)
    return to_numpy(backend, function(*from_numpy(backend, arrays)))


@law()
@given(data=st.data())
def test_long_memories_equal_brute_force(backend: Any, data: st.DataObject) -> None:
    """However a long memory is cut up, every pair is clamped by itself.

    Specification, reading 31: clip(i - j, -n_local, +n_local).
    """
    near = data.draw(st.sampled_from(few(backend, (100, 0, 5, 1000), 2)), label="n_local")
    arrays = long_rows(data)
    got = attend_long(backend, near, None, arrays)
    key, value, position, query, places = (np.asarray(x, dtype=np.float64) for x in arrays)
    distance = np.clip(places[:, :, None] - position[:, None, :], -near, near)
    angle = distance[..., None] * 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    half = WIDTH // 2
    (a, b), (c, d) = ((x[..., :half], x[..., half:]) for x in (query, key[:, :, 0]))
    straight = np.einsum("bqhd,bkd,bqkd->bhqk", a, c, np.cos(angle))
    straight += np.einsum("bqhd,bkd,bqkd->bhqk", b, d, np.cos(angle))
    crossed = np.einsum("bqhd,bkd,bqkd->bhqk", a, d, np.sin(angle))
    crossed -= np.einsum("bqhd,bkd,bqkd->bhqk", b, c, np.sin(angle))
    weights = np.exp((straight + crossed) * WIDTH**-0.5)
    weights /= weights.sum(axis=-1, keepdims=True)
    want = np.einsum("bhqk,bkd->bqhd", weights, value[:, :, 0])
    comparing.assert_close(got, want, f"n_local={near}: output", scale=5)


@law()
@given(data=st.data())
def test_other_rows_do_not_change_how_a_row_is_rounded(backend: Any, data: st.DataObject) -> None:
    """What other rows need must not change a bit of this one, or they would decide its ties.

    Specification, law-rows.
    """
    near = data.draw(st.sampled_from(few(backend, (100, 5))), label="n_local")
    top_k = data.draw(st.sampled_from(few(backend, (4, None))), label="top_k")
    row = data.draw(st.integers(0, ROWS - 1), label="row")
    *entries, places = long_rows(data)
    by = np.resize(np.asarray([-700, 200, 1000, 0], dtype=np.int32), (ROWS, 1))
    moved = np.where(np.arange(ROWS)[:, None] == row, places, places + by).astype(np.int32)
    got, other = (attend_long(backend, near, top_k, (*entries, at_)) for at_ in (places, moved))
    comparing.assert_same(got[row], other[row], f"n_local={near}, top_k={top_k}, row {row}: output")
