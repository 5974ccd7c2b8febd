"""Written memories: gradients against finite differences, scans, seeds, mistakes.

That each writer is its formula is in `attendre_conformance.beyond`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.beyond.written import DIM, SIZE, WRITERS, moved, normal, parameters
from attendre_core import backend as backends


def library(name: str) -> backends.Backend:
    pytest.importorskip(name)
    return backends.backend(name)


EACH = pytest.mark.parametrize("writer", WRITERS)


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
