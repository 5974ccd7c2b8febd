"""What fused kernels are given, what they must return, and streams through memories."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import attendre_core as at
from attendre_core import ops
from attendre_core.backend import Backend, fused_kernels

SCALE = 0.25
#: How far an output may be from float64: weights are rounded to the dtype of the values.
OUTPUT = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
#: Scores are float32, whatever is stored.
SCORE = 2e-5
DTYPES = list(OUTPUT)
POOLED = list(itertools.product(("logits", "weights"), ("sum", "max", "mean")))


@dataclass(frozen=True)
class Case:
    """Shapes and options; the numbers follow from the seed."""

    batch: int = 2
    heads: int = 2
    group: int = 2
    queries: int = 20
    slots: int = 70
    dim: int = 16
    value_dim: int = 16
    dtype: str = "float32"
    causal: bool = True
    documents: bool = False
    per_head: bool = False
    rotated: bool = False
    seed: int = 0

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Every array by name; floats are exact in all dtypes."""
        rng = np.random.default_rng(self.seed)
        records = (self.batch, self.heads if self.per_head else 1, self.slots)

        def floats(*shape: int) -> np.ndarray:
            return (rng.integers(-12, 13, shape) / 8).astype(np.float32)

        made = {
            "query": floats(self.batch, self.heads, self.group, self.queries, self.dim),
            "key": floats(self.batch, self.heads, self.slots, self.dim),
            "value": floats(self.batch, self.heads, self.slots, self.value_dim),
            "weight": floats(self.batch, self.queries),
            "query_position": rng.integers(0, 60, (self.batch, self.queries)).astype(np.int32),
            "key_position": rng.integers(0, 60, records).astype(np.int32),
            "query_valid": rng.random((self.batch, self.queries)) < 0.8,
            "key_valid": rng.random(records) < 0.8,
            "query_document": rng.integers(0, 3, (self.batch, self.queries)).astype(np.int32),
            "key_document": rng.integers(0, 3, records).astype(np.int32),
        }
        made["key_position"][-1] += 50  # in the last row most queries see nothing
        return made


#: One for each thing that can go wrong alone, and shapes at the edges of blocks.
CASES = [
    Case(),
    Case(causal=False, dtype="bfloat16"),
    Case(documents=True, per_head=True, dtype="float16", dim=10, value_dim=7),
    Case(rotated=True, dtype="bfloat16", per_head=True),
    Case(queries=1, slots=1, batch=1, heads=1, group=1),
    Case(queries=1, group=4, slots=130, dim=40, documents=True, causal=False),
    Case(queries=65, slots=64, group=1, dim=64, value_dim=24),
]
MORE_CASES = [
    replace(case, dtype=dtype, causal=causal, seed=3)
    for case in [*CASES, Case(dim=128, value_dim=128), Case(dim=200, value_dim=256, slots=40)]
    for dtype in DTYPES
    for causal in (False, True)
]
ANY_CASE = st.builds(
    Case,
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    group=st.integers(1, 3),
    queries=st.integers(1, 40),
    slots=st.integers(1, 90),
    dim=st.integers(1, 40),
    value_dim=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    causal=st.booleans(),
    documents=st.booleans(),
    per_head=st.booleans(),
    rotated=st.booleans(),
    seed=st.integers(0, 1000),
)


def stretched(x: Any, at: Any) -> Any:
    """Apply positions in a way that is exact enough to compare: longer vectors further on."""
    return x * (1.0 + at / 64)[..., None]


def given(library: Backend, case: Case) -> tuple[ops.Pairs, Any, Any]:
    """Return the pairs of a case, its values and its weights, in a library."""
    xp, made = library.xp, case.arrays
    arrays = {name: library.from_numpy(array) for name, array in made.items()}
    dtype = getattr(xp, case.dtype)
    key, value = (xp.astype(arrays[name], dtype) for name in ("key", "value"))
    place = arrays["query_position"][:, None, None, :]
    turn = (stretched, place, arrays["key_position"]) if case.rotated else ()
    near = documents = None
    if case.documents:
        documents = arrays["query_document"], arrays["key_document"]
        near = documents[0][:, None, None, :, None] == documents[1][:, :, None, None, :]
    pairs = ops.Pairs(
        place, arrays["key_position"], arrays["query_valid"], arrays["key_valid"],
        arrays["key_position"], (ops.Term(arrays["query"] * SCALE, key, *turn),),
        place, arrays["key_position"], near=near, causal=case.causal, memo={}, scale=SCALE,
        documents=documents,
    )  # fmt: skip
    return pairs, value, arrays["weight"]


def expected(case: Case) -> tuple[np.ndarray, dict[tuple[str, str], np.ndarray]]:
    """Return the output and everything pooled, in float64, a query and a slot at a time."""
    made = case.arrays
    query, key, value = (made[name].astype(np.float64) for name in ("query", "key", "value"))
    output = np.zeros((*query.shape[:4], case.value_dim))
    shape = (*query.shape[:3], case.slots)
    pooled = {which: np.zeros(shape) for which in POOLED}
    for b, g, r in np.ndindex(shape[:3]):
        h = g if case.per_head else 0
        amounts: dict[str, list[list[float]]] = {
            name: [[] for _ in range(case.slots)] for name in ("logits", "weights")
        }
        for s in np.flatnonzero(made["query_valid"][b]):
            at_query = made["query_position"][b, s]
            seen = made["key_valid"][b, h].copy()
            if case.causal:
                seen &= made["key_position"][b, h] <= at_query
            if case.documents:
                seen &= made["key_document"][b, h] == made["query_document"][b, s]
            if not seen.any():
                continue
            logits = key[b, g] @ query[b, g, r, s] * SCALE
            if case.rotated:
                logits = logits * (1 + at_query / 64) * (1 + made["key_position"][b, h] / 64)
            raised = np.where(seen, np.exp(logits - logits[seen].max()), 0.0)
            weights = raised / raised.sum()
            output[b, g, r, s] = weights @ value[b, g]
            for m in np.flatnonzero(seen):
                factor = float(made["weight"][b, s])
                amounts["logits"][m].append(logits[m] * factor)
                amounts["weights"][m].append(weights[m] * factor)
        for (what, how), result in pooled.items():
            pool = {"sum": sum, "max": max, "mean": np.mean}[how]
            result[b, g, r] = [pool(column) if column else 0.0 for column in amounts[what]]
    return output, pooled


def check(library: Backend, case: Case, chosen: list[tuple[str, str]] = POOLED) -> None:
    """Compare fused kernels with float64, and a second run with the first, bit for bit."""
    output, pooled = expected(case)
    real = case.arrays["query_valid"][:, None, None, :, None]
    for number, (what, how) in enumerate(chosen):
        runs = []
        for _ in range(2 if number == 0 else 1):
            pairs, value, weight = given(library, case)
            with fused_kernels("interpreted"):
                found = ops.pool_pairs(pairs, what, how, weight, value)
                attended = ops.attend(pairs, value)
            runs.append([library.to_numpy(x) for x in (found, attended)])
            assert "logits" not in pairs.memo, "the matrix was computed"
        for one, other in zip(runs[0], runs[-1], strict=True):
            assert (one == other).all(), "two runs differ"
        found, attended = (np.asarray(x, dtype=np.float64) for x in runs[0])
        np.testing.assert_allclose(found, pooled[what, how], rtol=SCORE, atol=SCORE)
        np.testing.assert_allclose(np.where(real, attended, 0.0), output, atol=OUTPUT[case.dtype])


# ------------------------------------------------------------------ memories

POLICIES = {
    "LRA-sum softmax": at.LRA("sum", score="softmax"),
    "LRA-max softmax": at.LRA("max", score="softmax"),
    "LRA-max logits": at.LRA("max"),
    "LRA-mean softmax": at.LRA("mean", score="softmax"),
    "LFA softmax": at.LFA(score="softmax", decay=0.01),
    "LFA logits": at.LFA(decay=0.01),
    "H2O": at.H2O(),
    "TOVA": at.TOVA(),
}


def streamed(
    library: Backend, policy: at.Policy, mode: str, encoding: Any = None, documents: bool = False
) -> list[np.ndarray]:
    """Read 5 chunks into a causal memory of 24 slots; return all that was kept, and the outputs."""
    memory = at.KeyValueMemory(size=24, policy=policy)
    aux = {"document": library.from_numpy(np.zeros((2, 1), np.int32))} if documents else None
    state = memory.init(batch=2, heads=2, head_dim=16, xp=library.name, aux=aux)
    rng = np.random.default_rng(1)
    results = []
    for number in range(5):
        query, key, value = (
            library.from_numpy(rng.standard_normal((2, 12, heads, 16)).astype(np.float32))
            for heads in (4, 2, 2)
        )
        ids = library.from_numpy(np.full((2, 12), number // 2, dtype=np.int32))
        more, asked = ({"aux": {"document": ids}}, {"document": ids}) if documents else ({}, {})
        with fused_kernels(mode):
            state, _ = memory.insert(state, key, value, **more)
            state, output = memory.attend(state, query, causal=True, encoding=encoding, **asked)
        results += [library.to_numpy(x) for x in (state.position, state.valid, output)]
    return results
