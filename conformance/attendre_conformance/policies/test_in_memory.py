"""A policy inside a memory: nothing is lost, no value is read, compiled code does the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing, options
from attendre_conformance.memory.running import with_own_code
from attendre_conformance.memory.streams import Shape, seeded
from attendre_conformance.options import law
from attendre_conformance.policies.subjects import Subject
from attendre_conformance.policies.trials import (
    PER_HEAD,
    PLAIN,
    SETTINGS,
    SUBJECTS,
    VISIBLE,
    Setting,
    trial_and_stream,
)
from attendre_conformance.running import from_numpy, to_numpy

pytestmark = pytest.mark.attendre_policy

LAWS = pytest.mark.attendre_profile("laws")
EACH = pytest.mark.parametrize("subject", SUBJECTS, ids=[one.name for one in SUBJECTS])
#: Of the shipped policies those that other tests do not compile.
ALONE = (
    *("h2o", "tova", "random", "snapkv", "defensive", "salience", "dropkv"),
    *("keydiff", "leverage", "lagkv", "expected-attention", "r-kv", "nexus"),
)
COMPILED = [one for one in SUBJECTS if options.policy or one.name in ALONE]


def _positions(entries: Any, row: int, head: int | None) -> Counter[int]:
    """Count the positions of the real entries of one row."""
    at_, real = entries.position[row], entries.valid[row]
    if head is not None and at_.ndim == 2:
        at_, real = at_[head], real[head]
    return Counter(at_[real].tolist())


@LAWS
@law()
@given(data=st.data())
def test_nothing_is_lost_and_capacity_is_kept(backend: Any, data: st.DataObject) -> None:
    """Kept + evicted = old + inserted; never more than the memory holds.

    Specification, law-conservation and law-capacity.
    """
    trial, stream = data.draw(trial_and_stream(backend))
    per_head = "per_head" in dict(trial.setting.options)
    state = trial.start()
    room = trial.size + (trial.shape.seq if trial.setting is VISIBLE else 0)
    for number, chunk in enumerate(stream.chunks):
        step = trial.step(state, chunk)
        for row in range(trial.shape.batch):
            for head in range(trial.shape.kv_heads) if per_head else (None,):
                here = f"{trial.name}: step {number}, row {row}, head {head}"
                old = _positions(state, row, head) + _positions(chunk, row, head)
                kept = _positions(step.inserted, row, head)
                went = _positions(step.evicted, row, head)
                assert kept + went == old, (
                    f"{here}: lost {sorted((old - kept - went).elements())}, twice "
                    f"{sorted((kept + went - old).elements())}. Law: kept + evicted = old + new."
                )
                assert kept.total() <= room, (
                    f"{here}: holds {kept.total()} entries, there is room for {room}."
                )
        state = step.state


@LAWS
@law()
@given(data=st.data())
def test_chunk_of_padding_changes_nothing(backend: Any, data: st.DataObject) -> None:
    """After a chunk without a real entry or query, everything is as it was.

    Specification, reading 16. With ``present="visible"`` nothing competes before the next real
    chunk.
    """
    trial, stream = data.draw(trial_and_stream(backend))
    state = trial.start()
    for chunk in stream.chunks:
        state = trial.step(state, chunk).state
    padding = stream.chunks[0]
    nothing = np.zeros_like(padding.valid)
    fields = {**vars(padding), "valid": nothing, "query_valid": nothing}
    after = trial.step(state, type(padding)(**fields)).state
    for name in ("position", "valid", "score", "arrival", "clock", "policy_state"):
        comparing.assert_same(
            getattr(after, name),
            getattr(state, name),
            f"{trial.name}: {name} after a chunk of padding (law: padding changes nothing)",
        )


@pytest.mark.attendre_profile("eager")
@EACH
def test_no_value_is_read(subject: Subject) -> None:
    """A policy runs on arrays whose values cannot be read, as inside a compiled function.

    No ``if`` on an array, no ``float(x)``, no loop over one, no NumPy function; see
    `attendre_conformance.no_reads`.
    """
    pytest.importorskip("array_api_strict", reason="arrays without values need array-api-strict")
    from attendre_conformance import no_reads

    for setting in SETTINGS:
        memory = _memory(subject, setting)
        shape = Shape("no-reads", 2, 3, memory.size, 2, 4, 4, setting.top_k)
        with no_reads.forbidden() as found:
            state = _start(found, memory, shape)
            for chunk in seeded(shape, np.random.default_rng(5), steps=3).chunks:
                try:
                    state, output = _step(found, subject, setting, memory)(
                        state, from_numpy(found, _arrays(chunk))
                    )
                except no_reads.ValueReadError as error:
                    pytest.fail(
                        f"{subject.policy!r} in {setting!r}: {error} Law: a policy reads no "
                        "value; choose with xp.where instead of if."
                    )
        assert np.all(np.isfinite(no_reads.reveal(output))), f"{subject.policy!r}: {setting!r}"


@pytest.mark.attendre_profile("transforms")
@pytest.mark.parametrize("subject", COMPILED, ids=[one.name for one in COMPILED])
@pytest.mark.parametrize("setting", [PLAIN, PER_HEAD], ids=["whole", "per-head"])
def test_compiled_equals_eager(backend: Any, subject: Subject, setting: Setting) -> None:
    """A compiled step keeps what an eager step keeps, with the same scores.

    Specification, law-same-choices.
    """
    memory = _memory(subject, setting)
    shape = Shape("compiled", 2, 3, memory.size, 2, 4, 4, setting.top_k)
    eager = _step(backend, subject, setting, memory)
    compiled = backend.compile(with_own_code(eager))
    one = two = _start(backend, memory, shape)
    for number, chunk in enumerate(seeded(shape, np.random.default_rng(6), steps=3).chunks):
        arrays = from_numpy(backend, _arrays(chunk))
        one, output = eager(one, arrays)
        two, output2 = compiled(two, arrays)
        got, want = to_numpy(backend, two), to_numpy(backend, one)
        where = f"{subject.policy!r} in {setting!r}, step {number}, compiled against eager"
        comparing.assert_same(got.position, want.position, f"{where}: positions")
        comparing.assert_close(
            np.where(want.valid, got.score, 0), np.where(want.valid, want.score, 0), where
        )
        comparing.assert_close(
            to_numpy(backend, output2), to_numpy(backend, output), f"{where}: output"
        )


def _memory(subject: Subject, setting: Setting) -> Any:
    size = 5 + subject.policy.sinks
    return at.KeyValueMemory(size, subject.policy, **dict(setting.options))


def _start(backend: Any, memory: Any, shape: Shape) -> Any:
    sizes = {"batch": shape.batch, "heads": shape.heads, "kv_heads": shape.kv_heads}
    return memory.init(**sizes, head_dim=shape.head_dim, xp=backend.xp, chunk=shape.seq)


def _arrays(chunk: Any) -> tuple[Any, ...]:
    entry = (chunk.key, chunk.value, chunk.position, chunk.valid)
    return entry, (chunk.query, chunk.query_position, chunk.query_valid)


def _step(backend: Any, subject: Subject, setting: Setting, memory: Any) -> Any:
    params = from_numpy(backend, subject.params)

    def step(state: Any, chunk: Any) -> Any:
        entry, query = chunk
        state, _ = memory.insert(state, *entry, policy_params=params)
        return memory.attend(
            state, *query, top_k=setting.top_k, causal=setting.causal, policy_params=params
        )

    return step
