"""What a policy returns: its shape, its dtype, and finite numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendre_conformance.memory.streams import seeded
from attendre_conformance.options import law
from attendre_conformance.policies.subjects import Subject
from attendre_conformance.policies.trials import (
    PER_HEAD,
    PLAIN,
    SETTINGS,
    SUBJECTS,
    Step,
    Trial,
    broken,
    trial_and_stream,
)
from attendre_conformance.running import few
from attendre_core.tree import tree_leaves, tree_map

pytestmark = [pytest.mark.attendre_profile("laws"), pytest.mark.attendre_policy]

EACH = pytest.mark.parametrize("subject", SUBJECTS, ids=[one.name for one in SUBJECTS])


@law()
@given(data=st.data())
def test_shapes_of_scores(backend: Any, data: st.DataObject) -> None:
    """One score per row or per entry from enter, one per slot from observe and priority.

    With ``per_head=True`` all of them have an axis for the K/V heads behind the batch.
    """
    trial, stream = data.draw(trial_and_stream(backend))
    state = trial.start()
    for chunk in stream.chunks:
        step = trial.step(state, chunk)  # every result is checked when it is returned
        assert any(call.method == "enter" for call in step.calls), f"{trial.name}: never asked"
        state = step.state


@EACH
def test_scores_have_the_dtype_of_the_memory(backend: Any, subject: Subject) -> None:
    """Scores go in and come out in one dtype: float32, or float64 in a float64 memory."""
    kinds = ["float32"] + (["float64"] if "float64" in backend.capabilities else [])
    for kind in kinds:
        trial = Trial(backend, subject)
        dtype = getattr(backend.xp, kind)
        stream = seeded(trial.shape, np.random.default_rng(1), steps=2)
        state = trial.start(dtype=dtype)
        for chunk in stream.chunks:
            exact = {name: getattr(chunk, name).astype(kind) for name in ("key", "value", "query")}
            step = trial.step(state, replace(chunk, **exact))
            for call in step.calls:
                if call.method not in ("enter", "observe", "priority") or call.result is None:
                    continue
                assert call.result.dtype == dtype, (
                    f"{trial.name}: {call.method} returned {call.result.dtype} in a memory whose "
                    f"scores are {kind}. Law: scores have the dtype of stored.score; use "
                    "xp.astype(scores, stored.score.dtype)."
                )
            state = step.state


def _assert_finite(trial: Trial, step: Step, where: str) -> None:
    for method, result, matters in trial.answers(step):
        for leaf in tree_leaves(result):
            if np.asarray(leaf).dtype.kind != "f":
                continue
            real = np.isfinite(leaf) if matters is None else np.isfinite(leaf) | ~matters
            rule = "finite keys, values and queries give finite scores"
            what = f"returned {np.asarray(leaf).tolist()} {where}"
            assert np.all(real), broken(trial, method, what, rule)


@law()
@given(data=st.data())
def test_finite_input_gives_finite_scores(backend: Any, data: st.DataObject) -> None:
    """Whatever the numbers: small, equal, or as large as 1e15."""
    trial, stream = data.draw(trial_and_stream(backend))
    factor = data.draw(st.sampled_from((1.0, 0.0, 1e-30, 1e15)), label="keys are multiplied by")
    state = trial.start()
    for number, chunk in enumerate(stream.chunks):
        key = np.where(chunk.valid[..., None, None], chunk.key * np.float32(factor), chunk.key)
        step = trial.step(state, replace(chunk, key=key))
        _assert_finite(trial, step, f"in step {number}, keys times {factor}")
        state = step.state


@EACH
def test_finite_scores_in_narrow_places(backend: Any, subject: Subject) -> None:
    """An empty memory, one entry, equal scores, no query, no entry: scores stay finite."""
    for setting in few(backend, SETTINGS, 2):
        trial = Trial(backend, subject, setting)
        chunk = seeded(trial.shape, np.random.default_rng(2), steps=1, percent=0).chunks[0]
        nothing = np.zeros_like(chunk.valid)
        single = nothing.copy()
        single[:, 1] = True
        alike = replace(chunk, key=np.ones_like(chunk.key), query=np.ones_like(chunk.query))
        empty = trial.start()
        narrow = {
            "nothing at all": replace(chunk, valid=nothing, query_valid=nothing),
            "no entry": replace(chunk, valid=nothing),
            "no query": replace(chunk, query_valid=nothing),
            "one entry": replace(chunk, valid=single),
            "equal entries": alike,
        }
        full = trial.step(trial.step(empty, alike).state, alike).state
        for name, one in narrow.items():
            for state, held in ((empty, "an empty memory"), (full, "a memory of equal entries")):
                _assert_finite(trial, trial.step(state, one), f"for {name} and {held}")


@law()
@given(data=st.data())
def test_soft_masks_are_shares(backend: Any, data: st.DataObject) -> None:
    """A soft mask is between 0 and 1, for every valid query and entry."""
    trial, stream = data.draw(trial_and_stream(backend))
    state = trial.start()
    for chunk in stream.chunks:
        step = trial.step(state, chunk)
        for method, result, matters in trial.answers(step):
            if method == "soft_mask":
                share = (result >= 0) & (result <= 1) | ~matters
                what = broken(trial, method, f"returned {result.tolist()}", "masks are in [0, 1]")
                assert np.all(share), what
        state = step.state


@EACH
def test_memory_of_one_slot(backend: Any, subject: Subject) -> None:
    """The smallest memory there is still gets finite scores of the right shape."""
    trial = Trial(backend, subject, PLAIN, spare=-4)
    state = trial.start()
    for chunk in seeded(trial.shape, np.random.default_rng(3), steps=3).chunks:
        step = trial.step(state, chunk)
        _assert_finite(trial, step, f"in a memory of size {trial.size}")
        state = step.state


@EACH
def test_own_state_keeps_its_form(backend: Any, subject: Subject) -> None:
    """What init and remember return has the same structure, shapes and dtypes in every step.

    Every array begins with the batch. Otherwise a scan could not carry it.
    """
    for setting in (PLAIN, PER_HEAD):
        trial = Trial(backend, subject, setting)
        state = trial.start()
        form = _form(state.policy_state)
        for leaf in tree_leaves(state.policy_state):
            assert leaf.shape[:1] == (trial.shape.batch,), (
                f"{trial.name}: init returned an array of shape {leaf.shape}, expected "
                f"({trial.shape.batch}, ...). Law: a policy's own state begins with the batch."
            )
        for chunk in seeded(trial.shape, np.random.default_rng(4), steps=2).chunks:
            state = trial.step(state, chunk).state
            got = _form(state.policy_state)
            assert got == form, (
                f"{trial.name}: remember returned {got}, init {form}. "
                "Law: a policy's own state keeps its structure, shapes and dtypes."
            )


def _form(tree: Any) -> Any:
    return tree_map(lambda leaf: f"{leaf.dtype}{leaf.shape}", tree)
