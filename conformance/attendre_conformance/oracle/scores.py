"""How attention becomes a score, policy by policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from attendre_conformance.oracle.entries import Entry, Heads, added, exact
from attendre_conformance.oracle.keys import KeyScores
from attendre_conformance.oracle.published import OBSERVE
from attendre_conformance.oracle.rules import MemoryRule


@dataclass
class ScoredEntries:
    """The entries of one memory, and the scores that attention gives them.

    Parameters
    ----------
    rule : MemoryRule
        What to do.
    exact_logits : bool
        Whether the logits of the stream are free of rounding in float32 (small dyadic numbers).
    """

    rule: MemoryRule
    exact_logits: bool = True
    entries: list[Entry] = field(default_factory=list)
    latest_query: int | None = None
    query_before: int | None = None
    steps: int = 0
    clock: int = 0
    own: KeyScores = field(init=False)

    def __post_init__(self) -> None:
        self.own = KeyScores(self.rule.policy)

    def observe(
        self,
        logits: list[list[dict[int, float]]],
        selected: list[list[list[Entry]]],
        position: Sequence[int],
        valid: Sequence[bool],
        query: Sequence[Heads],
    ) -> None:
        """Update the scores from the logits of one step."""
        policy = self.rule.policy
        real = [i for i in range(len(valid)) if valid[i]]
        if not real:
            return
        before = self.query_before = self.latest_query
        newest = max(int(position[i]) for i in real)
        latest = newest if before is None else max(before, newest)
        self.latest_query = latest
        if policy.kind in OBSERVE:
            OBSERVE[policy.kind](self, logits, real)
            return
        seen = {arrival for i in real for row in logits[i] for arrival in row}
        scores = [[self.transformed(row) for row in rows] for rows in logits]
        asked, rows = [query[i] for i in real], [logits[i] for i in real]
        self.own.observe(self.entries, seen, asked, rows, self.clock, self.steps)
        for entry in self.entries:
            if policy.hold and entry.position > latest:
                continue
            if policy.kind == "lru":
                users = [i for i in real if any(entry in chosen for chosen in selected[i])]
                if users:
                    entry.score = float(max(int(position[i]) for i in users))
                    entry.origin = exact(entry.score)
            elif policy.kind == "lfu":
                users = [i for i in real if any(entry in chosen for chosen in selected[i])]
                entry.score += len(users)
                entry.origin = added(entry.origin, float(len(users)))
            elif policy.kind == "lra":
                self.observe_recent(entry, scores, real)
            elif policy.kind in ("lfa", "Nexus") and entry.arrival in seen:
                self.observe_frequent(entry, scores, real, position, before, latest)

    def transformed(self, row: dict[int, float]) -> dict[int, float]:
        """Scores of one query and head, from its logits over all entries it may attend to."""
        kind, *numbers = self.rule.policy.score
        if not row or kind == "logits":
            return row
        if kind == "softmax":
            top = max(row.values())
            total = math.fsum(math.exp(x - top) for x in row.values())
            return {arrival: math.exp(x - top) / total for arrival, x in row.items()}
        if kind == "clip":
            low, high = numbers
            return {arrival: min(max(x, low), high) for arrival, x in row.items()}
        by = -min(row.values()) if numbers[0] == "min" else numbers[0]
        return {arrival: x + by for arrival, x in row.items()}

    def observe_recent(
        self, entry: Entry, scores: list[list[dict[int, float]]], real: list[int]
    ) -> None:
        """LRA: the score is replaced by the pooled attention of this step."""
        policy = self.rule.policy
        queries = real[-1:] if policy.pool == "last" else self.asking(real)
        per_head = []
        count = 0
        for h in range(len(scores[0])):
            given = [scores[i][h][entry.arrival] for i in queries if entry.arrival in scores[i][h]]
            if not given:
                return  # nobody saw it: it keeps its score
            count = len(given)
            if policy.pool == "max":
                per_head.append(max(given))
            elif policy.pool == "mean":
                per_head.append(math.fsum(given) / count)
            else:
                per_head.append(math.fsum(given))
        entry.score = self.over_heads(per_head)
        entry.observed = True
        divided = [count] if policy.pool == "mean" else []
        if self.is_exact(divided, len(per_head)):
            entry.origin = exact(entry.score)
        else:
            entry.origin = ("observed", entry.arrival, self.steps)

    def observe_frequent(
        self,
        entry: Entry,
        scores: list[list[dict[int, float]]],
        real: list[int],
        position: Sequence[int],
        before: int | None,
        latest: int,
    ) -> None:
        """LFA: the score decays, and the attention of this step is added."""
        policy = self.rule.policy
        per_head = []
        for h in range(len(scores[0])):
            per_head.append(
                math.fsum(
                    scores[i][h][entry.arrival] * math.exp(policy.decay * (position[i] - latest))
                    for i in self.asking(real)
                    if entry.arrival in scores[i][h]
                )
            )
        gain = self.over_heads(per_head)
        past = 1.0 if before is None else math.exp(policy.decay * (before - latest))
        if policy.start == "replace" and not entry.observed:
            entry.score, entry.origin = 0.0, exact(0.0)
        entry.observed = True
        entry.score = entry.score * past + gain
        if policy.decay == 0.0 and self.is_exact([], len(per_head)):
            entry.origin = added(entry.origin, gain)
        else:
            entry.origin = ("observed", entry.arrival, self.steps)

    def asking(self, real: list[int]) -> list[int]:
        """Return the queries of a step that score, of all real ones."""
        window = self.rule.policy.window
        return real if window is None else real[max(0, len(real) - window) :]

    def over_heads(self, per_head: list[float]) -> float:
        """Pool one score per head into one score."""
        how = self.rule.policy.heads
        if how == "max":
            return max(per_head)
        total = math.fsum(per_head)
        return total / len(per_head) if how == "mean" else total

    def is_exact(self, divisors: list[int], heads: int) -> bool:
        """Whether scores come without rounding: exact logits, and divisions by powers of two."""
        if not self.exact_logits or self.rule.policy.score[0] == "softmax":
            return False
        if self.rule.policy.heads == "mean":
            divisors = [*divisors, heads]
        return all(n & (n - 1) == 0 for n in divisors)
