"""Laws of the time-shifted stack: residual stream, total shift, order, rows, padding."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import attendre_core as at
from attendre_conformance import comparing, options
from attendre_conformance.layer_cases import layer_rule
from attendre_conformance.options import law
from attendre_conformance.oracle.layer import OracleLayer
from attendre_conformance.oracle.stack import Item, OracleStack, full_stack
from attendre_conformance.position_cases import table_for
from attendre_conformance.running import compiles, few, from_numpy, to_numpy
from attendre_conformance.stack_running import (
    HEAD_DIM,
    HEADS,
    KINDS,
    KV_HEADS,
    WIDTH,
    StackRunner,
    inputs,
    plain_block,
)

pytestmark = pytest.mark.attendre_profile("laws")

BATCH, LENGTH, SEQ = options.rows, 9, 3
#: Decisions closer than this may go either way after several layers in float32.
NEAR = 1e-3

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


@pytest.mark.parametrize("kind", KINDS)
@law()
@given(data=st.data())
def test_large_stack_is_an_ordinary_transformer(
    backend: Any, kind: str, data: st.DataObject
) -> None:
    """With room for everything, 1 to 6 layers give what full attention gives, drained or flushed.

    SPEC, rows 21-25: the residual stream is delayed with its query, the shift is the sum of N.
    """
    counts = (2 if kind == "pre" else 1, 2, 1, 3, 4, 5, 6)
    count = data.draw(st.sampled_from(few(backend, counts)), label="L")
    finish = data.draw(st.sampled_from(few(backend, ("flush", "drain"))), label="finish")
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 999), label="seed"), BATCH, LENGTH)
    runner = StackRunner(backend, at.Stack(LARGE[:count]), blocks_for([kind] * count))
    got, order = runner.run(x, valid, SEQ, finish, counted(valid))
    where = f"{kind}, L={count}, {finish}"
    assert_all_in_order(order, valid, where)
    comparing.assert_close(got, whole(runner, x, valid), f"{where}: output", scale=5 * count)


@law()
@given(data=st.data())
def test_blocks_of_all_kinds_in_one_stack(backend: Any, data: st.DataObject) -> None:
    """Pre-norm, post-norm and parallel blocks mix; documents stay apart in every layer.

    SPEC, rows 21 and 22; issue, build 3 and 7.
    """
    if compiles(backend):
        kinds = ["post", "pre"]
    else:
        kinds = data.draw(st.permutations(KINDS), label="kinds")
    valid = data.draw(rows(), label="valid")
    cut = data.draw(st.integers(1, LENGTH - 1), label="second document begins")
    document = np.tile((np.arange(LENGTH) >= cut) + 4, (BATCH, 1)).astype(np.int32)
    x = inputs(data.draw(st.integers(0, 999), label="seed"), BATCH, LENGTH)
    runner = StackRunner(backend, at.Stack(LARGE[: len(kinds)]), blocks_for(kinds))
    got, _ = runner.run(x, valid, SEQ, "flush", counted(valid), document)
    want = whole(runner, x, valid, document)
    comparing.assert_close(got, want, f"{kinds}, cut at {cut}: output", scale=15)


@law()
@given(data=st.data())
def test_small_stack_equals_oracle(backend: Any, data: st.DataObject) -> None:
    """Layers that evict, each with its own N, M, K, policy and scheme, compose as the oracle's.

    SPEC, rows 1-25, 27: what comes out of one layer is read by the next, late by its N.
    """
    compiled = compiles(backend)
    most = 2 if compiled else len(SMALL)
    count = 2 if compiled else data.draw(st.integers(1, most), label="L")
    kinds = [KINDS[n % 3] for n in range(count)]
    finish = data.draw(st.sampled_from(few(backend, ("flush", "drain"))), label="finish")
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 999), label="seed"), BATCH, LENGTH)
    start = 0 if compiled else data.draw(st.integers(0, most - count), label="first layer")
    layers = SMALL[start : start + count]
    runner = StackRunner(backend, at.Stack(layers), blocks_for(kinds))
    got, order = runner.run(x, valid, SEQ, finish, counted(valid))
    want = np.zeros(x.shape)
    for b in range(BATCH):
        oracle = OracleStack(
            runner.plain,
            [
                OracleLayer(layer_rule(layer), HEADS, KV_HEADS, False, table_for(layer.encoding, 2))
                for layer in layers
            ],
        )
        for begin in range(0, LENGTH, SEQ):
            oracle.step(
                [
                    Item(x[b, t].astype(np.float64), int(counted(valid)[b, t]), t, None)
                    if valid[b, t]
                    else None
                    for t in range(begin, begin + SEQ)
                ]
            )
        oracle.flush(SEQ if finish == "drain" else None)
        if oracle.gap < NEAR:
            event("cut short by a near-tie")
            return
        where = f"layers {start} to {start + count - 1}, {finish}, row {b}"
        assert order[b] == oracle.order, f"{where}: out came {order[b]}, not {oracle.order}"
        for t, vector in oracle.output.items():
            want[b, t] = vector
        comparing.assert_close(got[b], want[b], f"{where}: output", scale=5 * count)


@law()
@given(data=st.data())
def test_total_shift_is_the_sum_of_n(backend: Any, data: st.DataObject) -> None:
    """Fed full chunks, a stack gives S positions a step: the first sum of N empty, then in order.

    SPEC, row 22: N may differ by layer.
    """
    compiled = compiles(backend)
    choices = [at.Stack(SMALL[:2]), at.Stack(SMALL), at.Stack(SMALL[1:3]), at.Stack(LARGE[:1])]
    stack = choices[0] if compiled else data.draw(st.sampled_from(choices), label="stack")
    shift = sum(layer.delay for layer in stack.layers)
    assert stack.delay == shift, f"delay is {stack.delay}, the sum of N is {shift}"
    kinds = [KINDS[n % 3] for n in range(len(stack.layers))]
    runner = StackRunner(backend, stack, blocks_for(kinds))
    state = runner.init(BATCH, SEQ)
    x = inputs(data.draw(st.integers(0, 999), label="seed"), BATCH, 15)
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


class Untouched:
    """A block that attends and then gives back its input as it was."""

    def project(self, x: Any, position: Any) -> tuple[Any, Any, Any]:
        """Take heads from the input."""
        return x[:, :, None, :HEAD_DIM], x[:, :, None, :HEAD_DIM], x[:, :, None, :HEAD_DIM]

    def finish(self, attended: Any, carry: Any) -> Any:
        """Give the input back."""
        return carry


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


@law()
@given(data=st.data())
def test_run_gives_every_position_back_in_its_place(backend: Any, data: st.DataObject) -> None:
    """Whatever N, M, chunk length and end of each row: nothing missing, nothing moved.

    Issue, build 3: results come back in input order with nothing missing.
    """
    sizes = ((2, 6), (0, 5), (7, 8), (1, 4), (3, 9), (5, 7))
    most = 1 if compiles(backend) else 3
    pairs = st.lists(st.sampled_from(few(backend, sizes)), min_size=1, max_size=most)
    chosen = data.draw(pairs, label="N, M by layer")
    layers = tuple(
        at.AttendreLayer(at.KeyValueMemory(m, at.LFA()), at.DataOnlyMemory(n) if n else None)
        for n, m in chosen
    )
    seq = data.draw(st.sampled_from(few(backend, (3, 1, 2, 4))), label="S")
    finish = data.draw(st.sampled_from(few(backend, ("drain", "flush"))), label="finish")
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 999), label="seed"), BATCH, LENGTH)
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

    SPEC, rows 22-24; chunks longer than the input included.
    """
    count = 1 if compiles(backend) else 2
    seq = data.draw(st.sampled_from(few(backend, (3, 1, 2, 4, 11))), label="S")
    finish = data.draw(st.sampled_from(few(backend, ("flush", "drain"))), label="finish")
    valid = data.draw(rows(), label="valid")
    x = inputs(data.draw(st.integers(0, 999), label="seed"), BATCH, LENGTH)
    runner = StackRunner(backend, at.Stack(SMALL[:count]), blocks_for(KINDS[:count]))
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.ChunkTooLongWarning)
        want, _ = runner.run(x, valid, seq, finish, counted(valid))
        y, _ = whole_run(backend, runner.stack, runner.blocks, x, valid, seq, finish, **sizes)
    comparing.assert_close(to_numpy(backend, y), want, f"S={seq}, {finish}: output")


def test_run_takes_a_step_of_the_caller() -> None:
    """A step given to run, such as a compiled one, is called once for each chunk.

    Issue, build 3: pure and scan-shaped.
    """
    numpy = at.backend("numpy")
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


@law()
@given(data=st.data())
def test_rows_of_a_stack_do_not_influence_each_other(backend: Any, data: st.DataObject) -> None:
    """A row of a ragged batch gives what it gives alone; permuting rows permutes results.

    SPEC, laws: rows may end at different times.
    """
    finish = data.draw(st.sampled_from(few(backend, ("flush", "drain"))), label="finish")
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 999), label="seed"), BATCH, LENGTH)
    count = 2 if compiles(backend) else len(SMALL)
    kinds = [KINDS[n % 3] for n in range(count)]
    runner = StackRunner(backend, at.Stack(SMALL[:count]), blocks_for(kinds))
    got, order = runner.run(x, valid, SEQ, finish, counted(valid))
    assert_all_in_order(order, valid, finish)
    swapped, _ = runner.run(x[::-1], valid[::-1], SEQ, finish, counted(valid)[::-1])
    comparing.assert_close(swapped, got[::-1], "rows swapped: output")
    for b in range(BATCH):
        # Beside a row that has nothing to say: the same shapes, so nothing is compiled anew.
        alone = valid & (np.arange(BATCH) == b)[:, None]
        own, _ = runner.run(x, alone, SEQ, finish, counted(valid))
        comparing.assert_close(own[b], got[b], f"row {b} alone: output")
    if not compiles(backend):
        single, _ = runner.run(x[:1], valid[:1], SEQ, finish, counted(valid)[:1])
        comparing.assert_close(single[0], got[0], "batch of one row: output")


@law()
@given(data=st.data())
def test_padding_inside_a_row_changes_nothing(backend: Any, data: st.DataObject) -> None:
    """A row that begins late, pauses and ends early gives what it gives without padding.

    SPEC, laws: padding, on any side and of any amount, changes nothing. Nothing is evicted here,
    because padding also moves the borders of the chunks.
    """
    compiled = compiles(backend)
    count = 2 if compiled else data.draw(st.integers(1, 4), label="L")
    finish = data.draw(st.sampled_from(few(backend, ("flush", "drain"))), label="finish")
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 999), label="seed"), BATCH, LENGTH)
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

    SPEC, laws; chunks longer than the input included.
    """
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 999), label="seed"), BATCH, LENGTH)
    runner = StackRunner(backend, at.Stack(LARGE[:2]), blocks_for(["pre"] * 2))
    want, _ = runner.run(x, valid, SEQ, "flush", counted(valid))
    seq = data.draw(st.sampled_from(few(backend, (5, 1, 2, 9, 11))), label="S")
    got, order = runner.run(x, valid, seq, "flush", counted(valid))
    assert_all_in_order(order, valid, f"S={seq}")
    comparing.assert_close(got, want, f"S={seq} against S={SEQ}: output", scale=5)


def test_reset_and_reorder_reach_every_layer(backend: Any) -> None:
    """A row reset or reordered in a stack is so in all its layers.

    Issue, build 3 and 7.
    """
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
    """No layers, too few blocks, and a drain of nothing are refused with the numbers.

    House style: what was wrong, what was expected.
    """
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
