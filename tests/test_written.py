"""Written memories: each writer against its own formula in plain loops, and the laws of all."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, sqrt, tanh
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core import backend as backends
from attendre_core.written import WrittenState

LIBRARIES = ("numpy", "array_api_strict", "torch", "jax")
DIM, SIZE = 4, 3


def library(name: str) -> backends.Backend:
    pytest.importorskip(name)
    return backends.backend(name)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def softmax(logits: list[float]) -> list[float]:
    raised = [exp(x - max(logits)) for x in logits]
    return [x / sum(raised) for x in raised]


def times(vector: Any, matrix: Any) -> np.ndarray:
    """Multiply a row by a matrix, in loops."""
    rows, columns = matrix.shape
    return np.asarray(
        [sum(float(vector[i]) * float(matrix[i, j]) for i in range(rows)) for j in range(columns)]
    )


def read(query: Any, keys: list[Any], values: list[Any], heads: int) -> np.ndarray:
    """Attend with one query and several heads."""
    width, parts = len(query) // heads, []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        weight = softmax([float(query[own] @ key[own]) / sqrt(width) for key in keys])
        parts.append(sum(w * value[own] for w, value in zip(weight, values, strict=True)))
    return np.concatenate(parts)


# ------------------------------------------------------------------ the formulas


def memformer(p: Any, slots: Any, x: Any, y: Any) -> Any:
    result = []
    for i, slot in enumerate(slots):
        query = times(slot, p["to_query"])
        keys = [times(t, p["to_key"]) for t in (slot, *x)]
        weight = softmax([float(query @ key) / sqrt(DIM) / 0.25 for key in keys])
        values = [slot, *(times(t, p["to_value"]) for t in x)]
        new = sum(w * v for w, v in zip(weight, values, strict=True)) + p["forget"][i]
        result.append(new / sqrt(sum(float(number) ** 2 for number in new)))
    return np.stack(result)


def token_turing(p: Any, slots: Any, x: Any, y: Any) -> Any:
    tokens = [(slot, slot + p["place"][i]) for i, slot in enumerate(slots)]
    tokens += [(t, t + p["output_place"]) for t in ([] if y is None else y)]
    tokens += [(t, t + p["input_place"]) for t in x]
    result = []
    for query in p["query"]:
        weight = softmax([float(query @ placed) / sqrt(DIM) for _, placed in tokens])
        result.append(sum(w * t for w, (t, _) in zip(weight, tokens, strict=True)))
    return np.stack(result)


def mart(p: Any, slots: Any, x: Any, y: Any) -> Any:
    result = []
    keys, values = ([times(t, p[name]) for t in x] for name in ("to_key", "to_value"))
    for i, slot in enumerate(slots):
        s = read(times(slot + p["place"][i], p["to_query"]), keys, values, heads=2)
        c = times(slot, p["to_candidate"]) + times(s, p["to_candidate_read"]) + p["candidate_bias"]
        z = times(slot, p["to_gate"]) + times(s, p["to_gate_read"]) + p["gate_bias"]
        result.append(
            [
                (1 - 1 / (1 + exp(-z[j]))) * tanh(c[j]) + slot[j] / (1 + exp(-z[j]))
                for j in range(DIM)
            ]
        )
    return np.asarray(result)


def icae(p: Any, slots: Any, x: Any, y: Any) -> Any:
    result, memory = [], p["memory"]
    for i in range(SIZE):
        seen = [*x, *memory[: i + 1]]
        keys, values = ([times(t, p[name]) for t in seen] for name in ("to_key", "to_value"))
        found = read(times(memory[i], p["to_query"]), keys, values, heads=2)
        result.append(memory[i] + times(found, p["to_output"]))
    return np.stack(result)


WRITERS: dict[str, tuple[at.Writer, Callable[..., Any]]] = {
    "memformer": (at.Memformer(SIZE), memformer),
    "token-turing": (at.TokenTuring(SIZE), token_turing),
    "mart": (at.MART(SIZE, heads=2), mart),
    "icae": (at.ICAE(SIZE, heads=2), icae),
}
EACH = pytest.mark.parametrize("writer", WRITERS)


def parameters(writer: at.Writer) -> dict[str, np.ndarray]:
    """Draw all parameters, biases included."""
    shapes = writer.parameters(DIM)
    return {name: normal(10 + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


def moved(xp: backends.Backend, arrays: Any) -> Any:
    if isinstance(arrays, dict):
        return {name: moved(xp, array) for name, array in arrays.items()}
    return None if arrays is None else xp.from_numpy(np.array(arrays))


@EACH
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("with_output", [False, True])
def test_each_writer_is_its_formula(name: str, writer: str, with_output: bool) -> None:
    """Two chunks, two rows of different lengths, with garbage in the padding."""
    xp, (spec, formula) = library(name), WRITERS[writer]
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
        x, y = normal(20 + step, 2, 4, DIM), normal(30 + step, 2, 4, DIM)
        valid = np.asarray([[n < count for n in range(4)] for count in counts])
        y = y if with_output else None
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


@EACH
def test_padding_and_rows(writer: str) -> None:
    """More padding changes nothing, nor do other rows; a row of padding keeps its slots."""
    spec = WRITERS[writer][0]
    params, memory = parameters(spec), at.WrittenMemory(spec)
    state = WrittenState(normal(1, 3, SIZE, DIM))
    x, y = normal(2, 3, 5, DIM), normal(3, 3, 5, DIM)
    valid = np.asarray([[True] * 3 + [False] * 2, [False] * 5, [True] * 5])
    full = memory.write(state, params, x, y, valid).slots
    assert (full[1] == state.slots[1]).all()
    assert np.abs(full[0] - state.slots[0]).max() > 1e-3
    alone = WrittenState(state.slots[:1])
    short = memory.write(alone, params, x[:1, :3], y[:1, :3]).slots
    np.testing.assert_allclose(short[0], full[0], atol=1e-6)
    order = np.asarray([2, 0, 0])
    mixed = memory.write(memory.reorder(state, order), params, x[order], y[order], valid[order])
    np.testing.assert_allclose(mixed.slots, full[order], atol=1e-6)
    again = memory.reset(WrittenState(full), np.asarray([False, True, False]), params)
    begin = memory.init(batch=1, dim=DIM, params=params).slots
    assert (again.slots[1] == begin[0]).all()
    assert (again.slots[0] == full[0]).all()
    assert full.shape == (3, SIZE, DIM)


@EACH
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_gradients_flow_through_all_writes(name: str, writer: str) -> None:
    """To the parameters and to the tokens of the first chunk; against finite differences."""
    xp, spec = library(name), WRITERS[writer][0]
    if name == "jax" and writer in ("memformer", "icae"):
        pytest.skip("compiling takes seconds; torch has shown it")
    memory, dtype = at.WrittenMemory(spec), np.float64 if name == "torch" else np.float32
    first, second = normal(5, 1, 2, DIM).astype(dtype), normal(6, 1, 2, DIM).astype(dtype)
    point = {k: v.astype(dtype) for k, v in parameters(spec).items()}
    aim = xp.from_numpy(normal(7, 1, SIZE, DIM).astype(dtype))

    def loss(params: Any, x: Any) -> Any:
        state = memory.init(batch=1, dim=DIM, params=params)
        state = memory.write(state, params, x, 0.5 * x)
        state = memory.write(state, params, xp.from_numpy(second))
        return (state.slots * aim).sum()

    if name == "torch":
        import torch

        leaves = {k: torch.tensor(v, requires_grad=True) for k, v in point.items()}
        tokens = torch.tensor(first, requires_grad=True)
        loss(leaves, tokens).backward()
        found = {k: v.grad.numpy() for k, v in leaves.items() if v.grad is not None}
        found_x, step, close = tokens.grad, 1e-6, {"rtol": 1e-4, "atol": 1e-7}
        value = loss
    else:
        import jax

        value = jax.jit(loss)
        found, found_x = jax.jit(jax.grad(loss, (0, 1)))(moved(xp, point), moved(xp, first))
        step, close = 3e-3, {"rtol": 5e-2, "atol": 2e-2}

    def slope(change: Callable[[float], tuple[Any, Any]]) -> float:
        ends = [float(value(*moved_pair(change(sign * step)))) for sign in (1, -1)]
        return (ends[0] - ends[1]) / (2 * step)

    def moved_pair(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        return moved(xp, pair[0]), moved(xp, pair[1])

    def changed(array: Any, place: Any, by: float) -> Any:
        array = array.copy()
        array[place] += by
        return array

    for leaf, array in found.items():
        place = (0,) * array.ndim
        wanted = slope(
            lambda by, leaf=leaf, place=place: (
                {**point, leaf: changed(point[leaf], place, by)},
                first,
            )
        )
        np.testing.assert_allclose(np.asarray(array)[place], wanted, **close)
    wanted = slope(lambda by: (point, changed(first, (0, 1, 2), by)))
    np.testing.assert_allclose(np.asarray(found_x)[0, 1, 2], wanted, **close)
    if writer != "icae":  # a span replaces what was written before it
        assert np.abs(np.asarray(found_x)).max() > 1e-4


@pytest.mark.parametrize("name", LIBRARIES)
def test_slots_beside_a_memory_are_one_softmax(name: str) -> None:
    xp, memory = library(name), at.WrittenMemory(at.TokenTuring(SIZE))
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


def test_a_written_memory_is_a_scan() -> None:
    """The state keeps shape and dtype, so JAX can carry it; the result is that of the loop."""
    jax = pytest.importorskip("jax")
    xp, memory = library("jax"), at.WrittenMemory(at.MART(SIZE))
    params = memory.writer.init(DIM, seed=1, xp="jax")
    chunks = moved(xp, normal(8, 5, 2, 3, DIM))
    state = memory.init(batch=2, dim=DIM, params=params)

    def step(state: Any, x: Any) -> Any:
        return memory.write(state, params, x), None

    scanned, _ = jax.lax.scan(step, state, chunks)
    for x in chunks:
        state = memory.write(state, params, x)
    np.testing.assert_allclose(scanned.slots, state.slots, atol=1e-5)


def test_init_is_seeded_and_has_the_shapes() -> None:
    for spec, _ in WRITERS.values():
        one, same, other = (spec.init(DIM, seed=seed) for seed in (1, 1, 2))
        assert {name: x.shape for name, x in one.items()} == spec.parameters(DIM)
        assert all((one[name] == same[name]).all() for name in one)
        assert any((one[name] != other[name]).any() for name in one)
        assert all((x == 0).all() == name.endswith("bias") for name, x in one.items())
        assert all(x.dtype == np.float32 for x in one.values())


def test_mistakes_say_what_to_do() -> None:
    memory = at.WrittenMemory(at.MART(SIZE, heads=2))
    params = memory.writer.init(DIM)
    state, x = memory.init(batch=1, dim=DIM), normal(1, 1, 2, DIM)
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: at.WrittenMemory(at.MART), at.ConfigError, "expected a writer such as"),  # type: ignore[arg-type]
        (lambda: at.TokenTuring(size=0), at.ConfigError, "TokenTuring: size is 0"),
        (lambda: at.MART(heads=3).init(DIM), at.ConfigError, "heads is 3 for slots of 4 numbers"),
        (lambda: memory.write(state, {}, x), at.ConfigError, r"Make them with MART\.init\(dim=4\)"),
        (lambda: memory.write(state, params, x[..., :2]), at.ShapeError, "as wide as the slots"),
        (lambda: memory.write(state, params, x * np.nan), at.NonFiniteError, "x has NaN"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
