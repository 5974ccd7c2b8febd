"""Laws of the time-shifted stack: total shift, rows, padding, chunk length."""

from __future__ import annotations

from collections.abc import Sequence
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
    LARGE,
    LENGTH,
    SEQ,
    SMALL,
    assert_all_in_order,
    blocks_for,
    counted,
    rows,
    whole_run,
)
from attendre_conformance.stack.running import (
    HEAD_DIM,
    HEADS,
    KINDS,
    KV_HEADS,
    WIDTH,
    StackRunner,
    inputs,
)

pytestmark = pytest.mark.attendre_profile("laws")


@law()
@given(data=st.data())
def test_total_shift_is_the_sum_of_n(backend: Any, data: st.DataObject) -> None:
    """Fed full chunks, a stack gives S positions a step: the first sum of N empty, then in order.

    Specification, reading 22: N may differ by layer.
    """
    choices = [at.Stack(SMALL[:2]), at.Stack(SMALL[1:3]), at.Stack(SMALL), at.Stack(LARGE[:1])]
    stack = data.draw(st.sampled_from(few(backend, choices, 2)), label="stack")
    shift = sum(layer.delay for layer in stack.layers)
    assert stack.delay == shift, f"delay is {stack.delay}, the sum of N is {shift}"
    kinds = [KINDS[n % 3] for n in range(len(stack.layers))]
    runner = StackRunner(backend, stack, blocks_for(kinds))
    state = runner.init(BATCH, SEQ)
    x = inputs(data.draw(st.integers(0, 2**32 - 1), label="seed"), BATCH, 15)
    index = np.tile(np.arange(15, dtype=np.int32), (BATCH, 1))
    went: list[list[int | None]] = [[] for _ in range(BATCH)]
    for start in range(0, 15, SEQ):
        part = (slice(None), slice(start, start + SEQ))
        valid = np.ones((BATCH, SEQ), dtype=bool)
        state, out = runner.step(state, x[part], index[part], valid, index[part])
        assert out.valid.shape == (BATCH, SEQ), f"{out.valid.shape[1]} outputs, S is {SEQ}"
        assert set(out.traces) == {None}, "layers without trace=True gave a trace"
        for b, row in enumerate(went):
            places = zip(out.metadata[0][b].tolist(), out.valid[b], strict=True)
            row += [i if ok else None for i, ok in places]
    want = ([None] * shift + list(range(15)))[:15]
    for b, row in enumerate(went):
        assert row == want, f"shift {shift}, row {b}: out came {row}, expected {want}"


@law()
@given(data=st.data())
def test_rows_of_a_stack_do_not_influence_each_other(backend: Any, data: st.DataObject) -> None:
    """A row of a ragged batch gives what it gives alone, and the others what they give without it.

    Specification, law-rows: rows may end at different times.
    """
    count, finish = data.draw(
        mixtures(backend, (2, 1, 3, 4), ("flush", "drain"), most=2), label="L, finish"
    )
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 2**32 - 1), label="seed"), BATCH, LENGTH)
    order = data.draw(st.permutations(range(BATCH)), label="the row alone, then the others")
    kinds = [KINDS[n % 3] for n in range(count)]
    runner = StackRunner(backend, at.Stack(SMALL[:count]), blocks_for(kinds))
    want, came = runner.run(x, valid, SEQ, finish, counted(valid))
    assert_all_in_order(came, valid, finish)
    for part in (order[:1], order[1:]):
        if compiles(backend):
            # Beside rows that have nothing to say: the same shapes, so nothing is compiled anew.
            own = valid & np.isin(np.arange(BATCH), part)[:, None]
            got = runner.run(x, own, SEQ, finish, counted(valid))[0][part]
        else:
            got, _ = runner.run(x[part], valid[part], SEQ, finish, counted(valid)[part])
        comparing.assert_close(got, want[part], f"rows {part} by themselves: output")


@law()
@given(data=st.data())
def test_padding_inside_a_row_changes_nothing(backend: Any, data: st.DataObject) -> None:
    """A row that begins late, pauses and ends early gives what it gives without padding.

    Specification, law-padding. Nothing is evicted here, because padding also moves the borders of
    the chunks.
    """
    compiled = compiles(backend)
    count, finish = data.draw(
        mixtures(backend, (2, 1, 3), ("flush", "drain"), most=2), label="L, finish"
    )
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 2**32 - 1), label="seed"), BATCH, LENGTH)
    runner = StackRunner(backend, at.Stack(LARGE[:count]), blocks_for(["pre"] * count))
    packed, short = np.zeros_like(x), np.zeros_like(valid)
    for b in range(BATCH):
        real = np.nonzero(valid[b])[0]
        packed[b, : len(real)] = x[b, real]
        short[b, : len(real)] = True
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    outputs = []
    for numbers, flags in ((x, valid), (packed, short)):
        if compiled:
            outputs.append(runner.run(numbers, flags, SEQ, finish, counted(flags))[0])
            continue
        y, _ = whole_run(backend, runner.stack, runner.blocks, numbers, flags, SEQ, finish, **sizes)
        outputs.append(to_numpy(backend, y))
    for b in range(BATCH):
        comparing.assert_close(
            outputs[0][b][valid[b]], outputs[1][b][short[b]], f"L={count}, row {b}: output", scale=5
        )


@law()
@given(data=st.data())
def test_chunk_length_changes_nothing_without_eviction(backend: Any, data: st.DataObject) -> None:
    """While nothing is evicted, a stack gives the same whatever the chunk length.

    Specification, law-chunking; chunks longer than the input included.
    """
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 2**32 - 1), label="seed"), BATCH, LENGTH)
    runner = StackRunner(backend, at.Stack(LARGE[:2]), blocks_for(["pre"] * 2))
    want, _ = runner.run(x, valid, SEQ, "flush", counted(valid))
    seq = data.draw(st.sampled_from(few(backend, (5, 1, 9, 2, 11), 2)), label="S")
    got, order = runner.run(x, valid, seq, "flush", counted(valid))
    assert_all_in_order(order, valid, f"S={seq}")
    comparing.assert_close(got, want, f"S={seq} against S={SEQ}: output", scale=5)


def test_reset_and_reorder_reach_every_layer(backend: Any) -> None:
    """A row reset or reordered in a stack is so in all its layers."""
    stack = at.Stack(SMALL[:2])
    runner = StackRunner(backend, stack, blocks_for(KINDS[:2]))
    x = inputs(1, BATCH, 12)
    index = np.tile(np.arange(12, dtype=np.int32), (BATCH, 1))
    valid = np.ones((BATCH, SEQ), dtype=bool)
    first = np.arange(BATCH) == 0
    back = np.arange(BATCH, dtype=np.int32)[::-1]

    def read(state: Any, start: int, order: Sequence[int] = range(BATCH)) -> tuple[Any, Any]:
        part = (list(order), slice(start, start + SEQ))
        return runner.step(state, x[part], index[part], valid, index[part])

    fresh = state = runner.init(BATCH, SEQ)
    for start in (0, 3, 6):
        state, _ = read(state, start)
    emptied = stack.reset(state, backend.from_numpy(first))
    moved = stack.reorder(state, backend.from_numpy(back.copy()))
    for number in range(2):
        state, want = read(state, 9)
        fresh, new = read(fresh, 9)
        emptied, got = read(emptied, 9)
        moved, swapped = read(moved, 9, back.tolist())
        for b in range(BATCH):
            model = new if first[b] else want
            comparing.assert_same(got.valid[b], model.valid[b], f"step {number}, row {b}: valid")
            ok = model.valid[b]
            comparing.assert_close(got.x[b][ok], model.x[b][ok], f"step {number}, row {b}: reset")
        for b in range(BATCH):
            ok = want.valid[back[b]]
            comparing.assert_close(
                swapped.x[b][ok], want.x[back[b]][ok], f"step {number}, row {b}: reordered"
            )


def test_stack_mistakes_are_named(backend: Any) -> None:
    """No layers, too few blocks, and a drain of nothing are refused with the numbers."""
    with pytest.raises(at.ConfigError, match="at least one AttendreLayer"):
        at.Stack(())
    stack = at.Stack(SMALL[:2])
    runner = StackRunner(backend, stack, blocks_for(KINDS[:2]))
    state = runner.init(BATCH, SEQ)
    x = backend.from_numpy(np.zeros((BATCH, SEQ, WIDTH), dtype=np.float32))
    with pytest.raises(at.ConfigError, match="1 blocks and 2 states for 2 layers"):
        stack.step(state, runner.blocks[:1], x)
    with pytest.raises(at.ConfigError, match="chunk_length"):
        stack.drain(state, runner.blocks, 0)
