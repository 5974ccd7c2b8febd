"""Transforms of a layer's step: scan, vmap, grad, export and donation give the eager result.

A backend names the transforms it brings in `attendre_core.Backend.transforms`; the others are
skipped, with that reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.running import compiles, from_numpy, to_numpy
from attendre_core.layer import LayerState
from attendre_core.tree import tree_map

pytestmark = pytest.mark.attendre_profile("transforms")

B, S, STEPS, H, G, D, CARRY = 2, 3, 5, 4, 2, 4, 3
TRANSFORMS = ("export", "grad", "scan", "vmap")

#: All evict; one waits, the others see their own chunk.
LAYERS: dict[str, Any] = {
    "waiting": at.AttendreLayer(
        at.KeyValueMemory(6, at.LFA(0.0625, at.InitialScore(0.0))),
        at.DataOnlyMemory(4),
        top_k=4,
        encoding=at.RoPE(),
    ),
    "visible": at.AttendreLayer(
        at.KeyValueMemory(5, at.LRA("max", at.InitialScore(0.0)), present="visible"), causal=True
    ),
    "summed": at.AttendreLayer(
        at.KeyValueMemory(5, at.LRA("sum", at.InitialScore(0.0)), present="visible"), causal=True
    ),
}


def chunks_of(seed: int, steps: int = STEPS, padding: bool = True) -> Any:
    """Return chunks on a first axis, in NumPy: small quarters, so that decisions are exact."""
    rng = np.random.default_rng(seed)

    def quarters(*shape: int) -> Any:
        return (rng.integers(-8, 9, (steps, B, S, *shape)) / 4).astype(np.float32)

    valid = rng.random((steps, B, S)) < (0.8 if padding else 2.0)
    return at.Chunk(
        quarters(H, D), quarters(G, D), quarters(G, D), None, valid, carry=quarters(CARRY)
    )


def start_of(backend: Any, layer: Any) -> Any:
    """Return an empty state."""
    sizes = {"batch": B, "heads": H, "kv_heads": G, "head_dim": D, "carry_dim": CARRY}
    return layer.init(**sizes, xp=backend.xp, dtype=backend.xp.float32, chunk=S)


def at_place(tree: Any, number: int) -> Any:
    """Take one of the chunks, or of the copies, on the first axis."""
    return tree_map(lambda leaf: leaf[number], tree)


def transform(backend: Any, name: str) -> Callable[..., Any]:
    """Return a transform, or skip the test."""
    if name not in backend.transforms:
        pytest.skip(f"backend {backend.name!r} brings no transform {name!r}")
    found: Callable[..., Any] = backend.transforms[name]
    return found


def where_faster(backend: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function on libraries that run eager code far too slowly."""
    compiled: Callable[..., Any] = backend.compile(function) if compiles(backend) else function
    return compiled


_steps: dict[tuple[str, str], Callable[..., Any]] = {}


def step_by_step(backend: Any, name: str, chunks: Any) -> tuple[Any, list[Any]]:
    """Run chunk after chunk, without transforms: (state, outputs), in NumPy.

    Eager, but for libraries on which that takes too long: there compiled, which
    `test_compiled_step_equals_eager` holds against eager code.
    """
    layer = LAYERS[name]
    key = (backend.name, name)
    if key not in _steps:
        _steps[key] = where_faster(backend, _step(layer))
    state, outputs = start_of(backend, layer), []
    for number in range(chunks.key.shape[0]):
        state, out = _steps[key](state, from_numpy(backend, at_place(chunks, number)))
        outputs.append(to_numpy(backend, out))
    return to_numpy(backend, state), outputs


def _step(layer: Any) -> Callable[..., Any]:
    def step(state: Any, chunk: Any) -> Any:
        return layer.step(state, chunk)

    return step


def assert_equal(got: Any, want: Any, where: str) -> None:
    """Compare nested arrays: integers and flags exactly, floats by tolerance."""
    if want is None:
        assert got is None, f"{where}: expected nothing"
        return
    if isinstance(want, tuple):
        names = getattr(want, "_fields", range(len(want)))
        for name, a, b in zip(names, got, want, strict=True):
            assert_equal(a, b, f"{where}, {name}")
        return
    assert got.dtype == want.dtype, f"{where}: dtype {got.dtype}, expected {want.dtype}"
    if want.dtype.kind == "f":
        comparing.assert_close(got, want, where)
    else:
        comparing.assert_same(got, want, where)


def test_transforms_have_known_names(backend: Any) -> None:
    """A transform under another name would never be tested."""
    unknown = set(backend.transforms) - set(TRANSFORMS)
    assert not unknown, f"transforms {sorted(unknown)}, expected some of {TRANSFORMS}"


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_step_equals_eager(backend: Any, name: str) -> None:
    """A compiled step of a layer does what an eager one does.

    Specification, law-same-choices.
    """
    layer, chunks = LAYERS[name], chunks_of(0)
    fast = backend.compile(_step(layer))
    slow_state = quick_state = start_of(backend, layer)
    for number in range(STEPS):
        chunk = from_numpy(backend, at_place(chunks, number))
        slow_state, slow = layer.step(slow_state, chunk)
        quick_state, quick = fast(quick_state, chunk)
        where = f"{name}, step {number}"
        assert_equal(to_numpy(backend, quick), to_numpy(backend, slow), where)
        assert_equal(to_numpy(backend, quick_state), to_numpy(backend, slow_state), where)


@pytest.mark.parametrize("name", LAYERS)
def test_donated_step_equals_eager(backend: Any, name: str) -> None:
    """A compiled step that may overwrite its state gives the same results.

    Specification, law-purity.
    """
    layer, chunks = LAYERS[name], chunks_of(1)
    want_state, want = step_by_step(backend, name, chunks)

    def step(state: Any, chunk: Any) -> Any:
        return layer.step(state, chunk, donate=True)

    donated, state = backend.compile(step, donate=(0,)), start_of(backend, layer)
    for number in range(STEPS):
        state, out = donated(state, from_numpy(backend, at_place(chunks, number)))
        assert_equal(to_numpy(backend, out), want[number], f"{name}, step {number}")
    assert_equal(to_numpy(backend, state), want_state, f"{name}, last state")


@pytest.mark.parametrize("name", LAYERS)
def test_scan_equals_steps(backend: Any, name: str) -> None:
    """A scan over stacked chunks is a loop over steps; ``layer.step`` is its function."""
    scan = transform(backend, "scan")
    chunks = chunks_of(2)
    want_state, want = step_by_step(backend, name, chunks)
    state, outputs = scan(
        LAYERS[name].step, start_of(backend, LAYERS[name]), from_numpy(backend, chunks)
    )
    for number in range(STEPS):
        got = at_place(to_numpy(backend, outputs), number)
        assert_equal(got, want[number], f"{name}, step {number}")
    assert_equal(to_numpy(backend, state), want_state, f"{name}, last state")


@pytest.mark.parametrize("name", LAYERS)
def test_vmap_equals_a_loop(backend: Any, name: str) -> None:
    """Mapping a step over copies of a layer is a loop over them."""
    vmap = transform(backend, "vmap")
    layer, copies = LAYERS[name], 2
    own = [chunks_of(seed) for seed in range(copies)]
    want = [step_by_step(backend, name, chunks) for chunks in own]
    both = tree_map(lambda *leaves: np.stack(leaves, axis=1), *own)
    empty = to_numpy(backend, start_of(backend, layer))
    state = from_numpy(backend, tree_map(lambda leaf: np.stack([leaf] * copies), empty))
    step = where_faster(backend, vmap(_step(layer)))
    for number in range(STEPS):
        state, out = step(state, from_numpy(backend, at_place(both, number)))
        for copy in range(copies):
            got = at_place(to_numpy(backend, out), copy)
            assert_equal(got, want[copy][1][number], f"{name}, step {number}, copy {copy}")


@pytest.mark.parametrize("name", LAYERS)
def test_exported_step_equals_eager(backend: Any, name: str) -> None:
    """A step that was written out and read back does the same."""
    export = transform(backend, "export")
    layer, chunks = LAYERS[name], chunks_of(3)
    want_state, want = step_by_step(backend, name, chunks)
    state = start_of(backend, layer)
    step = export(_step(layer), state, from_numpy(backend, at_place(chunks, 0)))
    for number in range(STEPS):
        state, out = step(state, from_numpy(backend, at_place(chunks, number)))
        assert type(state) is LayerState, f"{name}: the state came back as {type(state)}"
        assert_equal(to_numpy(backend, out), want[number], f"{name}, step {number}")
    assert_equal(to_numpy(backend, state), want_state, f"{name}, last state")


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_by_values_agrees_with_differences(backend: Any, name: str) -> None:
    """Where entries are evicted, the outputs are linear in the values: differences are exact."""
    grad = transform(backend, "grad")
    layer, chunks = LAYERS[name], chunks_of(4)
    rng = np.random.default_rng(5)
    weight, move = (rng.standard_normal((STEPS, B, S, n, D)).astype(np.float32) for n in (H, G))
    given, weights = from_numpy(backend, chunks), backend.from_numpy(weight)

    def loss(value: Any) -> Any:
        state, total = start_of(backend, layer), 0.0
        for number in range(STEPS):
            chunk = at_place(given, number)._replace(value=value[number, ...])
            state, out = layer.step(state, chunk)
            total = total + backend.xp.sum(out.value * weights[number, ...])
        return total

    slope = to_numpy(backend, where_faster(backend, grad(loss))(given.value))

    def by_steps(value: Any) -> float:
        _, outs = step_by_step(backend, name, chunks._replace(value=value))
        return float(sum(np.sum(out.value * w) for out, w in zip(outs, weight, strict=True)))

    want = by_steps(chunks.value + move) - by_steps(chunks.value)
    comparing.assert_close(np.sum(slope * move), np.asarray(want), f"{name}: slope")
    assert abs(want) > 0.1


def test_gradient_is_that_of_full_attention(backend: Any) -> None:
    """While nothing is evicted, gradients reach every query, key and value, waiting ones too.

    The paper's Q memory stops the gradient, ours must not.
    """
    grad = transform(backend, "grad")
    steps, delay = 4, 6
    layer = at.AttendreLayer(at.KeyValueMemory(steps * S), at.DataOnlyMemory(delay))
    chunks = chunks_of(6, steps, padding=False)
    weight = np.random.default_rng(7).standard_normal((steps, B, S, H, D)).astype(np.float32)
    weights = backend.from_numpy(weight)
    given = from_numpy(backend, (chunks.query, chunks.key, chunks.value))
    carry = backend.from_numpy(chunks.carry)

    def loss(arrays: Any) -> Any:
        state, total, outs = start_of(backend, layer), 0.0, []
        for number in range(steps):
            query, key, value = (array[number, ...] for array in arrays)
            chunk = at.Chunk(query, key, value, carry=carry[number, ...])
            state, out = layer.step(state, chunk)
            outs.append(out.value)
        state, rest = layer.flush(state)
        late = backend.xp.concat([*outs, rest.value], axis=1)[:, delay:, ...]
        for number in range(steps):
            part = late[:, number * S : (number + 1) * S, ...]
            total = total + backend.xp.sum(part * weights[number, ...])
        return total

    got = to_numpy(backend, where_faster(backend, grad(loss))(given))
    want = _full_gradient(chunks, weight, delay)
    for part, a, b in zip(("query", "key", "value"), got, want, strict=True):
        comparing.assert_close(a, b.astype(np.float32), f"gradient by the {part}")
        assert np.abs(b).min(axis=(1, 2, 3, 4)).max() > 0, "a case that shows nothing"


def _full_gradient(chunks: Any, weight: Any, delay: int) -> tuple[Any, Any, Any]:
    """Differentiate full attention by hand, in float64; (steps, batch, seq, heads, dim)."""
    steps = chunks.key.shape[0]

    def joined(array: Any) -> Any:
        """Bring (steps, batch, seq, ...) to (batch, heads, time, dim)."""
        array = np.moveaxis(array.astype(np.float64), 0, 1)
        whole = array.reshape(B, steps * S, *array.shape[3:])
        return np.moveaxis(whole, 1, 2).repeat(H // whole.shape[2], axis=1)

    def parted(array: Any, heads: int) -> Any:
        """Go back, adding up the query heads that share a K/V head."""
        array = array.reshape(B, heads, H // heads, steps * S, D).sum(axis=2)
        array = np.moveaxis(array, 2, 1).reshape(B, steps, S, heads, D)
        return np.moveaxis(array, 1, 0)

    query, key, value, slope = (joined(a) for a in (chunks.query, chunks.key, chunks.value, weight))
    number = np.arange(steps * S) // S
    seen = number[None, :] <= number[:, None] + delay // S
    logits = np.where(seen, query @ np.swapaxes(key, 2, 3) * D**-0.5, -np.inf)
    share = np.exp(logits - logits.max(axis=-1, keepdims=True))
    share = share / share.sum(axis=-1, keepdims=True)
    by_share = slope @ np.swapaxes(value, 2, 3)
    by_logit = share * (by_share - (by_share * share).sum(axis=-1, keepdims=True)) * D**-0.5
    return (
        parted(by_logit @ key, H),
        parted(np.swapaxes(by_logit, 2, 3) @ query, G),
        parted(np.swapaxes(share, 2, 3) @ slope, G),
    )
