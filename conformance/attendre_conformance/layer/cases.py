"""The layers under test, each beside the rule by which the oracle plays the same game."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance.layer.texts import STREAM, Sizes, Text, texts
from attendre_conformance.memory.cases import policy_rule
from attendre_conformance.oracle.layer import LayerRule
from attendre_conformance.oracle.rules import MemoryRule
from attendre_conformance.positions.cases import scheme_rule
from attendre_conformance.running import few


def layer_rule(layer: Any) -> LayerRule:
    """Say in the oracle's words what a layer does, from its fields alone."""
    kv, queue = layer.kv_memory, layer.q_memory
    return LayerRule(
        memory=MemoryRule(
            size=kv.size,
            policy=policy_rule(kv.policy),
            present=kv.present,
            per_head=kv.per_head,
            protect_recent=kv.protect_recent,
            pin=kv.pin,
            scale=kv.scale,
        ),
        queue=None if queue is None else MemoryRule(queue.size, policy_rule(queue.policy)),
        scheme=scheme_rule(layer.encoding),
        top_k=layer.top_k,
        causal=layer.causal,
    )


def scored_queue(size: int) -> Any:
    """Return a Q memory that lets the query with the lowest score go first."""
    return at.DataOnlyMemory(size, at.LFA(initial=at.ConstantScore(0.0)))


#: Small memories that evict: every policy, N below, above, equal to and no multiple of S = 3.
LAYERS: dict[str, Any] = {
    "lfa-top-k-t5": at.AttendreLayer(
        at.KeyValueMemory(6, at.LFA(0.0)), at.DataOnlyMemory(4), top_k=3, encoding=at.T5Bias(8, 16)
    ),
    "visible-lra-alibi": at.AttendreLayer(
        at.KeyValueMemory(5, at.LRA("sum"), present="visible"),
        at.DataOnlyMemory(3),
        encoding=at.ALiBi(),
    ),
    "sink-lm-infinite": at.AttendreLayer(
        at.KeyValueMemory(5, at.AttentionSink(2)), at.DataOnlyMemory(1), encoding=at.LMInfinite(3)
    ),
    "lru-causal": at.AttendreLayer(at.KeyValueMemory(5, at.LRU()), top_k=2, causal=True),
    "fifo": at.AttendreLayer(at.KeyValueMemory(5), at.DataOnlyMemory(2)),
    "lfu-recent-pin": at.AttendreLayer(
        at.KeyValueMemory(6, at.LFU(), protect_recent=2, pin=((0, 2),)),
        at.DataOnlyMemory(3),
        top_k=2,
    ),
    "per-head-lra-in-cache": at.AttendreLayer(
        at.KeyValueMemory(8, at.LRA("max"), per_head=True),
        at.DataOnlyMemory(7),
        encoding=at.InCache(),
    ),
    "per-head-lfa-in-cache-t5": at.AttendreLayer(
        at.KeyValueMemory(5, at.LFA(0.0), per_head=True),
        at.DataOnlyMemory(3),
        top_k=3,
        encoding=at.InCache(at.T5Bias(8, 16)),
    ),
    "lfa-decay-rope": at.AttendreLayer(
        at.KeyValueMemory(6, at.LFA(0.0625, hold=True)), at.DataOnlyMemory(5), encoding=at.RoPE()
    ),
    "lfa-lm-infinite": at.AttendreLayer(
        at.KeyValueMemory(6, at.LFA(0.0625)),
        at.DataOnlyMemory(2),
        top_k=3,
        encoding=at.LMInfinite(2),
    ),
    "visible-lra-transformer-xl": at.AttendreLayer(
        at.KeyValueMemory(5, at.LRA("max", score="softmax"), present="visible"),
        causal=True,
        encoding=at.TransformerXLPositions(4),
    ),
    "lra-scored-queue": at.AttendreLayer(
        at.KeyValueMemory(6, at.LRA("last")), scored_queue(4), top_k=4
    ),
}


#: The same, by what decides; the first of each represents all where code is compiled.
FAMILIES = {
    "lfa": ("lfa-top-k-t5", "lfa-lm-infinite", "lfa-decay-rope", "per-head-lfa-in-cache-t5"),
    "lra": (
        "visible-lra-alibi",
        "per-head-lra-in-cache",
        "visible-lra-transformer-xl",
        "lra-scored-queue",
    ),
    "first-in": ("sink-lm-infinite", "fifo"),
    "used": ("lru-causal", "lfu-recent-pin"),
}


def layers_for(backend: Any, names: Sequence[str] | None = None) -> list[str]:
    """Return names of `LAYERS`: all, or the first three where each has to be compiled."""
    chosen = list(LAYERS) if names is None else list(names)
    return few(backend, chosen, 3)


@st.composite
def layer_and_text(
    draw: st.DrawFn,
    /,
    names: Sequence[str],
    sizes: Sizes = STREAM,
    reshaped: bool = False,
    **options: Any,
) -> tuple[str, Any, Text]:
    """Draw one of `LAYERS` and a text for it.

    ``reshaped`` says that the law compares products of different shapes, which a library may round
    differently. Rotated keys are rounded, and where dyadic numbers tie rounding would decide, so
    layers that rotate keys then get generic numbers, which do not tie.
    """
    name = draw(st.sampled_from(list(names)), label="layer")
    if reshaped and not scheme_rule(LAYERS[name].encoding).exact:
        options["exact"] = False
    options.setdefault("scored", name == "lra-scored-queue")
    return name, LAYERS[name], draw(texts(sizes, **options), label="text")
