"""The memories under test, each beside the rule by which the oracle plays the same game.

A case is a spec of the core, the oracle's description of it, and one of the few shapes. The list
covers every policy, every option and every shape at least once; it is short, because a compiling
backend compiles once per case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance.memory.streams import (
    EQUAL,
    GQA,
    LONG_CHUNK,
    MHA,
    MQA,
    SINGLE,
    Shape,
    Stream,
    streams,
)
from attendre_conformance.oracle import MemoryRule, PolicyRule


@dataclass(frozen=True)
class Case:
    """One memory in one shape.

    Attributes
    ----------
    memory : attendre_core.KeyValueMemory
        The spec under test.
    rule : MemoryRule
        The same in the oracle's words.
    """

    name: str
    shape: Shape
    memory: Any
    rule: MemoryRule
    causal: bool = False
    pinned: bool = False

    @property
    def top_k(self) -> int | None:
        """Entries per query."""
        return self.shape.top_k

    def but(self, **changes: Any) -> Case:
        """Return the same case with some options of the memory changed, on both sides."""
        both = {name: changes[name] for name in changes if name in MemoryRule.__dataclass_fields__}
        return replace(
            self,
            memory=replace(self.memory, **changes),
            rule=replace(self.rule, **both),
        )

    def __repr__(self) -> str:
        return f"Case({self.name}, {self.memory}, {self.shape}, causal={self.causal})"


def _initial(initial: Any) -> tuple[str, float]:
    if isinstance(initial, at.InitialScore):
        return ("sigmas", initial.sigmas)
    if isinstance(initial, at.ConstantScore):
        return ("constant", initial.value)
    if isinstance(initial, at.QuantileScore):
        return ("quantile", initial.quantile)
    return ("quota", initial.share)


def _score(score: Any) -> tuple[Any, ...]:
    if isinstance(score, str):
        return (score,)
    if isinstance(score, at.Clip):
        return ("clip", score.low, score.high)
    return ("shift", score.by)


def policy_rule(policy: Any) -> PolicyRule:
    """Say in the oracle's words what a policy of the core does, from its fields alone."""
    if isinstance(policy, at.AttentionSink):
        return PolicyRule("sink", sinks=policy.sinks, initial=("constant", 0.0))
    if isinstance(policy, at.FIFO):
        return PolicyRule("fifo", initial=("constant", 0.0))
    if isinstance(policy, at.Nexus):
        # Weights that are added up, the first ones in place of the mean.
        return replace(
            published_rule(policy),
            initial=("sigmas", 0.0),
            score=("softmax",),
            heads="mean",
            start="replace",
        )
    if isinstance(policy, at.LRU):
        return PolicyRule("lru", initial=_initial(policy.initial))
    if isinstance(policy, at.LFU):
        return PolicyRule("lfu", initial=_initial(policy.initial))
    if isinstance(policy, at.LRA):
        default = "max" if policy.pool == "max" else "sum"
        return PolicyRule(
            "lra",
            pool=policy.pool,
            heads=policy.heads or default,
            initial=_initial(policy.initial),
            score=_score(policy.score),
            hold=policy.hold,
            window=policy.window,
        )
    if not isinstance(policy, at.LFA):
        return published_rule(policy)
    return PolicyRule(
        "lfa",
        heads=policy.heads,
        decay=policy.decay,
        initial=_initial(policy.initial),
        score=_score(policy.score),
        hold=policy.hold,
        start=policy.start,
        window=policy.window,
    )


def published_rule(policy: Any) -> PolicyRule:
    """Say what a policy of another paper does: its name, and its fields."""
    options = {one.name: getattr(policy, one.name) for one in fields(policy)}
    initial = _initial(options.pop("initial", at.ConstantScore(0.0)))
    return PolicyRule(type(policy).__name__, initial=initial, options=tuple(options.items()))


def case(
    name: str, shape: Shape, policy: Any, causal: bool = False, pinned: bool = False, **options: Any
) -> Case:
    """Build a case from a policy and the options of the memory."""
    both = {key: options[key] for key in options if key in MemoryRule.__dataclass_fields__}
    return Case(
        name=name,
        shape=shape,
        memory=at.KeyValueMemory(size=shape.size, policy=policy, **options),
        rule=MemoryRule(size=shape.size, policy=policy_rule(policy), **both),
        causal=causal,
        pinned=pinned,
    )


#: The paper's policies and their variants, with the paper's order.
POLICIES = (
    case("fifo-single-causal", SINGLE, at.FIFO(), causal=True),
    case("sink", GQA, at.AttentionSink(sinks=2)),
    case("sink-long-chunk", LONG_CHUNK, at.AttentionSink(sinks=3)),
    case("lru", MHA, at.LRU()),
    case("lru-top-1", MQA, at.LRU(initial=at.InitialScore(0.0))),
    case("lfu-gqa", replace(GQA, top_k=2), at.LFU(initial=at.ConstantScore(1.0)), causal=True),
    case("lra-last", GQA, at.LRA("last")),
    case("lra-last-causal", MHA, at.LRA("last", initial=at.InitialScore(0.0)), causal=True),
    case("lra-max-sum-heads", GQA, at.LRA("max", heads="sum"), causal=True),
    case("lra-sum", LONG_CHUNK, at.LRA("sum")),
    case("lra-mean", EQUAL, at.LRA("mean", heads="mean", initial=at.InitialScore(-1.0))),
    case("lfa-0", MHA, at.LFA(decay=0.0)),
    case("lfa-0-max-heads", MQA, at.LFA(decay=0.0, heads="max", initial=at.ConstantScore(0.5))),
    case("lfa-decay", GQA, at.LFA(decay=0.0625)),
)

#: Score transforms, initial scores, hold and start.
VARIANTS = (
    case("lra-softmax", MHA, at.LRA("sum", score="softmax", initial=at.InitialScore(0.0))),
    case("lfa-softmax-hold", GQA, at.LFA(1e-3, at.InitialScore(-1.0), score="softmax", hold=True)),
    case("lra-clip", MHA, at.LRA("max", score=at.Clip(-0.5, 1.0))),
    case("lra-shift", MQA, at.LRA("sum", score=at.Shift(2.0), hold=True)),
    case("lfa-shift-min", MHA, at.LFA(0.0, score=at.Shift("min")), causal=True),
    case("lfa-replace", MHA, at.LFA(0.0, at.ConstantScore(3.0), start="replace", hold=True)),
    case("lfa-quantile", GQA, at.LFA(0.0, at.QuantileScore(0.25))),
    case("lra-quota", LONG_CHUNK, at.LRA("last", at.QuotaScore(0.5))),
    case("lra-window", LONG_CHUNK, at.LRA("mean", score="softmax", window=3), causal=True),
    case("lfa-window", GQA, at.LFA(0.0625, at.InitialScore(0.0), window=2)),
)

#: Options of the memory itself.
OPTIONS = (
    case("visible-lra", MHA, at.LRA("sum"), present="visible"),
    case("visible-lfa", GQA, at.LFA(0.0, at.InitialScore(0.0)), present="visible", causal=True),
    case("visible-sink", LONG_CHUNK, at.AttentionSink(sinks=1), present="visible"),
    case("per-head-lra", GQA, at.LRA("sum"), per_head=True),
    case("per-head-lru", replace(GQA, top_k=2), at.LRU(), per_head=True, causal=True),
    case("pinned-lfa", MHA, at.LFA(0.0), pin=((2, 3), (9, 10)), pinned=True, scale=2.0),
    case("recent-lra", GQA, at.LRA("max"), protect_recent=3, pinned=True),
    case("recent-visible", MHA, at.LFU(), protect_recent=2, present="visible"),
)

VISIBLE: dict[str, Any] = {"present": "visible", "causal": True}
#: Policies that read weights and values, in both orders, with the options they are used with.
WEIGHED = (
    case("value-norm", GQA, at.ValueNorm(), causal=True),
    case("value-norm-visible", MHA, at.ValueNorm(), **VISIBLE, sinks=1, per_head=True),
    case("h2o-vlen", GQA, at.H2O(value_norm=True), **VISIBLE, protect_recent=2, per_head=True),
    case("h2o-vlen-shared", MHA, at.H2O(value_norm=True), **VISIBLE),
    case("snapkv", GQA, at.SnapKV(window=2, kernel=3), causal=True),
    case("snapkv-visible", LONG_CHUNK, at.SnapKV(window=3), **VISIBLE, sinks=1),
    case("snapkv-heads", GQA, at.SnapKV(None, 3), **VISIBLE, per_head=True, protect_recent=1),
    case("defensive", GQA, at.Defensive(window=2), causal=True),
    case("defensive-visible", GQA, at.Defensive(3, value_norm=True), **VISIBLE, sinks=1),
    case("defensive-heads", MHA, at.Defensive(None), **VISIBLE, per_head=True, protect_recent=1),
    case("salience", GQA, at.Salience(), causal=True),
    case("salience-visible", MHA, at.Salience(0.1, 1.0, 2.0), **VISIBLE, sinks=1),
    case("salience-heads", GQA, at.Salience(0.02), **VISIBLE, per_head=True, protect_recent=1),
    case("dropkv", GQA, at.DropKV(window=2), causal=True),
    case("dropkv-visible", MHA, at.DropKV(), **VISIBLE, sinks=1, protect_recent=1),
    case("dropkv-heads", GQA, at.DropKV(window=3), **VISIBLE, per_head=True),
)
#: Published policies that read keys, values or queries, in both orders.
KEYS = (
    case("knorm", GQA, at.Knorm()),
    case("knorm-visible-per-head", MHA, at.Knorm(), present="visible", per_head=True),
    case("trams", LONG_CHUNK, at.TRAMS(), sinks=1),
    case("trams-visible", MHA, at.TRAMS(), present="visible", protect_recent=2),
    case("keydiff", MHA, at.KeyDiff(), sinks=1, causal=True),
    case("keydiff-visible-per-head", GQA, at.KeyDiff(), present="visible", per_head=True),
    case("leverage", GQA, at.Leverage(), protect_recent=2),
    case("leverage-visible-per-head", MHA, at.Leverage(0.5), present="visible", per_head=True),
    case("lagkv", LONG_CHUNK, at.LagKV(lag=2)),
    case("lagkv-visible", MHA, at.LagKV(lag=2), present="visible", sinks=1, causal=True),
    case("lagkv-visible-per-head", GQA, at.LagKV(lag=4), present="visible", per_head=True),
    case("expected", MHA, at.ExpectedAttention(), protect_recent=1),
    case("expected-visible", GQA, at.ExpectedAttention(), present="visible", sinks=1),
    case("expected-per-head", GQA, at.ExpectedAttention(), per_head=True, causal=True),
    case("r-kv", GQA, at.RKV(window=2, kernel=3, share=0.7), protect_recent=1),
    case("r-kv-visible", MHA, at.RKV(window=None, share=0.9), present="visible", causal=True),
    case("r-kv-per-head", GQA, at.RKV(window=1, kernel=1), per_head=True, sinks=1),
    case("nexus", MHA, at.Nexus()),
    case("nexus-visible", GQA, at.Nexus(seed=7), present="visible", causal=True),
    case("nexus-per-head", GQA, at.Nexus(seed=2), per_head=True, sinks=1),
)

CASES = POLICIES + VARIANTS + OPTIONS + WEIGHED + KEYS
EVERY = {one.name: one for one in CASES}

#: One of each kind, for laws that hold for all: a compiling backend compiles these once.
CORE = tuple(
    EVERY[name]
    for name in (
        "sink",
        "lru",
        "lfu-gqa",
        "lra-last",
        "lra-max-sum-heads",
        "lra-sum",
        "lfa-0",
        "lfa-decay",
        "lfa-softmax-hold",
        "visible-lra",
        "per-head-lra",
        "pinned-lfa",
    )
)
#: Even fewer, for laws that need functions or shapes of their own.
FEW = tuple(
    EVERY[name] for name in ("sink", "lru", "lfa-decay", "lra-sum", "visible-lra", "per-head-lra")
)


@st.composite
def case_and_stream(
    draw: st.DrawFn, /, cases: Sequence[Case], exact: bool = True, **options: Any
) -> tuple[Case, Stream]:
    """Draw one of the cases and a stream of its shape; options as in `streams`."""
    case = draw(st.sampled_from(cases), label="case")
    options.setdefault("max_steps", 6 if case.shape.seq == 1 else 4)
    options.setdefault("with_pinned", case.pinned)
    return case, draw(streams(case.shape, exact=exact, **options), label="stream")
