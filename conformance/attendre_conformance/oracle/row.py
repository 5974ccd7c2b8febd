"""The memory of one row: insertion, eviction, attention."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from attendre_conformance.oracle.entries import Attended, Entry, Heads, Vector, exact
from attendre_conformance.oracle.keys import reservoir
from attendre_conformance.oracle.published import ENTER
from attendre_conformance.oracle.scores import ScoredEntries

SNAP_RANGE = 2.0**-18
SNAP_SIZE = 2.0**-21


@dataclass
class RowMemory(ScoredEntries):
    """The memory of one row of the batch (and, with per-head eviction, of one head)."""

    gap: float = math.inf
    evictions: int = 0
    refusals: int = 0
    offered_from: int = 0

    # -- insertion ------------------------------------------------------------------------------

    def insert(
        self,
        key: Sequence[Any],
        value: Sequence[Any],
        position: Sequence[int],
        valid: Sequence[bool],
        pinned: Sequence[bool] | None = None,
        score: Sequence[float] | None = None,
    ) -> list[Entry]:
        """Insert a chunk and return the evicted entries, the lowest ranked first."""
        self.steps += 1
        real = [s for s in range(len(valid)) if valid[s]]
        if not real:
            return []  # padding alone changes nothing
        evicted: list[Entry] = []
        if self.rule.present == "visible":
            evicted = self.cut()  # the previous chunk competes now, before the new one is seen
        start, origin = self.initial_score(len(real))
        new = []
        for count, s in enumerate(real):
            place = int(position[s])
            new.append(
                Entry(
                    arrival=self.clock + count,
                    position=place,
                    key=key[s],
                    value=value[s],
                    score=start if score is None else float(score[s]),
                    origin=origin if score is None else exact(float(score[s])),
                    pinned=bool(pinned is not None and pinned[s])
                    or any(low <= place < high for low, high in self.rule.pin),
                )
            )
        if score is None and self.rule.policy.kind in ENTER:
            ENTER[self.rule.policy.kind](self, new)
        if score is None:
            self.own.enter(self.entries, new, self.steps)
        self.offered_from = self.clock
        self.clock += len(real)
        self.entries = self.entries + new
        if self.rule.present == "compete":
            evicted = self.cut()
        return evicted

    def cut(self) -> list[Entry]:
        """Keep the best M entries and return the others, the lowest ranked first."""
        ranked = sorted(self.entries, key=self.rank)
        surplus = max(0, len(ranked) - self.rule.size)
        evicted, kept = ranked[:surplus], ranked[surplus:]
        scale = max([1.0] + [abs(entry.score) for entry in ranked])
        for loser in evicted:
            for winner in kept:
                if self.tier(loser) != self.tier(winner):
                    continue
                (low, low_origin), (high, high_origin) = self.priority(loser), self.priority(winner)
                if low_origin != high_origin:
                    self.gap = min(self.gap, abs(high - low) / scale)
        self.evictions += len(evicted)
        self.refusals += sum(entry.arrival >= self.offered_from for entry in evicted)
        self.entries = sorted(kept, key=lambda entry: entry.arrival)
        return evicted

    def rank(self, entry: Entry) -> tuple[int, float, int]:
        """Order of eviction: the smallest goes first."""
        return (self.tier(entry), self.priority(entry)[0], entry.arrival)

    def tier(self, entry: Entry) -> int:
        """2 for pinned entries and sinks, 1 for the protected recent window, 0 for the rest."""
        if entry.pinned or entry.arrival < max(self.rule.sinks, self.rule.policy.sinks):
            return 2
        if entry.arrival >= self.clock - self.rule.protect_recent:
            return 1
        return 0

    def priority(self, entry: Entry) -> tuple[float, Hashable]:
        """Score that decides, with its origin. FIFO and sinks go by arrival alone."""
        if self.rule.policy.kind in ("fifo", "sink"):
            return 0.0, exact(0.0)
        if self.rule.policy.kind == "Nexus":
            number = reservoir(entry.score, entry.arrival, self.rule.policy.option("seed"))
            return number, ("sampled", entry.arrival)
        return entry.score, entry.origin

    def initial_score(self, offered: int) -> tuple[float, Hashable]:
        """Score with which the new entries enter, and its origin."""
        kind, number = self.rule.policy.initial
        if kind == "constant":
            return number, exact(number)
        # Sinks hold the score 0 like all entries of their policy: leaving them out changes nothing.
        stored = sorted(
            (entry for entry in self.entries if not entry.pinned), key=lambda entry: entry.score
        )
        if not stored:
            return 0.0, exact(0.0)
        n = len(stored)
        if kind == "quantile":
            chosen = stored[max(1, math.ceil(number * n)) - 1]
            return chosen.score, chosen.origin
        if kind == "quota":
            chosen = stored[min(n, max(1, math.ceil(number * offered))) - 1]
            return chosen.score, chosen.origin
        scores = [entry.score for entry in stored]
        mean = math.fsum(scores) / n
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in scores) / n)
        start = mean - number * deviation
        tolerance = SNAP_RANGE * (max(scores) - min(scores)) + SNAP_SIZE * max(map(abs, scores))
        for x in scores:
            if tolerance / 4 < abs(x - start) < tolerance * 4:
                self.gap = 0.0  # rounding decides whether this one snaps
        for entry in stored:  # from the lowest on
            if abs(entry.score - start) <= tolerance:
                return entry.score, entry.origin
        return start, ("initial", self.steps)

    # -- attention ------------------------------------------------------------------------------

    def attend(
        self,
        query: Sequence[Heads],
        position: Sequence[int],
        valid: Sequence[bool],
        top_k: int | None = None,
        causal: bool = False,
    ) -> Attended:
        """Let a chunk of queries attend to the best ``top_k`` entries, and update the scores."""
        self.steps += 1
        count, heads = len(query), len(query[0])
        value_dim = len(self.entries[0].value[0]) if self.entries else 0
        logits: list[list[dict[int, float]]] = []  # [query][head][arrival] of the allowed pairs
        result = Attended([], [], [])
        for i in range(count):
            logits.append([])
            result.output.append([])
            result.selected.append([])
            result.similarity.append([])
            for h in range(heads):
                row = {}
                for entry in self.entries:
                    if valid[i] and (not causal or entry.position <= position[i]):
                        row[entry.arrival] = self.logit(query[i][h], entry, h, heads)
                logits[i].append(row)
                chosen = self.best(row, top_k)
                result.selected[i].append(chosen)
                result.similarity[i].append([row[entry.arrival] for entry in chosen])
                result.output[i].append(self.weighted(row, chosen, h, heads, value_dim))
        self.observe(logits, result.selected, position, valid, query)
        return result

    def logit(self, query: Vector, entry: Entry, head: int, heads: int) -> float:
        """Scaled product of a query and the key of its K/V head."""
        key = entry.key[head // (heads // len(entry.key))]
        scale = 1.0 / math.sqrt(len(key)) if self.rule.scale is None else self.rule.scale
        return scale * math.fsum(a * b for a, b in zip(query, key, strict=True))

    def best(self, row: dict[int, float], top_k: int | None) -> list[Entry]:
        """Entries with the highest logits, best first; of equal ones the later arrival."""
        order = sorted(self.entries, key=lambda e: (row.get(e.arrival, 0.0), e.arrival))
        order = [entry for entry in reversed(order) if entry.arrival in row]
        if top_k is None:
            return order
        if not self.exact_logits and len(order) > top_k:
            last, following = row[order[top_k - 1].arrival], row[order[top_k].arrival]
            self.gap = min(self.gap, (last - following) / max(1.0, abs(last)))
        return order[:top_k]

    def weighted(
        self, row: dict[int, float], chosen: list[Entry], head: int, heads: int, value_dim: int
    ) -> Vector:
        """Softmax attention over the chosen entries; zeros if there are none."""
        output = [0.0] * value_dim
        if not chosen:
            return output
        top = max(row[entry.arrival] for entry in chosen)
        total = math.fsum(math.exp(row[entry.arrival] - top) for entry in chosen)
        for entry in chosen:
            weight = math.exp(row[entry.arrival] - top) / total
            for d, x in enumerate(entry.value[head // (heads // len(entry.value))]):
                output[d] += weight * x
        return output

    # -- figures --------------------------------------------------------------------------------

    def admitted_share(self) -> float:
        """Share of the evictions that made room for something new."""
        return 1.0 if not self.evictions else 1.0 - self.refusals / self.evictions
