"""Laws of running a whole input: every position comes back, in its place."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.options import law
from attendre_conformance.running import compiles, few, mixtures, to_numpy
from attendre_conformance.stack.cases import (
    BATCH,
    LENGTH,
    SMALL,
    blocks_for,
    counted,
    rows,
    whole_run,
)
from attendre_conformance.stack.running import HEAD_DIM, HEADS, KINDS, KV_HEADS, StackRunner, inputs
from attendre_core.backend import backend as look_up

pytestmark = pytest.mark.attendre_profile("laws")


class Untouched:
    """A block that attends and then gives back its input as it was."""

    def project(self, x: Any, position: Any) -> tuple[Any, Any, Any]:
        """Take heads from the input."""
        return x[:, :, None, :HEAD_DIM], x[:, :, None, :HEAD_DIM], x[:, :, None, :HEAD_DIM]

    def finish(self, attended: Any, carry: Any) -> Any:
        """Give the input back."""
        return carry


@law()
@given(data=st.data())
def test_run_gives_every_position_back_in_its_place(backend: Any, data: st.DataObject) -> None:
    """Whatever N, M, chunk length and end of each row: nothing missing, nothing moved."""
    sizes = ((2, 6), (0, 5), (7, 8), (1, 4), (3, 9), (5, 7))
    most = 1 if compiles(backend) else 3
    pairs = st.lists(st.sampled_from(few(backend, sizes, 2)), min_size=1, max_size=most)
    chosen = data.draw(pairs, label="N, M by layer")
    layers = tuple(
        at.AttendreLayer(at.KeyValueMemory(m, at.LFA()), at.DataOnlyMemory(n) if n else None)
        for n, m in chosen
    )
    seq, finish = data.draw(
        mixtures(backend, (3, 1, 2, 4), ("drain", "flush"), most=1), label="S, finish"
    )
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 2**32 - 1), label="seed"), BATCH, LENGTH)
    stack, blocks = at.Stack(layers), [Untouched()] * len(layers)
    with warnings.catch_warnings():
        # Flushed, a layer hands on N positions at once, which may be more than the next one holds.
        warnings.simplefilter("ignore", at.ChunkTooLongWarning)
        y, states = whole_run(
            backend, stack, blocks, x, valid, seq, finish, heads=1, head_dim=HEAD_DIM
        )
    want = np.where(valid[..., None], x, np.float32(0))
    where = f"(N, M) {chosen}, S={seq}, {finish}"
    comparing.assert_same(to_numpy(backend, y), want, f"{where}: x given back")
    for number, state in enumerate(states):
        if state.queue is not None:
            waiting = to_numpy(backend, state.queue.valid)
            assert not waiting.any(), f"{where}, layer {number}: {waiting.sum()} still wait"


@law()
@given(data=st.data())
def test_run_equals_steps(backend: Any, data: st.DataObject) -> None:
    """Run gives what its steps, drained or flushed by hand, give.

    Specification, readings 22-24; chunks longer than the input included.
    """
    count, seq, finish = data.draw(
        mixtures(backend, (1, 1, 2), (3, 4, 1, 2, 11), ("flush", "drain"), most=2),
        label="L, S, finish",
    )
    valid = data.draw(rows(), label="valid")
    x = inputs(data.draw(st.integers(0, 2**32 - 1), label="seed"), BATCH, LENGTH)
    runner = StackRunner(backend, at.Stack(SMALL[:count]), blocks_for(KINDS[:count]))
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.ChunkTooLongWarning)
        want, _ = runner.run(x, valid, seq, finish, counted(valid))
        y, _ = whole_run(backend, runner.stack, runner.blocks, x, valid, seq, finish, **sizes)
    comparing.assert_close(to_numpy(backend, y), want, f"S={seq}, {finish}: output")


def test_run_takes_a_step_of_the_caller() -> None:
    """A step given to run, such as a compiled one, is called once for each chunk."""
    numpy = look_up("numpy")
    runner = StackRunner(numpy, at.Stack(SMALL[:1]), blocks_for(KINDS[:1]))
    called = []

    def step(*arguments: Any, **more: Any) -> Any:
        called.append(1)
        return runner.stack.step(*arguments, **more)

    runner.stack.run(
        runner.blocks, inputs(0, BATCH, 8), heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM,
        chunk=3, step=step,
    )  # fmt: skip
    assert len(called) == 3, f"{len(called)} steps for 8 positions in chunks of 3"
