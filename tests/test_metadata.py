"""Anything array-shaped travels with the entries and comes back with them."""

import numpy as np
import pytest

import attendre_core as at


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("present", ["compete", "visible"])
def test_metadata_follows_its_entry_everywhere(per_head, present):
    memory = at.KeyValueMemory(
        size=6, policy=at.LFA(initial=at.InitialScore(0.0)), per_head=per_head, present=present
    )
    example = {"document": np.zeros((2, 1), dtype=np.int32), "more": (np.zeros((2, 1, 3)),)}
    state = memory.init(batch=2, heads=2, head_dim=4, aux=example, chunk=4)
    rng = np.random.default_rng(3)

    def check(position, aux, valid):
        assert (aux["document"] == position * 7)[valid].all()
        assert (aux["more"][0] == position[..., None] + np.arange(3))[valid].all()

    for step in range(6):
        key, query = rng.normal(size=(2, 2, 4, 2, 4)).astype(np.float32)
        position = np.broadcast_to(np.arange(4, dtype=np.int32) + 4 * step, (2, 4))
        aux = {"document": position * 7, "more": (position[..., None] + np.arange(3.0),)}
        valid = rng.random((2, 4)) < 0.8
        state, evicted = memory.insert(state, key, key, position, valid, aux=aux)
        check(evicted.position, evicted.aux, evicted.valid)
        state, found = memory.retrieve(state, query, position, valid, top_k=3)
        check(found.position, found.aux, found.valid)
        entries = memory.entries(state)
        check(entries.position, entries.aux, entries.valid)


@pytest.mark.parametrize(
    ("shown", "given", "message"),
    [
        (None, {"a": np.zeros((1, 2))}, "none was given to init"),
        ({"a": np.zeros((1, 1))}, None, "init was given an example"),
        ({"a": np.zeros((1, 1))}, {"b": np.zeros((1, 2))}, "nested in another way"),
        ({"a": np.zeros((1, 1))}, {"a": np.zeros((1, 3))}, "expected (1, 2)"),
        ({"a": np.zeros((1, 1))}, {"a": np.zeros((1, 2), dtype=bool)}, "expected float64"),
    ],
)
def test_other_metadata_than_shown_is_refused(shown, given, message):
    memory = at.KeyValueMemory(size=6)
    state = memory.init(batch=1, heads=1, head_dim=2, aux=shown)
    chunk = np.zeros((1, 2, 1, 2), dtype=np.float32)
    with pytest.raises((at.ConfigError, at.ShapeError, at.DTypeError)) as caught:
        memory.insert(state, chunk, chunk, aux=given)
    assert message in str(caught.value)
