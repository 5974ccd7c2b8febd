"""Laws of the data-only memory: a queue that delays, and whatever else its policy makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing, options
from attendre_conformance.memory.cases import policy_rule
from attendre_conformance.options import law
from attendre_conformance.oracle import Entry, MemoryRule, OracleQueue
from attendre_conformance.running import compiles, from_numpy, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")

BATCH, WIDTH = options.rows, 3
#: (N, S): N a multiple of S or not, smaller and larger.
SIZES = ((3, 2), (4, 2), (2, 5))

_compiled: dict[Any, Any] = {}


@dataclass(frozen=True)
class Piece:
    """One chunk for a queue, in NumPy arrays."""

    data: Any
    position: Any
    valid: Any
    score: Any


@st.composite
def pieces(draw: st.DrawFn, seq: int, padding: bool = True, min_steps: int = 1) -> list[Piece]:
    """Draw chunks whose data tell each entry from every other."""
    steps = draw(st.integers(min_steps, 4), label="steps")
    percent = draw(st.sampled_from((0, 30, 70)), label="percent of padding") if padding else 0
    raw = draw(
        st.binary(min_size=steps * BATCH * seq * 2, max_size=steps * BATCH * seq * 2),
        label="contents",
    )
    flags = np.frombuffer(raw, dtype=np.uint8).reshape(2, steps, BATCH, seq)
    valid = flags[0] >= percent * 256 // 100
    result, count = [], np.zeros((BATCH, 1), dtype=np.int32)
    for step in range(steps):
        number = (count + np.cumsum(valid[step], axis=1) - 1).astype(np.int32)
        count = number[:, -1:] + 1
        vector = number[..., None] + np.arange(WIDTH) / 4 + np.arange(BATCH)[:, None, None] * 100
        label = number + np.arange(BATCH)[:, None] * 100
        result.append(
            Piece(
                data=(
                    np.where(valid[step][..., None], vector, -9).astype(np.float32),
                    {"label": np.where(valid[step], label, -9).astype(np.int32)},
                ),
                position=np.where(valid[step], number * 2, -77).astype(np.int32),
                valid=valid[step],
                score=((flags[1, step] % 4) / 2).astype(np.float32),
            )
        )
    return result


def example(backend: Any, seq: int) -> Any:
    """Return arrays that show a queue what it will carry."""
    data = (
        np.zeros((BATCH, seq, WIDTH), dtype=np.float32),
        {"label": np.zeros((BATCH, seq), dtype=np.int32)},
    )
    return from_numpy(backend, data)


def insert(backend: Any, queue: Any, state: Any, piece: Piece, scored: bool = False) -> Any:
    """Insert a piece: (state, evicted)."""
    key = (backend.name, queue, scored)
    if key not in _compiled:

        def run(state: Any, data: Any, position: Any, valid: Any, more: Any) -> Any:
            return queue.insert(state, data, position=position, valid=valid, **more)

        _compiled[key] = backend.compile(run) if compiles(backend) else run
    more = {"score": backend.from_numpy(np.array(piece.score))} if scored else {}
    return _compiled[key](
        state,
        from_numpy(backend, piece.data),
        backend.from_numpy(np.array(piece.position)),
        backend.from_numpy(np.array(piece.valid)),
        more,
    )


def assert_slots(got: Any, want: list[Entry | None], row: int, where: str) -> None:
    """Check one row of `evicted` or `get_all`, slot by slot, in order."""
    valid = [entry is not None for entry in want]
    assert got.valid[row].tolist() == valid, (
        f"{where}, row {row}: valid {got.valid[row].tolist()}, expected {valid}"
    )
    positions = [int(p) for p, ok in zip(got.position[row], got.valid[row], strict=True) if ok]
    expected = [entry.position for entry in want if entry is not None]
    assert positions == expected, (
        f"{where}, row {row}: positions {positions}, expected {expected} in this order"
    )
    vectors, labels = got.data[0][row], got.data[1]["label"][row]
    for s, entry in enumerate(want):
        if entry is not None:
            assert vectors[s].tolist() == entry.key[0], (
                f"{where}, row {row}, slot {s}: data {vectors[s].tolist()}, expected {entry.key[0]}"
            )
            assert int(labels[s]) == entry.key[1], (
                f"{where}, row {row}, slot {s}: label {labels[s]}, expected {entry.key[1]}"
            )


QUEUES: dict[str, tuple[Any, dict[str, Any]]] = {
    "fifo": (at.FIFO(), {}),
    "sink": (at.AttentionSink(sinks=1), {}),
    "scored": (at.LFA(initial=at.ConstantScore(1.0)), {}),
    "recent": (at.LFU(initial=at.ConstantScore(0.5)), {"protect_recent": 1}),
}


@pytest.mark.parametrize("kind", QUEUES)
@law()
@given(data=st.data())
def test_queue_equals_oracle(backend: Any, kind: str, data: st.DataObject) -> None:
    """What comes out, in which order, and what remains are the oracle's.

    Specification, readings 14-16, 19, 27.
    """
    size, seq = data.draw(st.sampled_from(SIZES), label="N and S")
    policy, protection = QUEUES[kind]
    queue = at.DataOnlyMemory(size=size, policy=policy, **protection)
    rule = MemoryRule(size=size, policy=policy_rule(policy), **protection)
    oracles = [OracleQueue(rule) for _ in range(BATCH)]
    scored = kind in ("scored", "recent")
    state = queue.init(example(backend, seq))
    for step, piece in enumerate(data.draw(pieces(seq), label="pieces")):
        state, evicted = insert(backend, queue, state, piece, scored)
        out = to_numpy(backend, evicted)
        held = to_numpy(backend, queue.get_all(state))
        for b, oracle in enumerate(oracles):
            vectors, labels = piece.data[0][b].tolist(), piece.data[1]["label"][b].tolist()
            want = oracle.insert(
                list(zip(vectors, labels, strict=True)),
                piece.position[b].tolist(),
                piece.valid[b].tolist(),
                piece.score[b].tolist() if scored else None,
            )
            assert_slots(out, want, b, f"N={size}, S={seq}, step {step}, evicted")
            assert_slots(held, oracle.get_all(), b, f"N={size}, S={seq}, step {step}, get_all")


@law()
@given(data=st.data())
def test_delay_is_exactly_n_in_order(backend: Any, data: st.DataObject) -> None:
    """A FIFO queue fed full chunks returns S a step: first N empty ones, then the input in order.

    Specification, readings 19 and 20: exactly N positions late, N need not be a multiple of S.
    """
    size, seq = data.draw(st.sampled_from(SIZES), label="N and S")
    queue = at.DataOnlyMemory(size=size)
    state = queue.init(example(backend, seq))
    came: list[list[Any]] = [[] for _ in range(BATCH)]
    went: list[list[Any]] = [[] for _ in range(BATCH)]
    for piece in data.draw(pieces(seq, padding=False, min_steps=3), label="pieces"):
        state, evicted = insert(backend, queue, state, piece)
        evicted = to_numpy(backend, evicted)
        assert evicted.valid.shape == (BATCH, seq), (
            f"evicted has shape {evicted.valid.shape}, expected {(BATCH, seq)}"
        )
        for b in range(BATCH):
            came[b] += piece.position[b].tolist()
            went[b] += [
                int(p) if ok else None
                for p, ok in zip(evicted.position[b], evicted.valid[b], strict=True)
            ]
    for b in range(BATCH):
        want = ([None] * size + came[b])[: len(came[b])]
        assert went[b] == want, f"N={size}, S={seq}, row {b}: out came {went[b]}, not {want}"


@law()
@given(data=st.data())
def test_queue_reset_and_reorder(backend: Any, data: st.DataObject) -> None:
    """A reset row is a fresh row; reordering takes rows with all they hold."""
    size, seq = data.draw(st.sampled_from(SIZES[:2]), label="N and S")
    queue = at.DataOnlyMemory(size=size)
    fresh = state = queue.init(example(backend, seq))
    for piece in data.draw(pieces(seq), label="first pieces"):
        state, _ = insert(backend, queue, state, piece)
    rows = data.draw(st.tuples(*[st.booleans()] * BATCH), label="rows to reset")
    index = data.draw(st.tuples(*[st.integers(0, BATCH - 1)] * BATCH), label="index")
    emptied = queue.reset(state, backend.from_numpy(np.asarray(rows)))
    moved = queue.reorder(state, backend.from_numpy(np.asarray(index, dtype=np.int32)))
    states = {"fresh": fresh, "old": state, "emptied": emptied, "moved": moved}
    for step, piece in enumerate(data.draw(pieces(seq), label="second pieces")):
        outs = {}
        same = Piece(
            data=(
                np.repeat(piece.data[0][:1], BATCH, axis=0),
                {"label": np.repeat(piece.data[1]["label"][:1], BATCH, axis=0)},
            ),
            position=np.repeat(piece.position[:1], BATCH, axis=0),
            valid=np.repeat(piece.valid[:1], BATCH, axis=0),
            score=piece.score,
        )
        for name in states:
            states[name], evicted = insert(backend, queue, states[name], same)
            outs[name] = to_numpy(backend, evicted)
        for b in range(BATCH):
            model = "fresh" if rows[b] else "old"
            for got, want, row in (("emptied", model, b), ("moved", "old", index[b])):
                ok = outs[want].valid[row]
                comparing.assert_same(outs[got].valid[b], ok, f"step {step}, {got}, row {b}: valid")
                comparing.assert_same(
                    np.where(ok, outs[got].position[b], 0),
                    np.where(ok, outs[want].position[row], 0),
                    f"step {step}, {got}, row {b}: positions",
                )
                comparing.assert_same(
                    np.where(ok[:, None], outs[got].data[0][b], 0),
                    np.where(ok[:, None], outs[want].data[0][row], 0),
                    f"step {step}, {got}, row {b}: data",
                )


@law()
@given(data=st.data())
def test_queue_leaves_its_input_alone(backend: Any, data: st.DataObject) -> None:
    """The input state of an insert is unchanged after it, and so are the arrays inserted.

    Specification, law-purity.
    """
    size, seq = data.draw(st.sampled_from(SIZES), label="N and S")
    queue = at.DataOnlyMemory(size=size)
    state = queue.init(example(backend, seq))
    for step, piece in enumerate(data.draw(pieces(seq), label="pieces")):
        before = to_numpy(backend, state)
        arrays = from_numpy(backend, (piece.data, piece.position, piece.valid))
        after, _ = queue.insert(state, *arrays)
        comparing.assert_same(to_numpy(backend, state), before, f"step {step}: input state")
        for got, want in zip(to_numpy(backend, arrays), (piece.data, piece.position), strict=False):
            comparing.assert_same(got, want, f"step {step}: arrays that were inserted")
        state = after
