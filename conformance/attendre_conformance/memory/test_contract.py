"""The contract: names, shapes, dtypes, and what a backend record promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.memory.cases import CASES, CORE, EVERY, Case
from attendre_conformance.memory.running import Runner
from attendre_conformance.memory.streams import MHA, seeded
from attendre_conformance.running import from_numpy, to_numpy
from attendre_core.backend import backend_of, namespace_of

pytestmark = pytest.mark.attendre_profile("contract")

EACH_CASE = pytest.mark.parametrize("one", CORE, ids=[one.name for one in CORE])
A_FEW = [EVERY[name] for name in ("lru", "lfa-decay", "visible-lra", "per-head-lra")]
EACH_OF_A_FEW = pytest.mark.parametrize("one", A_FEW, ids=[one.name for one in A_FEW])


def one_step(backend: Any, one: Case, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Run one step: (runner, state, evicted, output)."""
    runner = Runner.of(backend, one)
    chunk = seeded(one.shape, np.random.default_rng(seed), with_pinned=one.pinned).chunks[0]
    return (runner, *runner.step(runner.init(one.shape), chunk))


@EACH_CASE
def test_shapes_and_dtypes_of_a_step(backend: Any, one: Case) -> None:
    """State, evicted entries and outputs have the shapes and dtypes the API names.

    Inserting S entries always returns S evicted slots plus valid.
    """
    runner, state, evicted, output = one_step(backend, one)
    shape = one.shape
    b, s, g, d = shape.batch, shape.seq, shape.kv_heads, shape.head_dim
    slots = shape.size + (s if one.rule.present == "visible" else 0)
    record = (b, g, slots) if one.rule.per_head else (b, slots)
    went = (b, g, s) if one.rule.per_head else (b, s)
    state, evicted, output = (runner.numpy(x) for x in (state, evicted, output))
    for name, kind in (
        ("position", np.int32),
        ("valid", np.bool_),
        ("score", np.float32),
        ("arrival", np.int32),
    ):
        array = getattr(state, name)
        assert array.shape == record, f"state.{name} has shape {array.shape}, expected {record}"
        assert array.dtype == kind, f"state.{name} has dtype {array.dtype}, expected {kind}"
    for name in ("clock", "latest_query"):
        array = getattr(state, name)
        assert array.shape == (b,), f"state.{name} has shape {array.shape}, expected {(b,)}"
        assert array.dtype == np.int32, f"state.{name} has dtype {array.dtype}, expected int32"
    entries = one.memory.entries(state)
    for name in ("key", "value"):
        for where, array, length in (
            ("entries", getattr(entries, name), slots),
            ("evicted", getattr(evicted, name), s),
        ):
            expected = (b, length, g, d)
            assert array.shape == expected, (
                f"{where}.{name} has shape {array.shape}, expected {expected}"
            )
            assert array.dtype == np.float32, f"{where}.{name} has dtype {array.dtype}"
    for name, kind in (("position", np.int32), ("valid", np.bool_)):
        array = getattr(evicted, name)
        assert array.shape == went, f"evicted.{name} has shape {array.shape}, expected {went}"
        assert array.dtype == kind, f"evicted.{name} has dtype {array.dtype}, expected {kind}"
    expected = (b, s, shape.heads, d)
    assert output.shape == expected, f"output has shape {output.shape}, expected {expected}"
    assert output.dtype == np.float32, f"output has dtype {output.dtype}, expected float32"


@EACH_OF_A_FEW
def test_shapes_of_retrieved(backend: Any, one: Case) -> None:
    """Retrieve returns (batch, queries, heads, K, ...), the similarity in the dtype of the keys."""
    runner, state, _, _ = one_step(backend, one)
    chunk = seeded(one.shape, np.random.default_rng(1)).chunks[0]
    k = 2
    runner = Runner(backend, one.memory, k, one.causal)
    _, found = runner.retrieve(state, chunk)
    found = runner.numpy(found)
    lead = (one.shape.batch, one.shape.seq, one.shape.heads, k)
    for name in ("similarity", "position", "valid", "index"):
        array = getattr(found, name)
        assert array.shape == lead, f"retrieved.{name} has shape {array.shape}, expected {lead}"
    for name in ("key", "value"):
        array, expected = getattr(found, name), (*lead, one.shape.head_dim)
        assert array.shape == expected, (
            f"retrieved.{name} has shape {array.shape}, expected {expected}"
        )
    assert found.valid.dtype == np.bool_, f"retrieved.valid has dtype {found.valid.dtype}"
    assert found.position.dtype == np.int32, f"retrieved.position is {found.position.dtype}"
    finite = np.isfinite(found.key).all() and np.isfinite(found.value).all()
    assert finite, "retrieved keys and values hold garbage where valid is False"


@EACH_OF_A_FEW
def test_state_is_a_named_tuple_of_arrays(backend: Any, one: Case) -> None:
    """A state is a NamedTuple whose leaves are arrays of the library it was made for.

    Style: state = NamedTuple of arrays.
    """
    runner = Runner.of(backend, one)
    state = runner.init(one.shape)
    kind = type(state)
    assert issubclass(kind, tuple), f"the state is a {kind.__name__}"
    assert hasattr(kind, "_fields"), f"the state {kind.__name__} is no NamedTuple"
    for name in state._fields:
        leaf = getattr(state, name)
        if leaf is not None:
            found = backend_of(leaf).name
            assert found == backend.name, f"state.{name} belongs to {found}, not {backend.name}"
    assert not runner.numpy(state.valid).any(), "a new state holds valid entries"


def test_specs_are_compared_by_value() -> None:
    """Memories and policies are frozen, hashable and equal when their values are."""
    for one in CASES:
        twin = one.but()
        assert twin.memory == one.memory, f"{one.memory} differs from its own copy"
        assert hash(twin.memory) == hash(one.memory), f"{one.memory}: hash differs from its copy's"
        with pytest.raises(AttributeError):
            one.memory.size = 3


def test_positions_count_on_by_default(backend: Any) -> None:
    """Without positions the entries of each row count on; without valid all are real."""
    memory = at.KeyValueMemory(size=5)
    runner = Runner(backend, memory)
    state = runner.init(MHA)
    rng = np.random.default_rng(0)
    for step in range(3):
        key = runner.array(rng.standard_normal((MHA.batch, 3, 2, 4)).astype(np.float32))
        state, _ = memory.insert(state, key, key)
        state, output = memory.attend(state, key)
        assert np.isfinite(runner.numpy(output)).all(), f"step {step}: output is not finite"
    for b in range(MHA.batch):
        now = runner.numpy(state)
        got = sorted(now.position[b][now.valid[b]].tolist())
        assert got == [4, 5, 6, 7, 8], f"row {b}: positions {got}, expected [4, 5, 6, 7, 8]"


def test_metadata_travels_with_the_entries(backend: Any) -> None:
    """Auxiliary arrays are stored, evicted and retrieved beside their entries."""
    memory = at.KeyValueMemory(size=5, policy=at.LFU())
    aux = {"document": np.asarray([[4, 5], [6, 7]], dtype=np.int32)}
    runner = Runner(backend, memory)
    xp = backend.xp
    state = memory.init(
        batch=2, heads=2, head_dim=4, xp=xp, dtype=xp.float32, aux=from_numpy(backend, aux)
    )
    rng = np.random.default_rng(0)
    went: list[tuple[int, int]] = []
    for step in range(3):
        key = runner.array(rng.standard_normal((2, 3, 2, 4)).astype(np.float32))
        place = np.asarray([[3 * step, 3 * step + 1, 3 * step + 2]] * 2, dtype=np.int32)
        state, out = memory.insert(
            state,
            key,
            key,
            position=runner.array(place),
            aux=from_numpy(backend, {"document": place + 100}),
        )
        out = to_numpy(backend, out)
        went += [
            (int(p), int(a))
            for p, a in zip(out.position[out.valid], out.aux["document"][out.valid], strict=True)
        ]
    entries = to_numpy(backend, memory.entries(state))
    held = zip(entries.position[entries.valid], entries.aux["document"][entries.valid], strict=True)
    for p, a in [*went, *((int(p), int(a)) for p, a in held)]:
        assert a == p + 100, f"the entry at position {p} came with metadata {a}, not {p + 100}"
    assert len(went) == 8, f"{len(went)} entries were evicted, expected 8"
    _, found = memory.retrieve(state, key, top_k=3)
    found = to_numpy(backend, found)
    wrong = found.valid & (found.aux["document"] != found.position + 100)
    assert not wrong.any(), f"retrieved metadata {found.aux} beside positions {found.position}"


def test_values_may_be_wider_than_keys(backend: Any) -> None:
    """The width of a value need not be that of a key."""
    memory = at.KeyValueMemory(size=3)
    xp = backend.xp
    state = memory.init(batch=1, heads=1, head_dim=4, xp=xp, dtype=xp.float32, value_dim=6)
    key = backend.from_numpy(np.ones((1, 2, 1, 4), dtype=np.float32))
    value = backend.from_numpy(np.full((1, 2, 1, 6), 3.0, dtype=np.float32))
    state, evicted = memory.insert(state, key, value)
    state, output = memory.attend(state, key)
    got = backend.to_numpy(output)
    assert got.shape == (1, 2, 1, 6), f"output has shape {got.shape}, expected (1, 2, 1, 6)"
    assert np.allclose(got, 3.0), f"output {got.tolist()}, expected 3.0 throughout"
    assert tuple(evicted.value.shape) == (1, 2, 1, 6), f"evicted.value is {evicted.value.shape}"


def test_double_precision(backend: Any) -> None:
    """A float64 memory computes and scores in float64."""
    if "float64" not in backend.capabilities:
        pytest.skip(f'backend {backend.name!r} does not list "float64" among its capabilities')
    memory = at.KeyValueMemory(size=3, policy=at.LRA("sum"))
    xp = backend.xp
    state = memory.init(batch=1, heads=1, head_dim=4, xp=xp, dtype=xp.float64)
    key = np.asarray([1.0, 1.0 + 2.0**-40]).repeat(4).reshape(1, 2, 1, 4)
    state, _ = memory.insert(state, *([backend.from_numpy(key)] * 2))
    state, output = memory.attend(state, backend.from_numpy(np.ones((1, 1, 1, 4))))
    assert backend.to_numpy(output).dtype == np.float64, "output of a float64 memory"
    score = backend.to_numpy(state.score)[0]
    valid = backend.to_numpy(state.valid)[0]
    low, high = sorted(score[valid].tolist())
    assert high - low == 2.0**-39, f"scores differ by {high - low!r}, expected {2.0**-39!r}"


@EACH_OF_A_FEW
def test_bytes_are_known_beforehand(backend: Any, one: Case) -> None:
    """The estimate of the bytes equals what a state takes, and a budget is kept.

    A capacity given in bytes; an estimate before anything is allocated.
    """
    runner = Runner.of(backend, one)
    shape = one.shape
    state = runner.numpy(runner.init(shape))
    taken = sum(leaf.nbytes for leaf in state if leaf is not None)
    told = one.memory.nbytes(
        batch=shape.batch, heads=shape.kv_heads, head_dim=shape.head_dim, chunk=shape.seq
    )
    assert told == taken, f"{one.memory}: nbytes says {told}, a state takes {taken}"
    for budget in (5_000, "64 KiB"):
        limit = budget if isinstance(budget, int) else 64 * 1024
        sized = at.KeyValueMemory.within_bytes(budget, batch=2, heads=2, head_dim=4)
        told = sized.nbytes(batch=2, heads=2, head_dim=4)
        more = at.KeyValueMemory(size=sized.size + 1).nbytes(batch=2, heads=2, head_dim=4)
        assert told <= limit < more, (
            f"within_bytes({budget!r}) made {sized.size} slots of {told} bytes in all; one more "
            f"would take {more}"
        )


def test_frozen_memory_warns(backend: Any) -> None:
    """A memory that refuses most newcomers says so when it is asked for a report.

    The admitted share, with a warning when it freezes.
    """
    memory = at.KeyValueMemory(size=2, policy=at.LFA(0.0, at.ConstantScore(-100.0)))
    runner = Runner(backend, memory)
    xp = backend.xp
    state = memory.init(batch=1, heads=1, head_dim=4, xp=xp, dtype=xp.float32)
    key = runner.array(np.ones((1, 2, 1, 4), dtype=np.float32))
    high = runner.array(np.asarray([[5.0, 5.0]], dtype=np.float32))
    state, _ = memory.insert(state, key, key, score=high)
    report = memory.report(state)  # nothing was evicted yet: no warning
    assert report.admitted_share == (1.0,), f"admitted share {report.admitted_share}, not 1"
    for _ in range(3):
        state, _ = memory.insert(state, key, key)
    with pytest.warns(at.FrozenMemoryWarning, match="0%"):
        report = memory.report(state)
    assert report.evicted == (6,), f"evicted {report.evicted}, expected 6"
    assert report.inserted == (8,), f"inserted {report.inserted}, expected 8"
    assert report.used == (2,), f"used {report.used}, expected 2"


@dataclass(frozen=True)
class LowestPosition(at.Policy):
    """A user's own policy: the later the position, the sooner it goes."""

    def priority(self, stored: Any) -> Any:
        """Rank by position, the lowest kept."""
        xp = namespace_of(stored.score)
        return xp.astype(-stored.position, stored.score.dtype)


def test_own_policy_is_accepted(backend: Any) -> None:
    """A user's policy is one small class, registered nowhere, accepted everywhere."""
    memory = at.KeyValueMemory(size=3, policy=LowestPosition())
    runner = Runner(backend, memory)
    state = memory.init(batch=1, heads=1, head_dim=4, xp=backend.xp, dtype=backend.xp.float32)
    for start in (10, 0, 5):
        key = runner.array(np.ones((1, 2, 1, 4), dtype=np.float32))
        place = runner.array(np.asarray([[start, start + 1]], dtype=np.int32))
        state, _ = memory.insert(state, key, key, position=place)
        state, _ = memory.attend(state, key)
    now = runner.numpy(state)
    got = sorted(now.position[now.valid].tolist())
    assert got == [0, 1, 5], f"kept {got}, the policy keeps the lowest positions [0, 1, 5]"
