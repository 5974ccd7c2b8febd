"""The tiers under test, each beside the rule by which the oracle plays the same game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance.memory.cases import policy_rule
from attendre_conformance.memory.running import Runner
from attendre_conformance.memory.streams import (
    EQUAL,
    GQA,
    LONG_CHUNK,
    MHA,
    Shape,
    Stream,
    streams,
)
from attendre_conformance.oracle import MemoryRule, PolicyRule
from attendre_conformance.oracle.tiers import OracleTiers, TierRule, TiersRule
from attendre_conformance.running import from_numpy

_NAMES = {
    at.MeanPool: "mean",
    at.MaxPool: "max",
    at.Convolution: "conv",
    at.MostUsed: "most-used",
    at.Dilated: "dilated",
}


@dataclass(frozen=True)
class TiersCase:
    """Some tiers in one shape; ``exact`` says whether streams may be free of rounding."""

    name: str
    shape: Shape
    memory: Any
    rule: TiersRule
    top_k: int | None = None
    causal: bool = False
    exact: bool = True

    def oracle(self, stream: Stream) -> OracleTiers:
        """Return an empty oracle."""
        exact = stream.exact and not self.memory.compresses
        weights = [None if x is None else x for x in parameters(self)[0]]
        return OracleTiers(self.rule, stream.shape.batch, stream.shape.kv_heads, weights, exact)

    def runner(self, backend: Any, compiled: bool | None = None) -> TiersRunner:
        """Return a runner on a backend."""
        compress, gate = parameters(self)
        params = from_numpy(backend, (tuple(compress), gate))
        runner = TiersRunner(backend, self.memory, self.top_k, self.causal, compiled)
        runner.params = at.TiersParameters((None,) * len(self.memory.memories), *params)
        return runner


class TiersRunner(Runner):
    """A runner that passes parameters."""

    params: Any = None

    def _insert(
        self, state: Any, key: Any, value: Any, position: Any, valid: Any, more: Any
    ) -> Any:
        more = {**more, "policy_params": self.params}
        return super()._insert(state, key, value, position, valid, more)

    def _attend(self, state: Any, query: Any, position: Any, valid: Any) -> Any:
        return self.memory.attend(
            state, query, position=position, valid=valid, top_k=self.top_k, causal=self.causal,
            policy_params=self.params,
        )  # fmt: skip


def parameters(case: TiersCase) -> tuple[list[Any], Any]:
    """Return the parameters of the compressors, and those of the gate."""
    heads, dim = case.shape.kv_heads, case.shape.head_dim
    rng, compress = np.random.default_rng(5), []
    for tier in case.memory.rest:
        learned = None
        if isinstance(tier.compress, at.Convolution):
            shape = (heads, tier.compress.rate, dim, dim)
            learned = {
                name: (rng.integers(-2, 3, shape) / 4).astype(np.float32)
                for name in ("key", "value")
            }
        compress.append(learned)
    gate = None if case.rule.gate is None else np.asarray(case.rule.gate, dtype=np.float32)
    return compress, gate


def _policy(policy: Any) -> PolicyRule:
    if isinstance(policy, at.Usage):
        return PolicyRule(
            "lfa", initial=("constant", 0.0), score=("softmax",), options=(("watches", True),)
        )
    return policy_rule(policy)


def _memory(memory: Any) -> MemoryRule:
    return MemoryRule(
        size=memory.size, policy=_policy(memory.policy), present=memory.present,
        per_head=memory.per_head, protect_recent=memory.protect_recent, sinks=memory.sinks,
        pin=memory.pin, scale=memory.scale,
    )  # fmt: skip


def _tier(tier: Any) -> TierRule:
    rule, compress = _memory(tier.memory), tier.compress
    if isinstance(compress, at.Merge):
        return TierRule(rule, "merge", top_k=tier.top_k, by=tier.by)
    if compress is None:
        return TierRule(rule, top_k=tier.top_k, by=tier.by)
    name = _NAMES[type(compress)]
    return TierRule(rule, name, compress.rate, compress.dilation, tier.top_k, tier.by)


def case(name: str, shape: Shape, *tiers: Any, read: Any = "softmax", **options: Any) -> TiersCase:
    """Build a case from the first memory and the tiers behind it."""
    memory = at.Tiers(*tiers, read=read)
    gate = None
    if isinstance(read, at.Gate):
        gate = tuple((h - 1) / 2 for h in range(shape.heads))
    rule = TiersRule(_memory(memory.first), tuple(_tier(tier) for tier in memory.rest), gate)
    return TiersCase(name, shape, memory, rule, **options)


KV, T = at.KeyValueMemory, at.Tier
FIFO_PAIR = case("fifo-fifo", MHA, KV(3), T(KV(4)), causal=True)
SOFT = at.LRA("sum", score="softmax", initial=at.InitialScore(0.0))

PLAIN = (
    FIFO_PAIR,
    case("three", GQA, KV(3, at.LRA("sum")), T(KV(2, at.LFA(0.0))), T(KV(3, at.LRU()))),
    case("top-k", GQA, KV(4, at.LRU()), T(KV(4, at.LFU())), top_k=3),
    case("tier-top-k", MHA, KV(3), T(KV(5, at.LFU()), top_k=2), causal=True),
    case("softmax-scores", GQA, KV(3, SOFT), T(KV(4, SOFT))),
    case("visible", MHA, KV(3, at.LRA("sum"), present="visible"), T(KV(4, at.LFA(0.0)))),
    case("long-chunk", LONG_CHUNK, KV(2, at.LRA("last")), T(KV(3))),
    case(
        "per-head", GQA, KV(3, at.LRA("sum"), per_head=True), T(KV(3, at.LRU(), per_head=True)),
        causal=True,
    ),
    case("pinned", MHA, KV(3, at.LFA(0.0)), T(KV(4, at.LRU(), pin=((2, 4),), sinks=1))),
    case("tier-chunks", GQA, KV(3), T(KV(7, at.LFU()), top_k=2, by=2), causal=True),
)  # fmt: skip
GATED = (
    case("gate", GQA, KV(3), T(KV(5, at.LRU()), top_k=2), read=at.Gate(), causal=True),
    case("gate-three", MHA, KV(3, SOFT), T(KV(2, SOFT)), T(KV(3)), read=at.Gate()),
)
POOLED = (
    case("mean", MHA, KV(3), T(KV(4), at.MeanPool(2)), causal=True),
    case(
        "mean-visible", GQA, KV(3, at.LRA("sum"), present="visible"),
        T(KV(2, at.LFU()), at.MeanPool(3)),
    ),
    case("max-dilated", EQUAL, KV(2), T(KV(2), at.MaxPool(2)), T(KV(2), at.Dilated(2))),
    case("conv", MHA, KV(2), T(KV(3), at.Convolution(2, dilation=2)), causal=True),
    case("most-used", GQA, KV(4, at.Usage()), T(KV(3), at.MostUsed(2))),
    case(
        "mean-per-head", GQA, KV(3, at.LRA("sum"), per_head=True),
        T(KV(3, at.LRA("max"), per_head=True), at.MeanPool(2)),
    ),
    case("gate-mean", MHA, KV(3), T(KV(3), at.MeanPool(2)), read=at.Gate()),
)  # fmt: skip
MERGED = (
    case("merge", MHA, KV(3), T(KV(2), at.Merge()), exact=False),
    case(
        "merge-per-head", GQA, KV(3, at.LRA("sum"), per_head=True),
        T(KV(3, per_head=True), at.Merge()), exact=False,
    ),
)  # fmt: skip
FAMILIES = {"plain": PLAIN, "gated": GATED, "pooled": POOLED, "merged": MERGED}
EVERY = (*PLAIN, *GATED, *POOLED, *MERGED)


@st.composite
def case_and_stream(
    draw: st.DrawFn, /, cases: Sequence[TiersCase], **options: Any
) -> tuple[TiersCase, Stream]:
    """Draw one of the cases and a stream of its shape; options as in `streams`."""
    chosen = draw(st.sampled_from(cases), label="case")
    options.setdefault("max_steps", 5)
    return chosen, draw(streams(chosen.shape, exact=chosen.exact, **options), label="stream")


def longer(case: TiersCase, **changes: Any) -> TiersCase:
    """Return the same tiers in another shape."""
    return replace(case, shape=replace(case.shape, **changes))
