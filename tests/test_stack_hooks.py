"""Who runs the layers of a stack, who is told, and how inputs are cut up and put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.layer.block import empty_block, step_block
from attendre_core.layer.chunks import chunks_of, in_order, join

LAYERS = (
    at.AttendreLayer(at.KeyValueMemory(6, at.LFA()), at.DataOnlyMemory(4)),
    at.AttendreLayer(at.KeyValueMemory(9), at.DataOnlyMemory(2), causal=True),
)
X = np.random.default_rng(0).standard_normal((2, 13, 8)).astype(np.float32)
VALID = np.arange(13)[None, :] < np.asarray([13, 7])[:, None]


class Block:
    """Two heads of four features, and a residual connection."""

    def project(self, x: Any, position: Any) -> Any:
        split = x.reshape(*x.shape[:2], 2, 4)
        return split, np.roll(split, 1, axis=-1), split

    def finish(self, attended: Any, carry: Any) -> Any:
        return np.tanh(carry + attended.reshape(carry.shape))


BLOCKS = (Block(), Block())


def run(stack: at.Stack, finish: Any = "drain") -> Any:
    return stack.run(BLOCKS, X, heads=2, head_dim=4, chunk=3, valid=VALID, finish=finish)[0]


@pytest.mark.parametrize("finish", ["drain", "flush"])
def test_run_layer_runs_every_layer(finish: Any) -> None:
    calls: list[Any] = []

    def doubled(function: Any, layer: Any, block: Any, state: Any, *given: Any, **settings: Any):
        calls.append((function, LAYERS.index(layer), sorted(settings)))
        state, out, *trace = function(layer, block, state, *given, **settings)
        flows = [flow._replace(x=2 * flow.x) for flow in (out if isinstance(out, list) else [out])]
        return (state, flows if isinstance(out, list) else flows[0], *trace)

    class Twice(Block):
        def finish(self, attended: Any, carry: Any) -> Any:
            return 2 * super().finish(attended, carry)

    got = run(at.Stack(LAYERS, doubled), finish)
    want = at.Stack(LAYERS).run(
        (Twice(), Twice()), X, heads=2, head_dim=4, chunk=3, valid=VALID, finish=finish
    )[0]
    np.testing.assert_array_equal(got, want)
    assert calls[:2] == [(step_block, 0, ["donate"]), (step_block, 1, ["donate"])]
    assert [call for call in calls if call[0] is empty_block] == [
        (empty_block, 0, ["length"]),
        (empty_block, 1, ["length"]),
    ]


class Notes:
    """Writes down what it is told."""

    def __init__(self, traces: bool) -> None:
        self.traces = traces
        self.read: list[list[int]] = [[], []]
        self.attended_at: list[list[int]] = [[], []]
        self.inserted: list[list[int]] = [[], []]
        self.untraced = 0

    def reads(self, number: int, layer: Any, block: Any, flow: Any) -> None:
        assert block is BLOCKS[number]
        assert layer.trace is self.traces
        self.read[number] += flow.position[0][flow.valid[0]].tolist()

    def attended(
        self, number: int, layer: Any, block: Any, state: Any, flow: Any, trace: Any
    ) -> None:
        self.attended_at[number] += flow.position[0][flow.valid[0]].tolist()
        assert set(state.kv.position[0][state.kv.valid[0]]) <= set(self.read[number])
        if trace is None:
            self.untraced += 1
        else:
            self.inserted[number] += trace.inserted[0][trace.inserted[0] >= 0].tolist()


@pytest.mark.parametrize("finish", ["drain", "flush"])
@pytest.mark.parametrize("traces", [True, False])
def test_an_observer_is_told_everything_and_changes_nothing(finish: Any, traces: bool) -> None:
    notes = Notes(traces)
    np.testing.assert_array_equal(
        run(at.Stack(LAYERS, observer=notes), finish), run(at.Stack(LAYERS), finish)
    )
    everything = list(range(13))
    for number in range(2):
        assert notes.read[number] == everything
        assert notes.attended_at[number] == everything
    if traces:
        assert notes.inserted[1] == everything
        assert 0 < notes.untraced <= 3  # only where queues are emptied
    else:
        assert notes.inserted == [[], []]


@pytest.mark.parametrize("length", [1, 4, 5, 12, 20])
@pytest.mark.parametrize("fill", [True, False])
def test_chunks_joined_are_the_input(length: int, fill: bool) -> None:
    tree = (X, None, {"valid": VALID})
    parts = list(chunks_of(tree, length, fill=fill))
    sizes = [part[0].shape[1] for part in parts]
    assert all(size == length for size in sizes[:-1])
    assert sizes[-1] == (length if fill else 13 - 13 // length * length or length)
    x, nothing, flags = join(parts)
    assert nothing is None
    np.testing.assert_array_equal(x[:, :13], X)
    np.testing.assert_array_equal(flags["valid"][:, :13], VALID)
    assert not x[:, 13:].any()
    assert not flags["valid"][:, 13:].any()


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "array_api_strict"])
@pytest.mark.parametrize("joined", [True, False])
def test_late_outputs_are_put_in_order(library: str, joined: bool) -> None:
    pytest.importorskip(library)
    from attendre_core.backend import backend

    found = backend(library)
    rng = np.random.default_rng(1)
    order = np.stack([rng.permutation(13) for _ in range(2)]).astype(np.int32)
    real = rng.random((2, 13)) < 0.7
    late = np.take_along_axis(X, order[:, :, None], axis=1)
    pieces = [
        tuple(found.from_numpy(a[:, part]) for a in (late, order, real))
        for part in (slice(0, 5), slice(5, 6), slice(6, 13))
    ]
    got = np.asarray(found.to_numpy(in_order([join(pieces)] if joined else pieces, 13)))
    want = np.zeros_like(X)
    for row in range(2):
        want[row, order[row][real[row]]] = X[row, order[row][real[row]]]
    np.testing.assert_array_equal(got, want)
