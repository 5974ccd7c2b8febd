"""Laws of the state: pure, storable, movable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.memory.cases import CORE, EVERY, FEW, case_and_stream
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import Stream
from attendre_conformance.options import law
from attendre_conformance.running import from_numpy, to_numpy
from attendre_core.backend import backend as look_up

pytestmark = pytest.mark.attendre_profile("laws")

#: All of one shape: eager code of a compiling backend compiles every operation by itself.
EAGER = [EVERY[n] for n in ("lru", "lfa-0")]


@law()
@given(data=st.data())
def test_input_state_is_unchanged(backend: Any, data: st.DataObject) -> None:
    """No call changes the state, or any array, that was passed in.

    Specification, law-purity.
    """
    one, stream = data.draw(case_and_stream(FEW, max_steps=3), label="case and stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    order = np.arange(stream.shape.batch)
    for number, chunk in enumerate(stream.chunks):
        where = f"{one.name}, step {number}"
        before = runner.numpy(state)
        inserted, _ = runner.insert(state, chunk)
        comparing.assert_same(runner.numpy(state), before, f"{where}: state passed to insert")
        middle = runner.numpy(inserted)
        after, _ = runner.attend(inserted, chunk)
        comparing.assert_same(runner.numpy(inserted), middle, f"{where}: state passed to attend")
        runner.retrieve(inserted, chunk)
        comparing.assert_same(runner.numpy(inserted), middle, f"{where}: state passed to retrieve")
        runner.reset(inserted, order == 0)
        runner.reorder(inserted, order[::-1])
        runner.settle(inserted)
        comparing.assert_same(
            runner.numpy(inserted), middle, f"{where}: state passed to reset, reorder, settle"
        )
        state = after


@law()
@given(data=st.data())
def test_input_arrays_are_unchanged(backend: Any, data: st.DataObject) -> None:
    """Keys, values, positions and queries are not written to, not even when donating.

    Specification, law-purity.
    """
    one, stream = data.draw(case_and_stream(EAGER, max_steps=3), label="case and stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        arrays = tuple(
            runner.array(x)
            for x in (chunk.key, chunk.value, chunk.position, chunk.valid, chunk.query)
        )
        before = runner.numpy(arrays)
        key, value, position, valid, query = arrays
        state, _ = one.memory.insert(state, key, value, position=position, valid=valid, donate=True)
        state, _ = one.memory.attend(state, query, position=position, valid=valid)
        comparing.assert_same(runner.numpy(arrays), before, f"{one.name}, step {number}: inputs")


@law()
@given(data=st.data())
def test_donated_equals_not_donated(backend: Any, data: st.DataObject) -> None:
    """Donating the state changes where results are written, not what they are.

    Specification, law-purity.
    """
    one, stream = data.draw(case_and_stream(FEW), label="case and stream")
    runner = Runner.of(backend, one)
    plain, gift = runner.init(stream.shape), runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        plain, out = runner.insert(plain, chunk)
        gift, out2 = runner.insert(gift, chunk, donate=True)
        where = f"{one.name}, step {number}"
        comparing.assert_same(runner.numpy(gift), runner.numpy(plain), f"{where}: donated state")
        comparing.assert_same(runner.numpy(out2), runner.numpy(out), f"{where}: evicted")
        plain, _ = runner.attend(plain, chunk)
        gift, _ = runner.attend(gift, chunk)


@law()
@given(data=st.data())
def test_saved_and_restored_goes_on_the_same(backend: Any, data: st.DataObject) -> None:
    """Save, restore and go on = never stopped, bit for bit.

    Specification, law-restore.
    """
    one, stream = data.draw(case_and_stream(CORE), label="case and stream")
    cut = data.draw(st.integers(0, len(stream.chunks)), label="where it stops")
    runner = Runner.of(backend, one)
    want = runner.run(stream)
    state = runner.init(stream.shape)
    for chunk in stream.chunks[:cut]:
        state, _, _ = runner.step(state, chunk)
    restored = from_numpy(backend, to_numpy(backend, state))
    rest = Stream(stream.shape, stream.chunks[cut:], stream.exact)
    got = runner.run(rest, restored)
    comparing.assert_same(got[0], want[0], f"{one.name}, restored after {cut} steps: state")
    comparing.assert_same(
        tuple(got[2]), tuple(want[2][cut:]), f"{one.name}, restored after {cut} steps: outputs"
    )


@law()
@given(data=st.data())
def test_state_goes_on_in_another_library(backend: Any, data: st.DataObject) -> None:
    """A state can be moved to NumPy and back, and go on there, to float tolerance.

    Specification, law-restore: also in another framework.
    """
    one, stream = data.draw(case_and_stream(FEW), label="case and stream")
    cut = data.draw(st.integers(0, len(stream.chunks)), label="where it moves")
    runner = Runner.of(backend, one)
    want = runner.run(stream)
    state = runner.init(stream.shape)
    for chunk in stream.chunks[:cut]:
        state, _, _ = runner.step(state, chunk)
    moved = at.convert(state, "numpy")
    comparing.assert_same(moved, runner.numpy(state), f"{one.name}: converted to NumPy")
    back = at.convert(moved, backend.name)
    comparing.assert_same(runner.numpy(back), moved, f"{one.name}: converted there and back")
    there = Runner.of(look_up("numpy"), one)
    rest = Stream(stream.shape, stream.chunks[cut:], stream.exact)
    got = there.run(rest, moved)
    if one.name != "lfa-decay":  # decayed sums may differ in the last bit and tip a tie
        assert kept(got[0]) == kept(want[0]), (
            f"{one.name}, moved to NumPy after {cut} steps: keeps {kept(got[0])}, "
            f"never moved {kept(want[0])}"
        )
        for number, (a, b) in enumerate(zip(got[2], want[2][cut:], strict=True)):
            comparing.assert_close(a, b, f"{one.name}, moved after {cut} steps: output {number}")
