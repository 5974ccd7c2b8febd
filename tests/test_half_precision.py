"""Half precision: the same entries are kept as in float32 on the same rounded inputs.

The bounds are those of docs/specification.md, "law-half-precision". Both memories start every step
from the same state, read the same numbers, and are compared after they attended and after the next
entries arrived. Where they keep different entries, rounding of float32 must explain it.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st

import attendre_core as at
from attendre_core.backend import Backend, backend

#: Unit roundoff: half the distance from 1 to the next number.
UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
UNIT_32 = 2.0**-24
POLICIES = {
    "LFA": at.LFA(),
    "LFA softmax": at.LFA(decay=0.0, score="softmax"),
    "LRA sum": at.LRA("sum", initial=at.InitialScore(1.0)),
    "LRA max": at.LRA("max"),
    "LRA last": at.LRA("last"),
    "TOVA": at.TOVA(),
    "FIFO": at.FIFO(),
}
ENCODINGS = {
    "none": None,
    "rope": at.RoPE(),
    "yarn": at.RoPE(scaling=at.YaRN(4.0, original_length=64)),
    "alibi": at.ALiBi(),
    "t5": at.T5Bias(buckets=8, max_distance=16),
    "lm-infinite": at.LMInfinite(6),
    "window": at.Window(9, at.RoPE()),
}
ROTATING = {"rope", "yarn", "lm-infinite", "window"}


class Case(NamedTuple):
    """One memory and the numbers that it reads."""

    policy: str
    encoding: str
    causal: bool = False
    size: int = 9
    chunk: int = 4
    group: int = 2
    dim: int = 8
    steps: int = 3
    seed: int = 0
    loud: float = 1.0
    ragged: bool = False


BATCH, KV_HEADS = 2, 2


def numbers_of(library: Backend, array: Any) -> np.ndarray:
    return np.asarray(library.to_numpy(array)).astype(np.float64)


def rounded(library: Backend, array: np.ndarray, dtype: str) -> tuple[Any, Any]:
    """Return numbers in half precision, and the same numbers in float32."""
    xp = library.xp
    half = xp.astype(library.from_numpy(array.astype(np.float32)), getattr(xp, dtype))
    return half, xp.astype(half, xp.float32)


def cast(library: Backend, state: Any, dtype: str) -> Any:
    """Return a state with keys and values in another dtype, which holds them exactly."""
    kind = getattr(library.xp, dtype)
    key, value = (library.xp.astype(x, kind) for x in (state.key, state.value))
    return state._replace(key=key, value=value)


@functools.cache
def programs(library: Backend, case: Case, compiled: bool) -> tuple[Any, Any]:
    """Return ``insert(state, key, value, valid)`` and ``attend(state, query, valid, table)``."""
    memory = at.KeyValueMemory(case.size, POLICIES[case.policy])
    encoding = ENCODINGS[case.encoding]

    def insert(state: Any, key: Any, value: Any, valid: Any) -> Any:
        return memory.insert(state, key, value, valid=valid)[0]

    def attend(state: Any, query: Any, valid: Any, table: Any) -> Any:
        return memory.attend(
            state, query, valid=valid, causal=case.causal, encoding=encoding,
            encoding_params=table,
        )  # fmt: skip

    if not compiled:
        return insert, attend
    return library.compile(insert), library.compile(attend)


class Bounds(NamedTuple):
    """What the specification allows one step to differ by."""

    score: float
    output: float


def bounds_of(
    library: Backend, case: Case, dtype: str, state: Any, query: Any, rounds: bool
) -> Bounds:
    """Compute the bounds from the numbers of a step, with float32 arrays in ``state``."""
    q, key, value = (numbers_of(library, x) for x in (query, state.key, state.value))
    scale, pairs = case.dim**-0.5, case.chunk * case.group * KV_HEADS
    encoding = ENCODINGS[case.encoding]
    temperature = getattr(encoding, "temperature", 1.0)
    longest = scale * temperature**2 * np.linalg.norm(q, axis=-1).max()
    size = longest * np.linalg.norm(key, axis=-1).max()
    logit = 2 * (case.dim + 16) * UNIT_32 * (size + 64.0)  # 64: biases of these tests
    score = pairs * (logit + 2 * (pairs + 1) * UNIT_32 * (size + 64.0))
    unit = UNIT[dtype]
    moved = logit + (2 * unit + unit**2) * size * (rounds and case.encoding in ROTATING)
    output = (np.expm1(2 * moved) + 2 * unit + 2.0**-16) * np.abs(value).max() + 2.0**-24
    return Bounds(4 * score if "softmax" in case.policy else score, output)


def check(library: Backend, dtype: str, case: Case, *, rounds: bool, compiled: bool) -> None:
    """Read a stream in both precisions and compare after each step."""
    rng = np.random.default_rng(case.seed)
    insert, attend = programs(library, case._replace(seed=0, loud=1.0, steps=0), compiled)
    memory = at.KeyValueMemory(case.size, POLICIES[case.policy])
    xp = library.xp
    state = memory.init(
        batch=BATCH, heads=KV_HEADS, head_dim=case.dim, xp=library.name, dtype="float32"
    )
    table = None
    if case.encoding == "t5":
        table = library.from_numpy(rng.normal(size=(8, KV_HEADS * case.group)).astype(np.float32))

    def entries(heads: int) -> tuple[Any, Any]:
        array = case.loud * rng.normal(size=(BATCH, case.chunk, heads, case.dim))
        return rounded(library, array, dtype)

    for _ in range(case.steps):
        flags = rng.random((BATCH, case.chunk)) < (0.7 if case.ragged else 2.0)
        valid = library.from_numpy(flags)
        (half_key, key), (half_value, value) = entries(KV_HEADS), entries(KV_HEADS)
        half_query, query = entries(KV_HEADS * case.group)
        before = insert(state, key, value, valid)
        half = insert(cast(library, state, dtype), half_key, half_value, valid)
        # 1. From equal scores, exactly the same entries are kept.
        for one, other in zip(
            before._replace(aux=None), cast(library, half, "float32"), strict=True
        ):
            if one is not None and other is not None:
                np.testing.assert_array_equal(*(library.to_numpy(x) for x in (one, other)))
        # 2. Scores are float32 and equal up to its rounding; outputs are rounded.
        after, want = attend(before, query, valid, table)
        half, got = attend(half, half_query, valid, table)
        bounds = bounds_of(library, case, dtype, before, query, rounds)
        assert half.score.dtype == xp.float32
        assert half.key.dtype == half.value.dtype == got.dtype == getattr(xp, dtype)
        scores, others = (numbers_of(library, x.score) for x in (after, half))
        assert np.abs(scores - others).max() <= bounds.score
        assert np.abs(numbers_of(library, got) - numbers_of(library, want)).max() <= bounds.output
        # 3. So are the entries that are kept next, unless rounding decides between two.
        (half_key, key), (half_value, value) = entries(KV_HEADS), entries(KV_HEADS)
        one = insert(after, key, value, valid)
        other = insert(half, half_key, half_value, valid)
        compare_kept(library, case, after, one, other, bounds.score)
        state = after


def compare_kept(
    library: Backend, case: Case, stored: Any, one: Any, other: Any, bound: float
) -> None:
    """Compare what two memories hold; entries of one alone must be at the boundary."""
    deviations = getattr(getattr(POLICIES[case.policy], "initial", None), "sigmas", 0.0)
    for row in range(BATCH):
        before, kept, again = (scores_of(library, x, row) for x in (stored, one, other))
        differ = set(kept) ^ set(again)
        if differ:
            event("rounding decides between two entries")
            scores = np.asarray(list(before.values()))
            snap = 2.0**-18 * np.ptp(scores) + 2.0**-21 * np.abs(scores).max()
            at_stake = [(kept | again | before)[position] for position in differ]
            allowed = (2 + 2 * deviations) * bound + 2 * snap
            assert max(at_stake) - min(at_stake) <= allowed, (at_stake, allowed)


def scores_of(library: Backend, state: Any, row: int) -> dict[float, float]:
    """Return the score of every position that a row holds."""
    position, score, valid = (
        numbers_of(library, x)[row] for x in (state.position, state.score, state.valid)
    )
    return dict(zip(position[valid > 0], score[valid > 0], strict=True))


#: Without explanations, which trace every line.
FEW = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)  # fmt: skip
CASES = st.builds(
    Case,
    policy=st.sampled_from(sorted(POLICIES)),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    causal=st.booleans(),
    size=st.integers(1, 12),
    chunk=st.integers(1, 5),
    group=st.integers(1, 3),
    dim=st.sampled_from([2, 8, 20]),
    steps=st.just(3),
    seed=st.integers(0, 2**32 - 1),
    loud=st.sampled_from([0.1, 1.0, 3.0]),
    ragged=st.booleans(),
)


@FEW
@given(case=CASES)
@example(case=Case("LRA sum", "rope", loud=3.0))
def test_numpy_keeps_the_same_entries_in_float16(case: Case) -> None:
    check(backend("numpy"), "float16", case, rounds=False, compiled=False)


@pytest.mark.parametrize("as_on_a_gpu", [False, True], ids=["widened", "as on a GPU"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_torch_keeps_the_same_entries(dtype: str, as_on_a_gpu: bool) -> None:
    pytest.importorskip("torch")
    from attendre_torch.half import half_on_cpu

    @FEW
    @given(case=CASES)
    @example(case=Case("FIFO", "rope", loud=3.0, causal=True))
    def run(case: Case) -> None:
        with half_on_cpu() if as_on_a_gpu else contextlib.nullcontext():
            check(backend("torch"), dtype, case, rounds=as_on_a_gpu, compiled=False)

    run()


#: Every program is compiled for its sizes, so only the numbers vary.
COMPILED = [
    Case("FIFO", "rope", causal=True),
    Case("LFA", "none"),
    Case("LRA sum", "rope"),
    *(
        pytest.param(Case(policy, encoding), marks=pytest.mark.thorough)
        for policy in ("LFA softmax", "LRA max", "FIFO")
        for encoding in sorted(ENCODINGS)
    ),
]


@pytest.mark.parametrize("case", COMPILED, ids=lambda case: f"{case.policy} {case.encoding}")
def test_jax_keeps_the_same_entries_in_bfloat16(case: Case) -> None:
    pytest.importorskip("jax")

    @FEW
    @given(seed=st.integers(0, 2**32 - 1), loud=st.sampled_from([0.1, 1.0, 3.0]))
    def run(seed: int, loud: float) -> None:
        mine = case._replace(seed=seed, loud=loud)
        check(backend("jax"), "bfloat16", mine, rounds=True, compiled=True)

    run()
