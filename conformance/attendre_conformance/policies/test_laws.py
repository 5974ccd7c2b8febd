"""The laws of every policy: a pure function of what it is shown, row by row, slot by slot."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendre_conformance import comparing
from attendre_conformance.memory.streams import scattered, with_garbage
from attendre_conformance.options import law
from attendre_conformance.policies.subjects import Subject
from attendre_conformance.policies.trials import (
    PER_HEAD,
    PLAIN,
    SUBJECTS,
    Trial,
    broken,
    rows_of,
    slots_of,
    trial_and_stream,
)
from attendre_conformance.policies.watching import garbled_call
from attendre_conformance.running import compiles, few, to_numpy

pytestmark = [pytest.mark.attendre_profile("laws"), pytest.mark.attendre_policy]

EACH = pytest.mark.parametrize("subject", SUBJECTS, ids=[one.name for one in SUBJECTS])


@EACH
def test_policy_is_a_frozen_value(subject: Subject) -> None:
    """A policy is a frozen dataclass of plain values: hashable, equal when its values are.

    A memory with it is then a constant to a compiler, and equal memories are compiled once.
    """
    policy, kind = subject.policy, type(subject.policy)
    remedy = f"Write @dataclass(frozen=True) above class {kind.__name__}."
    params = vars(kind).get("__dataclass_params__")
    assert params is not None, f"{kind.__name__} is no dataclass of its own. {remedy}"
    assert params.frozen, f"{kind.__name__} is a dataclass that can be changed. {remedy}"
    assert params.eq, f"{kind.__name__} is not compared by value (eq=False). {remedy}"
    fields = {one.name: getattr(policy, one.name) for one in dataclasses.fields(policy)}
    for name, value in fields.items():
        try:
            hash(value)
        except TypeError:
            pytest.fail(
                f"{kind.__name__}.{name} is {value!r}, which is not hashable. Use plain values: "
                "numbers, strings, tuples, other frozen dataclasses."
            )
    aside = [one.name for one in dataclasses.fields(policy) if not one.compare]
    assert not aside, f"{kind.__name__}: {', '.join(aside)} is left out of the comparison."
    twin = dataclasses.replace(policy)
    assert twin == policy, f"{twin!r} was made from the same values, and is not equal."
    assert hash(twin) == hash(policy), f"{twin!r} is equal to {policy!r}, their hashes differ."
    assert vars(twin) == vars(policy), (
        f"{kind.__name__} has attributes that do not follow from its fields: {vars(policy)}, and "
        f"{vars(twin)} for a policy of the same values. Make them fields."
    )


@law()
@given(data=st.data())
def test_policy_is_pure(backend: Any, data: st.DataObject) -> None:
    """Asked twice, a policy answers the same bit for bit; it changes neither itself nor its input.

    Everything that changes belongs into the state of the memory.
    """
    trial, stream = data.draw(trial_and_stream(backend))
    policy, state = trial.subject.policy, trial.start()
    before = _attributes(policy)
    rule = "a policy is a pure function of its arguments"
    for chunk in stream.chunks:
        step = trial.step(state, chunk)
        for call in step.calls:
            shown = to_numpy(backend, _shown(call))
            result = to_numpy(backend, call.result)
            again = to_numpy(backend, call.again())
            changed = broken(trial, call.method, "changes its arguments", rule)
            comparing.assert_same(to_numpy(backend, _shown(call)), shown, changed)
            what = broken(trial, call.method, "answers differently when asked again", rule)
            comparing.assert_same(again, result, what)
        state = step.state
    after = _attributes(policy)
    assert before == after, (
        f"{trial.name}: attributes before {before}, after {after}. Law: {rule}; keep what must "
        "be remembered in the state that init and remember return."
    )


def _attributes(policy: Any) -> dict[str, Any]:
    """Return the values of the instance and of its class."""
    plain = {
        name: value
        for name, value in vars(type(policy)).items()
        if not callable(value) and not name.startswith("__") and not hasattr(value, "__get__")
    }
    return copy.deepcopy({**plain, **vars(policy)})


def _shown(call: Any) -> tuple[Any, ...]:
    """Return the arrays that a policy was shown."""
    names = {"enter": ("key", "value", "position", "valid")}.get(
        call.method, ("position", "valid", "logits", "key", "value", "query")
    )
    others = () if call.other is None else tuple(getattr(call.other, name) for name in names)
    return (tuple(call.stored[:8]), others)


@law()
@given(data=st.data())
def test_rows_do_not_influence_each_other(backend: Any, data: st.DataObject) -> None:
    """A row alone gets the scores it gets in a batch; rows in another order get the same scores.

    Specification, law-rows.
    """
    trial, stream = data.draw(trial_and_stream(backend))
    batch, state = trial.shape.batch, trial.start()
    order = data.draw(st.permutations(range(batch)), label="order of the rows")
    row = data.draw(st.integers(0, batch - 1), label="row that is taken alone")
    # Among copies of itself a row is as good as alone, and the code for it is compiled already.
    alone = [row] * (batch if compiles(backend) else 1)
    rule = "what a policy returns for one row depends on that row alone; reduce over axis -1"
    for chunk in stream.chunks:
        step = trial.step(state, chunk)
        answers = trial.answers(step)
        for index, how in ((order, "in another order"), (alone, "alone")):
            others = trial.answers(trial.step(rows_of(state, index), chunk.rows(index)))
            for (method, want, matters), (_, got, _) in zip(answers, others, strict=True):
                what = broken(trial, method, f"gives rows {index} other scores {how}", rule)
                if matters is not None:
                    matters = matters[list(index)]
                trial.equal(got, rows_of(want, index), matters, what)
        state = step.state


#: What may be in a slot, an entry or a pair that is not real.
GARBAGE = (float("nan"), float("inf"), -1e30, 777.0)


@law()
@given(data=st.data())
def test_contents_of_padding_change_nothing(backend: Any, data: st.DataObject) -> None:
    """Whatever is in empty slots, padding and pairs that may not attend, NaN included.

    Specification, reading 16.
    """
    trial, stream = data.draw(trial_and_stream(backend))
    number = data.draw(st.sampled_from(GARBAGE), label="garbage")
    rule = "empty slots, padding and pairs that may not attend change nothing; use .valid, .allowed"
    state = trial.start()
    for chunk, dirty in zip(stream.chunks, with_garbage(stream, number).chunks, strict=True):
        step = trial.step(state, chunk)
        for call, (method, want, matters) in zip(
            [call for call in step.calls if call.result is not None],
            trial.answers(step),
            strict=True,
        ):
            what = broken(trial, method, f"sees {number} where nothing is real", rule)
            trial.equal(to_numpy(backend, garbled_call(call, number)), want, matters, what)
        others = trial.answers(trial.step(state, dirty))
        for (method, want, matters), (_, got, _) in zip(trial.answers(step), others, strict=True):
            what = broken(trial, method, f"sees {number} in the padding of a chunk", rule)
            trial.equal(got, want, matters, what)
        state = step.state


@law()
@given(data=st.data())
def test_amount_of_padding_changes_nothing(backend: Any, data: st.DataObject) -> None:
    """More padding in a chunk, and more empty slots, change no score.

    Specification, reading 16: padding is never counted in a mean or a deviation.
    """
    trial, stream = data.draw(trial_and_stream(backend, (PLAIN, PER_HEAD), 4, max_steps=2))
    more = data.draw(st.sampled_from(few(backend, (2, 1, 3))), label="more padding, and more slots")
    wide = Trial(backend, trial.subject, trial.setting, 4 + more)
    seq = trial.shape.seq
    places = np.sort(
        [
            data.draw(st.permutations(range(seq + more)), label=f"places of row {b}")[:seq]
            for b in range(trial.shape.batch)
        ]
    )
    rule = "padding and empty slots are never counted; divide by the number of valid ones"
    state, state2 = trial.start(), wide.start(chunk=seq + more)
    for chunk in stream.chunks:
        state = trial.step(state, chunk).state
        state2 = wide.step(state2, scattered(chunk, places, seq + more)).state
        what = broken(trial, "enter or observe", f"gives other scores with {more} more", rule)
        got, want = _by_position(state2), _by_position(state)
        comparing.assert_same(got[0], want[0], what)
        comparing.assert_close(got[1], want[1], what)


def _by_position(state: Any) -> tuple[Any, Any]:
    """Return position and score of the real entries, sorted by position, and zeros behind."""
    far = np.where(state.valid, state.position, 10**6)
    order = np.argsort(far, axis=-1, kind="stable")[..., :6]
    position = np.take_along_axis(far, order, axis=-1)
    score = np.take_along_axis(np.where(state.valid, state.score, 0), order, axis=-1)
    return position, score


@law()
@given(data=st.data())
def test_equal_entries_get_equal_scores(backend: Any, data: st.DataObject) -> None:
    """Two entries that are equal in everything get one score, whichever slots hold them.

    Specification, reading 15: ties are decided by the memory, the same on every backend.
    """
    trial, stream = data.draw(trial_and_stream(backend, (PLAIN, PER_HEAD)))
    slots = list(range(trial.size))
    order = data.draw(st.permutations(slots), label="order of the slots")
    one, two = data.draw(st.permutations(slots), label="slots that are made equal")[:2]
    rule = "equal entries get equal scores; the slot of an entry means nothing"
    state = trial.start()
    for chunk in stream.chunks:
        step = trial.step(state, chunk)
        silent = dataclasses.replace(chunk, valid=np.zeros_like(chunk.valid))
        want = _observed(trial, step.inserted, silent)
        if want is None:
            return
        got = _observed(trial, slots_of(step.inserted, order), silent)
        what = broken(trial, "observe", f"gives other scores in slots {order}", rule)
        trial.equal(got[0], want[0][..., order], want[1][..., order], what)
        twins = list(slots)
        twins[two] = one
        score, matters = _observed(trial, slots_of(step.inserted, twins), silent, top_k=None)
        what = broken(trial, "observe", f"tells the equal entries in {one} and {two} apart", rule)
        trial.equal(score[..., two], score[..., one], matters[..., one], what)
        state = step.state


def _observed(trial: Trial, state: Any, chunk: Any, **change: Any) -> Any:
    """Attend with the queries of a chunk without an entry: (scores, what of them matters)."""
    if change:
        setting = dataclasses.replace(trial.setting, **change)
        trial = Trial(trial.backend, trial.subject, setting)
    answers = trial.answers(trial.step(state, chunk))
    return next(((got, real) for name, got, real in answers if name == "observe"), None)
