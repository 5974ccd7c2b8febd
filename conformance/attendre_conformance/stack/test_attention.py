"""Laws of what a stack computes: an ordinary transformer, or the oracle's layers one by one."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer.cases import layer_rule
from attendre_conformance.options import law
from attendre_conformance.oracle.layer import OracleLayer
from attendre_conformance.oracle.stack import Item, OracleStack
from attendre_conformance.positions.cases import table_for
from attendre_conformance.running import few, mixtures
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
    whole,
)
from attendre_conformance.stack.running import HEAD_DIM, HEADS, KINDS, KV_HEADS, StackRunner, inputs

pytestmark = pytest.mark.attendre_profile("laws")


#: Decisions closer than this may go either way after several layers in float32.
NEAR = 1e-3

#: L, and how it ends. Draining many layers takes long: all of them read what the first lets go.
WAYS = (
    *((1, "drain"), (2, "flush"), (1, "flush"), (3, "flush")),
    *((2, "drain"), (4, "flush"), (3, "drain"), (5, "flush"), (6, "flush")),
)


@pytest.mark.parametrize("kind", KINDS)
@law()
@given(data=st.data())
def test_large_stack_is_an_ordinary_transformer(
    backend: Any, kind: str, data: st.DataObject
) -> None:
    """With room for everything, 1 to 6 layers give what full attention gives, drained or flushed.

    Specification, readings 21-25: the residual stream is delayed with its query, the shift is the
    sum of N.
    """
    first = KINDS.index(kind)  # where only two are compiled, they differ from kind to kind
    ways = few(backend, WAYS[first:] + WAYS[:first], 2)
    count, finish = data.draw(st.sampled_from(ways), label="L, finish")
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 2**32 - 1), label="seed"), BATCH, LENGTH)
    runner = StackRunner(backend, at.Stack(LARGE[:count]), blocks_for([kind] * count))
    got, order = runner.run(x, valid, SEQ, finish, counted(valid))
    where = f"{kind}, L={count}, {finish}"
    assert_all_in_order(order, valid, where)
    comparing.assert_close(got, whole(runner, x, valid), f"{where}: output", scale=5 * count)


def test_six_layers_are_an_ordinary_transformer(backend: Any) -> None:
    """The same for the deepest of these stacks on two fixed inputs, on every backend.

    Specification, readings 21-25. Compiling six layers takes too long for a law.
    """
    kinds = [KINDS[n % 3] for n in range(6)]
    runner = StackRunner(backend, at.Stack(LARGE), blocks_for(kinds))
    for seed in range(2):
        x, rng = inputs(seed, BATCH, LENGTH), np.random.default_rng(seed)
        valid = rng.random((BATCH, LENGTH)) < 0.8
        got, order = runner.run(x, valid, SEQ, "flush", counted(valid))
        assert_all_in_order(order, valid, f"six layers, seed {seed}")
        want = whole(runner, x, valid)
        comparing.assert_close(got, want, f"six layers, seed {seed}: output", scale=30)


@law()
@given(data=st.data())
def test_blocks_of_all_kinds_in_one_stack(backend: Any, data: st.DataObject) -> None:
    """Pre-norm, post-norm and parallel blocks mix; documents stay apart in every layer.

    Specification, readings 21 and 22.
    """
    orders = [*permutations(KINDS, 2), *permutations(KINDS)]
    kinds = data.draw(st.sampled_from(few(backend, orders, 2)), label="kinds")
    valid = data.draw(rows(), label="valid")
    cut = data.draw(st.tuples(*[st.integers(1, LENGTH - 1)] * BATCH), label="second documents")
    document = ((np.arange(LENGTH) >= np.asarray(cut)[:, None]) + 4).astype(np.int32)
    x = inputs(data.draw(st.integers(0, 2**32 - 1), label="seed"), BATCH, LENGTH)
    runner = StackRunner(backend, at.Stack(LARGE[: len(kinds)]), blocks_for(kinds))
    got, _ = runner.run(x, valid, SEQ, "flush", counted(valid), document)
    want = whole(runner, x, valid, document)
    comparing.assert_close(got, want, f"{kinds}, cut at {cut}: output", scale=5 * len(kinds))


@law()
@given(data=st.data())
def test_small_stack_equals_oracle(backend: Any, data: st.DataObject) -> None:
    """Layers that evict, each with its own N, M, K, policy and scheme, compose as the oracle's.

    Specification, readings 1-25, 27: what comes out of one layer is read by the next, late by its
    N.
    """
    parts = [(0, 2), (2, 2), (1, 3), (0, 4), (0, 1), (1, 1), (2, 1), (3, 1)]
    (start, count), finish = data.draw(
        mixtures(backend, parts, ("flush", "drain"), most=2), label="first layer and L, finish"
    )
    kinds = [KINDS[n % 3] for n in range(count)]
    valid = data.draw(rows(gaps=True), label="valid")
    x = inputs(data.draw(st.integers(0, 2**32 - 1), label="seed"), BATCH, LENGTH)
    layers = SMALL[start : start + count]
    runner = StackRunner(backend, at.Stack(layers), blocks_for(kinds))
    got, order = runner.run(x, valid, SEQ, finish, counted(valid))
    want = np.zeros(x.shape)
    for b in range(BATCH):
        oracle = OracleStack(
            runner.plain,
            [
                OracleLayer(
                    layer_rule(layer),
                    HEADS,
                    KV_HEADS,
                    False,
                    table_for(layer.encoding, HEADS, HEAD_DIM),
                )
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
