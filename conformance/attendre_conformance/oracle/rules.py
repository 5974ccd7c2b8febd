"""Policies and memories in words and numbers: what the oracle is told to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PolicyRule:
    """What an eviction policy does, in words and numbers.

    Attributes
    ----------
    kind : {"fifo", "sink", "lru", "lfu", "lra", "lfa"}
        The family; or the class of a policy in `attendre_conformance.oracle.published` or
        `attendre_conformance.oracle.keys`.
    initial : tuple
        ``("sigmas", c)``, ``("constant", x)``, ``("quantile", q)`` or ``("quota", share)``.
    score : tuple
        ``("logits",)``, ``("softmax",)``, ``("clip", low, high)``, ``("shift", by)`` where ``by``
        is a number or ``"min"``.
    pool, heads : str
        How an LRA score is pooled over queries, and any score over heads.
    decay, start, hold, sinks
        As in the policies of the paper.
    window : int or None
        How many of the last real queries of a step score; None = all.
    options : tuple of pairs
        Names and values of what a policy of another paper has besides.
    """

    kind: str
    sinks: int = 0
    pool: str = "last"
    heads: str = "sum"
    decay: float = 0.0
    initial: tuple[str, float] = ("sigmas", 1.0)
    score: tuple[Any, ...] = ("logits",)
    hold: bool = False
    start: str = "sum"
    window: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str) -> Any:
        """Value of an option."""
        return dict(self.options)[name]


@dataclass(frozen=True)
class MemoryRule:
    """What a memory does, in words and numbers."""

    size: int
    policy: PolicyRule
    present: str = "compete"
    per_head: bool = False
    protect_recent: int = 0
    sinks: int = 0
    pin: tuple[tuple[int, int], ...] = ()
    scale: float | None = None
