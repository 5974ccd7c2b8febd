"""Stores: search against all products in plain loops, what is taken and saved, real deletions."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.beyond.written import moved, normal
from attendre_core.stores import store as stores

pytestmark = pytest.mark.attendre_profile("laws")

ENTRIES, BY, WIDTH = 11, 3, 5


def entries() -> tuple[Any, Any, Any]:
    """Search keys with ties, keys and values."""
    return np.round(normal(1, ENTRIES, WIDTH)), normal(2, ENTRIES, 2, 4), normal(3, ENTRIES, 2, 4)


def by_hand(search: Any, query: Any, count: int) -> list[int]:
    """Return the chunks whose mean search keys have the largest products, the first of equals."""
    means = [search[n : n + BY].astype(np.float64).mean(0) for n in range(0, ENTRIES, BY)]
    products = np.stack(means).astype(np.float32) @ query
    return sorted(range(len(means)), key=lambda n: (-products[n], n))[:count]


def test_store_search_and_take_are_plain_loops(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of mean keys, the last one shorter; however many rows are compared at once."""
    xp, (search, key, value) = backend, entries()
    query = np.round(normal(4, 3, WIDTH))
    for rows in (2, 1000):
        monkeypatch.setattr(stores, "_ROWS", rows)
        store = at.Store.build(*(moved(xp, x) for x in (search, key, value)), by=BY, xp=xp)
        for count in (1, 3, 4):
            want = [by_hand(search, asked, count) for asked in query]
            assert store.search(moved(xp, query), count).index.tolist() == want
    index = [3, 0]
    taken = {name: xp.to_numpy(x) for name, x in store.take(index).items()}
    for place, chunk in enumerate(index):
        own = slice(chunk * BY, min(chunk * BY + BY, ENTRIES))
        count = own.stop - own.start
        assert taken["valid"][place].tolist() == [n < count for n in range(BY)]
        np.testing.assert_array_equal(taken["key"][place][:count], key[own])
        np.testing.assert_array_equal(taken["value"][place][:count], value[own])


def test_a_saved_store_is_the_same_and_damage_is_refused(backend: Any) -> None:
    xp = backend
    store = at.Store.build(*entries(), by=BY)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        store.save(path)
        opened, query = at.Store.open(path, xp=xp), moved(xp, normal(4, WIDTH))
        assert opened.search(query, 4).index.tolist() == store.search(query, 4).index.tolist()
        for name, array in opened.take([1, 3]).items():
            np.testing.assert_array_equal(xp.to_numpy(array), store.take([1, 3])[name])
        raw = path.read_bytes()
        length = 8 + int.from_bytes(raw[:8], "little")
        other = bytes([raw[length + 40] ^ 1])
        damaged = {
            "a changed number": raw[: length + 40] + other + raw[length + 41 :],
            "a cut file": raw[:-4],
            "more than it describes": raw + bytes(8),
            "shape": raw.replace(b"[4, 3, 2, 4]", b"[4, 3, 4, 4]", 1),
        }
        del opened
        for content in damaged.values():
            path.write_bytes(content)
            with pytest.raises(at.StateError):
                at.Store.open(path)


@pytest.mark.parametrize("delete", ["oldest", "least-used"])
def test_a_host_store_deletes_for_good(backend: Any, delete: Any) -> None:
    """Capacity, what is deleted and handed back, and what is found, against lists."""
    xp, capacity, count, near_by = backend, 6, 4, 5
    rng = np.random.default_rng(0)
    store = at.HostStore(capacity, delete=delete)
    memory = at.Tiers(at.KeyValueMemory(count), at.HostTier(store, top_k=near_by))
    state = memory.init(batch=1, heads=1, head_dim=3, xp=xp)
    held: list[list[float]] = []  # position, attention so far
    keys: dict[int, Any] = {}
    for step in range(8):
        key = rng.standard_normal((1, count, 1, 3)).astype(np.float32)
        keys |= {step * count + n: key[0, n, 0] for n in range(count)}
        state, gone = memory.insert(state, moved(xp, key), moved(xp, key))
        arrived = [(step - 1) * count + n for n in range(count)] if step else []
        over = max(len(held) + len(arrived) - capacity, 0)
        order = sorted(held, key=lambda e: (e[1] if delete == "least-used" else 0, e[0]))
        want = sorted(int(e[0]) for e in order[:over])
        valid = xp.to_numpy(gone.valid)[0]
        assert xp.to_numpy(gone.position)[0][valid].tolist() == want
        held = [e for e in held if e[0] not in want] + [[p, 0.0] for p in arrived]
        assert sorted(store.positions()) == sorted(e[0] for e in held)
        query = rng.standard_normal((1, 1, 1, 3)).astype(np.float32)
        state, output = memory.attend(state, moved(xp, query))
        near = sorted(held, key=lambda e: -float(keys[int(e[0])] @ query[0, 0, 0]))[:near_by]
        local = [keys[step * count + n] for n in range(count)]
        every = np.stack([*local, *(keys[int(e[0])] for e in near)]).astype(np.float64)
        weight = np.exp(every @ query[0, 0, 0] / np.sqrt(3))
        weight /= weight.sum()
        np.testing.assert_allclose(xp.to_numpy(output)[0, 0, 0], weight @ every, atol=2e-5)
        for entry, share in zip(near, weight[count:], strict=True):
            entry[1] += share
    assert len(held) == capacity
