"""The stacks under test, their inputs, and an ordinary transformer to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import attendre_core as at
from attendre_conformance import options
from attendre_conformance.layer.cases import layer_rule
from attendre_conformance.oracle.stack import full_stack
from attendre_conformance.running import compiles, from_numpy
from attendre_conformance.stack.running import StackRunner, plain_block

BATCH, LENGTH, SEQ = options.rows, 9, 3

#: Layers that hold everything: N at least the length of the input.
LARGE: tuple[Any, ...] = tuple(
    at.AttendreLayer(at.KeyValueMemory(size, policy), at.DataOnlyMemory(n), encoding=encoding)
    for size, policy, n, encoding in (
        (13, at.LFA(), 9, at.RoPE()),
        (12, at.FIFO(), 10, at.T5Bias(8, 16)),
        (14, at.LRU(), 11, at.LMInfinite(3)),
        (16, at.LRA("max"), 9, at.ALiBi()),
        (13, at.AttentionSink(2), 12, at.NoPosition()),
        (15, at.LFU(), 9, at.RoPE(rotary_dim=2)),
    )
)

#: Layers that evict; N, M, K, policy and scheme all differ, one does not wait at all.
SMALL: tuple[Any, ...] = (
    at.AttendreLayer(at.KeyValueMemory(6, at.LFA(0.0)), at.DataOnlyMemory(4), encoding=at.RoPE()),
    at.AttendreLayer(
        at.KeyValueMemory(5), at.DataOnlyMemory(2), top_k=4, encoding=at.LMInfinite(3)
    ),
    at.AttendreLayer(at.KeyValueMemory(4, at.AttentionSink(1)), None, encoding=at.T5Bias(8, 16)),
    at.AttendreLayer(
        at.KeyValueMemory(5, at.LRA("sum"), present="visible"), at.DataOnlyMemory(1), causal=True
    ),
)

_runs: dict[tuple[Any, ...], Any] = {}


def blocks_for(kinds: Sequence[str]) -> list[Any]:
    """Return one block for each kind, all with weights of their own."""
    return [plain_block(kind, 10 * number + 3) for number, kind in enumerate(kinds)]


@st.composite
def rows(draw: st.DrawFn, gaps: bool = False) -> NDArray[np.bool_]:
    """Draw which positions are real: rows begin and end at different times, and may pause."""
    valid = np.zeros((BATCH, LENGTH), dtype=bool)
    for b in range(BATCH):
        start = draw(st.integers(0, 3), label=f"start of row {b}")
        stop = draw(st.integers(start + 1, LENGTH), label=f"end of row {b}")
        valid[b, start:stop] = True
        if gaps:
            flags = draw(st.integers(0, 2**LENGTH - 1), label=f"pauses of row {b}")
            pauses = [(flags >> t) & (flags >> (t + 1)) & 1 for t in range(LENGTH)]
            valid[b] &= ~np.asarray(pauses, dtype=bool)
    return valid


def counted(valid: Any) -> Any:
    """Positions that count real entries alone."""
    return np.maximum(np.cumsum(valid, axis=1) - 1, 0).astype(np.int32)


def assert_all_in_order(order: list[list[int]], valid: Any, where: str) -> None:
    """Check that every real position came out once, in the order of the input."""
    for b, got in enumerate(order):
        want = np.nonzero(valid[b])[0].tolist()
        assert got == want, f"{where}, row {b}: out came {got}, expected {want}"


def whole(runner: StackRunner, x: Any, valid: Any, document: Any = None) -> Any:
    """Run an ordinary transformer on every row."""
    rules = [layer_rule(layer) for layer in runner.stack.layers]
    return np.stack(
        [
            full_stack(
                runner.plain, rules, x[b], counted(valid)[b], valid[b], runner.tables,
                None if document is None else document[b],
            )
            for b in range(BATCH)
        ]
    )  # fmt: skip


def whole_run(
    backend: Any, stack: Any, blocks: Any, x: Any, valid: Any, seq: int, finish: Any, **sizes: Any
) -> Any:
    """Call Stack.run; where eager code is slow, compiled as a whole."""
    key = (backend.name, stack, len(blocks), type(blocks[0]), seq, finish)
    if key not in _runs:

        def run(x: Any, valid: Any) -> Any:
            return stack.run(blocks, x, chunk=seq, valid=valid, finish=finish, **sizes)

        if not compiles(backend):
            return run(*from_numpy(backend, (x, valid)))
        _runs[key] = backend.compile(run)
    return _runs[key](*from_numpy(backend, (x, valid)))
