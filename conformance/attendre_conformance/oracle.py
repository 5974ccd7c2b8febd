"""The paper in plain Python loops: what a memory must keep, evict, score and return.

Nothing here is shared with the code under test: no arrays, no vectors, no attendre_core. Numbers
are Python floats (float64), an entry is an object, a memory is a list of entries, a batch is a
list of memories. Clarity is worth more than speed.

The oracle also says how *close* each decision was (``gap``). Where two priorities differ by no more
than rounding, a float32 implementation may rightly decide otherwise, and a comparison has to stop
there. Exact ties are something else: they have a right answer (the older entry goes first), and
must not be skipped. The two are told apart by ``origin``: two scores with the same origin are
equal on every machine, whatever the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

Vector = list[float]
Heads = list[Vector]

SNAP_RANGE = 2.0**-18
SNAP_SIZE = 2.0**-21


@dataclass(frozen=True)
class PolicyRule:
    """What an eviction policy does, in words and numbers.

    Attributes
    ----------
    kind : {"fifo", "sink", "lru", "lfu", "lra", "lfa"}
        The family.
    initial : tuple
        ``("sigmas", c)``, ``("constant", x)``, ``("quantile", q)`` or ``("quota", share)``.
    score : tuple
        ``("logits",)``, ``("softmax",)``, ``("clip", low, high)``, ``("shift", by)`` where ``by``
        is a number or ``"min"``.
    pool, heads : str
        How an LRA score is pooled over queries, and any score over heads.
    decay, start, hold, sinks
        As in the policies of the paper.
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


@dataclass(frozen=True)
class MemoryRule:
    """What a memory does, in words and numbers."""

    size: int
    policy: PolicyRule
    present: str = "compete"
    per_head: bool = False
    protect_recent: int = 0
    pin: tuple[tuple[int, int], ...] = ()
    scale: float | None = None


@dataclass(eq=False)
class Entry:
    """One stored entry. ``key`` and ``value`` are lists of heads."""

    arrival: int
    position: int
    key: Any
    value: Any
    score: float
    origin: Hashable
    pinned: bool = False
    observed: bool = False


@dataclass
class Attended:
    """What the queries of one row got: ``[query][head]`` of each."""

    output: list[list[Vector]]
    selected: list[list[list[Entry]]]
    similarity: list[list[list[float]]]


def exact(value: float) -> Hashable:
    """Origin of a score that is computed without any rounding."""
    return ("exact", value + 0.0)


def added(origin: Any, amount: float) -> Hashable:
    """Origin of the sum of a score and an exactly known amount."""
    if amount == 0.0:
        return origin  # type: ignore[no-any-return]
    if origin[0] == "exact":
        return exact(origin[1] + amount)
    return ("plus", origin, amount)


@dataclass
class RowMemory:
    """The memory of one row of the batch (and, with per-head eviction, of one head).

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
    clock: int = 0
    latest_query: int | None = None
    gap: float = math.inf
    evictions: int = 0
    refusals: int = 0
    offered_from: int = 0
    steps: int = 0

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
        sink = self.rule.policy.kind == "sink" and entry.arrival < self.rule.policy.sinks
        if entry.pinned or sink:
            return 2
        if entry.arrival >= self.clock - self.rule.protect_recent:
            return 1
        return 0

    def priority(self, entry: Entry) -> tuple[float, Hashable]:
        """Score that decides, with its origin. FIFO and sinks go by arrival alone."""
        if self.rule.policy.kind in ("fifo", "sink"):
            return 0.0, exact(0.0)
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
        self.observe(logits, result.selected, position, valid)
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

    # -- scores ---------------------------------------------------------------------------------

    def observe(
        self,
        logits: list[list[dict[int, float]]],
        selected: list[list[list[Entry]]],
        position: Sequence[int],
        valid: Sequence[bool],
    ) -> None:
        """Update the scores from the logits of one step."""
        policy = self.rule.policy
        real = [i for i in range(len(valid)) if valid[i]]
        if not real:
            return
        before = self.latest_query
        newest = max(int(position[i]) for i in real)
        latest = newest if before is None else max(before, newest)
        self.latest_query = latest
        seen = {arrival for i in real for row in logits[i] for arrival in row}
        scores = [[self.transformed(row) for row in rows] for rows in logits]
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
            elif policy.kind == "lfa" and entry.arrival in seen:
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
        queries = real[-1:] if policy.pool == "last" else real
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
                    for i in real
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

    # -- figures --------------------------------------------------------------------------------

    def admitted_share(self) -> float:
        """Share of the evictions that made room for something new."""
        return 1.0 if not self.evictions else 1.0 - self.refusals / self.evictions


class OracleMemory:
    """A batch of memories: ``rows[b][g]``, with one ``g`` unless eviction is per head.

    Parameters
    ----------
    rule : MemoryRule
        What to do.
    batch, heads : int
        Rows, and K/V heads.
    exact_logits : bool
        Whether the logits of the stream are free of rounding in float32.
    """

    def __init__(self, rule: MemoryRule, batch: int, heads: int, exact_logits: bool = True) -> None:
        self.rule = rule
        self.batch = batch
        self.heads = heads
        self.groups = heads if rule.per_head else 1
        self.exact_logits = exact_logits
        self.rows = [
            [RowMemory(rule, exact_logits) for _ in range(self.groups)] for _ in range(batch)
        ]

    def insert(
        self, key: Any, value: Any, position: Any, valid: Any, pinned: Any = None, score: Any = None
    ) -> list[list[list[Entry]]]:
        """Insert nested lists ``(batch, seq, ...)``; returns the evicted entries ``[b][g]``."""
        evicted: list[list[list[Entry]]] = []
        for b in range(self.batch):
            evicted.append([])
            for g, memory in enumerate(self.rows[b]):
                keys, values = key[b], value[b]
                if self.rule.per_head:
                    keys = [[heads[g]] for heads in keys]
                    values = [[heads[g]] for heads in values]
                evicted[b].append(
                    memory.insert(
                        keys,
                        values,
                        position[b],
                        valid[b],
                        None if pinned is None else pinned[b],
                        None if score is None else score[b],
                    )
                )
        return evicted

    def attend(
        self, query: Any, position: Any, valid: Any, top_k: int | None = None, causal: bool = False
    ) -> list[Attended]:
        """Attend with nested lists ``(batch, seq, heads, head_dim)``; one result per row."""
        results = []
        for b in range(self.batch):
            parts = []
            share = len(query[b][0]) // self.groups
            for g, memory in enumerate(self.rows[b]):
                own = [heads[g * share : (g + 1) * share] for heads in query[b]]
                parts.append(memory.attend(own, position[b], valid[b], top_k, causal))
            joined = Attended([], [], [])
            for i in range(len(query[b])):
                joined.output.append([x for part in parts for x in part.output[i]])
                joined.selected.append([x for part in parts for x in part.selected[i]])
                joined.similarity.append([x for part in parts for x in part.similarity[i]])
            results.append(joined)
        return results

    def settle(self) -> list[list[list[Entry]]]:
        """Let the present chunk compete now."""
        return [[memory.cut() for memory in row] for row in self.rows]

    def reset(self, rows: Sequence[bool]) -> None:
        """Empty the rows that are True."""
        for b in range(self.batch):
            if rows[b]:
                self.rows[b] = [RowMemory(self.rule, self.exact_logits) for _ in range(self.groups)]

    @property
    def gap(self) -> float:
        """Closest decision so far: the smallest relative gap that rounding could bridge."""
        return min(memory.gap for row in self.rows for memory in row)


class OracleQueue:
    """The data-only memory of one row: entries ranked as above, handed back S at a time.

    Parameters
    ----------
    rule : MemoryRule
        Size and policy.
    """

    def __init__(self, rule: MemoryRule) -> None:
        self.memory = RowMemory(rule)

    def insert(
        self, data: Sequence[Any], position: Sequence[int], valid: Sequence[bool], score: Any = None
    ) -> list[Entry | None]:
        """Insert S entries; returns S slots: the empty ones (None) first, then the evicted."""
        evicted = self.memory.insert(data, data, position, valid, None, score)
        empty: list[Entry | None] = [None] * (len(valid) - len(evicted))
        return empty + list(evicted)

    def get_all(self) -> list[Entry | None]:
        """All N slots: the empty ones (None) first, then the entries, the oldest first."""
        empty: list[Entry | None] = [None] * (self.memory.rule.size - len(self.memory.entries))
        return empty + list(self.memory.entries)
