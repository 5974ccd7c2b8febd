"""Each writer is its own formula; padding and other rows change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.beyond.written import DIM, SIZE, WRITERS, moved, normal, parameters, read
from attendre_core.written import WrittenState

pytestmark = pytest.mark.attendre_profile("laws")

EACH = pytest.mark.parametrize("writer", WRITERS)


@EACH
@pytest.mark.parametrize("with_output", [False, True])
def test_each_writer_is_its_formula(backend: Any, writer: str, with_output: bool) -> None:
    """Two chunks, two rows of different lengths, with garbage in the padding."""
    xp, (spec, formula) = backend, WRITERS[writer]
    if with_output and writer != "token-turing":
        pytest.skip("the others do not read what the network made of the input")
    params, memory = parameters(spec), at.WrittenMemory(spec)
    state = memory.init(batch=2, dim=DIM, params=moved(xp, params))
    want = xp.to_numpy(state.slots).astype(np.float64)
    if writer == "memformer":
        length = np.sqrt(np.sum(params["forget"] ** 2, axis=-1, keepdims=True))
        np.testing.assert_allclose(want[1], params["forget"] / length, atol=1e-6)
    else:
        assert (want == 0).all()
    lengths = ((4, 2), (3, 4))
    for step, counts in enumerate(lengths):
        x = normal(20 + step, 2, 4, DIM)
        valid = np.asarray([[n < count for n in range(4)] for count in counts])
        y = normal(30 + step, 2, 4, DIM) if with_output else None
        want = np.stack(
            [
                formula(params, want[b], x[b, : counts[b]], y if y is None else y[b, : counts[b]])
                for b in range(2)
            ]
        )
        x = np.where(valid[..., None], x, np.float32("nan"))
        given = moved(xp, {"x": x, "y": y, "valid": valid})
        state = memory.write(state, moved(xp, params), **given)
        np.testing.assert_allclose(xp.to_numpy(memory.get_all(state)), want, atol=2e-5)


def test_slots_beside_a_memory_are_one_softmax(backend: Any) -> None:
    xp, memory = backend, at.WrittenMemory(at.TokenTuring(SIZE))
    slots, to_key, to_value = normal(1, 1, SIZE, DIM), normal(2, DIM, 4), normal(3, DIM, 4)
    key, value, query = (normal(seed, 1, 2, 2, 2) for seed in (4, 5, 6))
    beside = memory.beside(
        WrittenState(moved(xp, slots)), moved(xp, to_key), moved(xp, to_value), kv_heads=2
    )
    kv = at.KeyValueMemory(4)
    state, _ = kv.insert(kv.init(like=moved(xp, key)), moved(xp, key), moved(xp, value))
    _, output = kv.attend(state, moved(xp, query), beside=beside)
    for t, head in np.ndindex(2, 2):
        own = slice(2 * head, 2 * head + 2)
        keys = [*key[0, :, head], *(slots[0] @ to_key)[:, own]]
        values = [*value[0, :, head], *(slots[0] @ to_value)[:, own]]
        wanted = read(query[0, t, head], keys, values, heads=1)
        np.testing.assert_allclose(xp.to_numpy(output)[0, t, head], wanted, atol=2e-6)


@EACH
def test_padding_and_rows(backend: Any, writer: str) -> None:
    """More padding changes nothing, nor do other rows; a row of padding keeps its slots."""
    spec = WRITERS[writer][0]
    params, memory = moved(backend, parameters(spec)), at.WrittenMemory(spec)
    begin = normal(1, 3, SIZE, DIM)
    x, y = normal(2, 3, 5, DIM), normal(3, 3, 5, DIM)
    valid = np.asarray([[True] * 3 + [False] * 2, [False] * 5, [True] * 5])

    def written(rows: Any, length: int = 5) -> Any:
        state = WrittenState(moved(backend, begin[rows]))
        tokens = moved(backend, {"x": x[rows, :length], "y": y[rows, :length]})
        real = moved(backend, valid[rows, :length])
        return backend.to_numpy(memory.write(state, params, **tokens, valid=real).slots)

    full = written(slice(None))
    assert full.shape == begin.shape
    assert (full[1] == begin[1]).all()
    assert np.abs(full[0] - begin[0]).max() > 1e-3
    np.testing.assert_allclose(written(slice(0, 1), 3)[0], full[0], atol=1e-6)
    order = np.asarray([2, 0, 0])
    np.testing.assert_allclose(written(order), full[order], atol=1e-6)
    state, rows = WrittenState(moved(backend, full)), np.asarray([False, True, False])
    again = backend.to_numpy(memory.reset(state, moved(backend, rows), params).slots)
    first = backend.to_numpy(memory.init(batch=1, dim=DIM, params=params).slots)
    assert (again[1] == first[0]).all()
    assert (again[0] == full[0]).all()
    swapped = memory.reorder(state, moved(backend, order)).slots
    assert (backend.to_numpy(swapped) == full[order]).all()
