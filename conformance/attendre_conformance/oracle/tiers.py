"""Tiers in plain loops: what one memory evicts goes on, compressed or not, into the next."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from attendre_conformance.oracle.entries import Attended, Entry, Heads, Vector, exact
from attendre_conformance.oracle.row import RowMemory
from attendre_conformance.oracle.rules import MemoryRule


@dataclass(frozen=True)
class TierRule:
    """A tier behind the first.

    Attributes
    ----------
    rule : MemoryRule
        Its memory.
    compress : str
        ``"none"``, ``"mean"``, ``"max"``, ``"conv"``, ``"most-used"``, ``"dilated"`` or
        ``"merge"``.
    rate, dilation : int
        How many entries become one, and how far apart they are.
    top_k : int or None
        Entries per query.
    by : int
        Of how many successive arrivals a chunk is; with more than one, ``top_k`` counts chunks.
    """

    rule: MemoryRule
    compress: str = "none"
    rate: int = 1
    dilation: int = 1
    top_k: int | None = None
    by: int = 1


@dataclass(frozen=True)
class TiersRule:
    """All tiers, and how they are read: ``gate`` is None for one softmax, else one per head."""

    first: MemoryRule
    rest: tuple[TierRule, ...]
    gate: tuple[float, ...] | None = None


@dataclass
class TierMemory(RowMemory):
    """One tier of one row. ``beside`` holds the logits of the other tiers: [query][head]."""

    by: int = 1
    beside: list[list[list[float]]] = field(default_factory=list)
    rows: list[list[dict[int, float]]] = field(default_factory=list)

    def best(self, row: dict[int, float], top_k: int | None) -> list[Entry]:
        """Return the best entries, or those of the chunks with the best mean logits."""
        if self.by == 1 or top_k is None:
            return super().best(row, top_k)
        means = []
        for number in {arrival // self.by for arrival in row}:
            logits = [x for arrival, x in row.items() if arrival // self.by == number]
            means.append((math.fsum(logits) / len(logits), number))
        means.sort(reverse=True)
        if not self.exact_logits and len(means) > top_k:
            last, following = means[top_k - 1][0], means[top_k][0]
            self.gap = min(self.gap, (last - following) / max(1.0, abs(last)))
        chosen = {number for _, number in means[:top_k]}
        return [e for e in super().best(row, None) if e.arrival // self.by in chosen]

    def transformed(self, row: dict[int, float]) -> dict[int, float]:
        """Scores of one query and head: a softmax is over all tiers."""
        if self.rule.policy.score[0] != "softmax" or not row:
            return super().transformed(row)
        ((i, h),) = {
            (i, h) for i, rows in enumerate(self.rows) for h, one in enumerate(rows) if one is row
        }
        every = [*row.values(), *self.beside[i][h]]
        top = max(every)
        total = math.fsum(math.exp(x - top) for x in every)
        return {arrival: math.exp(x - top) / total for arrival, x in row.items()}

    def priority(self, entry: Entry) -> tuple[float, Hashable]:
        """Score that decides; a policy that only watches goes by arrival."""
        if dict(self.rule.policy.options).get("watches"):
            return 0.0, exact(0.0)
        return super().priority(entry)


@dataclass
class Moving:
    """An entry on its way, with how many inserted entries it stands for."""

    entry: Entry
    count: int


class RowTiers:
    """All tiers of one row, and of one head where each decides for itself.

    Parameters
    ----------
    weights
        Parameters of a convolution for each tier behind the first: ``key`` and ``value``,
        [head][i][from][to]; or None.
    """

    def __init__(
        self, rule: TiersRule, weights: Sequence[Any], exact_logits: bool, head: int | None
    ) -> None:
        self.rule, self.weights, self.head = rule, weights, head
        rules = ((rule.first, 1), *((tier.rule, tier.by) for tier in rule.rest))
        self.memories = [TierMemory(one, exact_logits, by=by) for one, by in rules]
        self.waiting: list[list[Moving]] = [[] for _ in rule.rest]
        self.counts: list[dict[int, int]] = [{} for _ in rules]
        self.own_gap = math.inf

    @property
    def gap(self) -> float:
        """The closest decision so far."""
        return min(self.own_gap, *(memory.gap for memory in self.memories))

    # -- insertion ------------------------------------------------------------------------------

    def insert(self, key: Any, value: Any, position: Any, valid: Any) -> list[Moving]:
        """Insert a chunk into the first tier; return what the last one evicts."""
        first = self.memories[0]
        before = first.clock
        gone = first.insert(key, value, position, valid)
        self.counts[0].update(dict.fromkeys(range(before, first.clock), 1))
        moving = [Moving(entry, self.counts[0].pop(entry.arrival)) for entry in gone]
        for number, tier in enumerate(self.rule.rest):
            moving.sort(key=lambda one: one.entry.arrival)
            moving = self.receive(number, tier, moving)
        return moving

    def receive(self, number: int, tier: TierRule, moving: list[Moving]) -> list[Moving]:
        """Let entries into a tier; return what it evicts."""
        memory, counts = self.memories[number + 1], self.counts[number + 1]
        if tier.compress == "merge":
            moving = self.merged(memory, counts, moving)
        elif tier.compress != "none":
            self.waiting[number] += moving
            moving = self.compressed(number, tier)
        if not moving:
            return []
        entries = [one.entry for one in moving]
        before = memory.clock
        gone = memory.insert(
            [e.key for e in entries],
            [e.value for e in entries],
            [e.position for e in entries],
            [True] * len(entries),
        )
        counts.update({before + i: one.count for i, one in enumerate(moving)})
        return [Moving(entry, counts.pop(entry.arrival)) for entry in gone]

    def compressed(self, number: int, tier: TierRule) -> list[Moving]:
        """Take as many whole blocks as wait, and compress them."""
        waiting, block = self.waiting[number], tier.rate * tier.dilation
        ready = len(waiting) // block * block
        taken, self.waiting[number] = waiting[:ready], waiting[ready:]
        groups = []
        for start in range(0, ready, block):
            for shift in range(tier.dilation):
                groups.append(taken[start + shift : start + block : tier.dilation])
        sums = [sum(one.count for one in group) for group in groups]
        if tier.compress == "most-used":
            return self.most_used(taken, sums)
        if tier.compress == "dilated":
            return [Moving(group[-1].entry, n) for group, n in zip(groups, sums, strict=True)]
        result = []
        for group, n in zip(groups, sums, strict=True):
            last = max(one.entry.position for one in group)
            parts = {
                name: self.pooled(tier.compress, number, name, [one.entry for one in group])
                for name in ("key", "value")
            }
            entry = Entry(0, last, parts["key"], parts["value"], 0.0, exact(0.0))
            entry.score = max(one.entry.score for one in group)
            result.append(Moving(entry, n))
        return result

    def pooled(self, how: str, number: int, name: str, group: list[Entry]) -> Heads:
        """Pool the keys or the values of a few entries, head by head."""
        heads = []
        for h in range(len(getattr(group[0], name))):
            vectors = [getattr(entry, name)[h] for entry in group]
            width = range(len(vectors[0]))
            if how == "mean":
                heads.append([math.fsum(v[d] for v in vectors) / len(vectors) for d in width])
            elif how == "max":
                heads.append([max(v[d] for v in vectors) for d in width])
            else:
                weight = self.weights[number][name][h if self.head is None else self.head]
                heads.append(
                    [
                        math.fsum(
                            v[d] * float(weight[i][d][e])
                            for i, v in enumerate(vectors)
                            for d in width
                        )
                        for e in width
                    ]
                )
        return heads

    def most_used(self, taken: list[Moving], sums: list[int]) -> list[Moving]:
        """Keep those with the highest scores, of equal ones the later."""
        order = sorted(range(len(taken)), key=lambda i: (-taken[i].entry.score, -i))
        kept, left = order[: len(sums)], order[len(sums) :]
        for i in kept:
            for j in left:
                one, other = taken[i].entry, taken[j].entry
                if one.origin != other.origin:
                    self.own_gap = min(self.own_gap, abs(one.score - other.score))
        return [Moving(taken[i].entry, n) for i, n in zip(sorted(kept), sums, strict=True)]

    def merged(
        self, memory: TierMemory, counts: dict[int, int], moving: list[Moving]
    ) -> list[Moving]:
        """Return those that find an empty slot; merge the others into the nearest."""
        free = memory.rule.size - len(memory.entries)
        fits, rest = moving[:free], moving[free:]
        if fits:
            before = memory.clock
            entries = [one.entry for one in fits]
            memory.insert(
                [e.key for e in entries],
                [e.value for e in entries],
                [e.position for e in entries],
                [True] * len(entries),
            )
            counts.update({before + i: one.count for i, one in enumerate(fits)})
        memory.clock += len(rest)
        chosen: list[list[Moving]] = [[] for _ in memory.entries]
        for one in rest:
            alike = [self.cosine(one.entry.key, entry.key) for entry in memory.entries]
            ranked = sorted(alike)
            if len(ranked) > 1:
                self.own_gap = min(self.own_gap, ranked[-1] - ranked[-2])
            chosen[alike.index(ranked[-1])].append(one)
        for entry, coming in zip(memory.entries, chosen, strict=True):
            if not coming:
                continue
            own = counts[entry.arrival]
            total = own + sum(one.count for one in coming)
            for name in ("key", "value"):
                heads = getattr(entry, name)
                mean = [
                    [
                        math.fsum(
                            [
                                own * x,
                                *(one.count * getattr(one.entry, name)[h][d] for one in coming),
                            ]
                        )
                        / total
                        for d, x in enumerate(vector)
                    ]
                    for h, vector in enumerate(heads)
                ]
                setattr(entry, name, mean)
            entry.position = max([entry.position, *(one.entry.position for one in coming)])
            counts[entry.arrival] = total
        return []

    @staticmethod
    def cosine(one: Heads, other: Heads) -> float:
        """Cosine of the keys of all heads together."""
        a, b = ([x for vector in heads for x in vector] for heads in (one, other))
        lengths = math.sqrt(math.fsum(x * x for x in a)), math.sqrt(math.fsum(x * x for x in b))
        if not lengths[0] or not lengths[1]:
            return 0.0
        return math.fsum(x * y for x, y in zip(a, b, strict=True)) / lengths[0] / lengths[1]

    # -- attention ------------------------------------------------------------------------------

    def attend(
        self,
        query: Sequence[Heads],
        position: Sequence[int],
        valid: Sequence[bool],
        top_k: int | None,
        causal: bool,
        gate: Sequence[float] | None,
    ) -> Attended:
        """Attend to all tiers by one softmax, or to the first and to the others by one each."""
        count, heads = len(query), len(query[0])
        limits = [None, *(tier.top_k for tier in self.rule.rest)]
        logits: list[Any] = [[] for _ in self.memories]
        chosen: list[Any] = [[] for _ in self.memories]
        result = Attended([], [], [])
        for memory in self.memories:
            memory.beside = []
        for i in range(count):
            result.output.append([])
            for one in (*logits, *chosen):
                one.append([])
            for memory in self.memories:
                memory.beside.append([])
            for h in range(heads):
                rows, picked, others = [], [], []
                for number, memory in enumerate(self.memories):
                    seen = [e for e in memory.entries if self.sees(e, i, position, valid, causal)]
                    rows.append({e.arrival: memory.logit(query[i][h], e, h, heads) for e in seen})
                    picked.append(memory.best(rows[number], limits[number]))
                for moving in self.waiting:
                    found = [one.entry for one in moving]
                    found = [e for e in found if self.sees(e, i, position, valid, causal)]
                    first = self.memories[0]
                    others.append([(first.logit(query[i][h], e, h, heads), e) for e in found])
                if top_k is not None:
                    picked, others = self.best_of_all(rows, others, top_k)
                sides = [[0], list(range(1, len(rows)))] if gate else [list(range(len(rows)))]
                outputs = []
                for side in sides:
                    pairs = [(rows[n][e.arrival], e) for n in side for e in picked[n]]
                    pairs += [pair for n in side if n for pair in others[n - 1]]
                    outputs.append(self.softmax(pairs, h, heads))
                    for n in side:
                        beside = [x for m in side if m != n for x in rows[m].values()]
                        every = [] if top_k is not None else others
                        beside += [x for m in side if m for x, _ in (every or others)[m - 1]]
                        self.memories[n].beside[i].append(beside)
                result.output[i].append(self.mixed(outputs, gate[h] if gate else None))
                for n in range(len(rows)):
                    logits[n][i].append(rows[n])
                    chosen[n][i].append(picked[n])
        for n, memory in enumerate(self.memories):
            memory.steps += 1
            memory.rows = logits[n]
            memory.observe(logits[n], chosen[n], position, valid, query)
        return result

    @staticmethod
    def sees(entry: Entry, i: int, position: Any, valid: Any, causal: bool) -> bool:
        """Whether query i may attend to an entry."""
        return bool(valid[i]) and (not causal or entry.position <= position[i])

    def best_of_all(self, rows: list[Any], others: list[Any], top_k: int) -> Any:
        """Return the best entries of all tiers: of equal ones an earlier tier, a later entry."""
        every = []
        for number, memory in enumerate(self.memories):
            if number:
                every += [(x, -2 * number + 1, e) for x, e in others[number - 1]]
            by = {e.arrival: e for e in memory.entries}
            every += [(x, -2 * number, by[arrival]) for arrival, x in rows[number].items()]
        every.sort(key=lambda one: (one[0], one[1], one[2].arrival), reverse=True)
        if not self.memories[0].exact_logits and len(every) > top_k:
            last, after = every[top_k - 1][0], every[top_k][0]
            self.own_gap = min(self.own_gap, (last - after) / max(1.0, abs(last)))
        best = every[:top_k]
        picked = [[e for _, t, e in best if t == -2 * n] for n in range(len(rows))]
        late = [[(x, e) for x, t, e in best if t == -2 * n - 1] for n in range(len(others))]
        return picked, late

    @staticmethod
    def softmax(pairs: list[tuple[float, Entry]], head: int, heads: int) -> Vector | None:
        """Attention over some entries; None if there are none."""
        if not pairs:
            return None
        top = max(x for x, _ in pairs)
        total = math.fsum(math.exp(x - top) for x, _ in pairs)
        width = len(pairs[0][1].value[0])
        output = [0.0] * width
        for x, entry in pairs:
            value = entry.value[head // (heads // len(entry.value))]
            for d in range(width):
                output[d] += math.exp(x - top) / total * value[d]
        return output

    @staticmethod
    def mixed(outputs: list[Vector | None], gate: float | None) -> Vector:
        """Mix what the first tier and the others gave."""
        found = [output for output in outputs if output is not None]
        if len(found) < 2:
            return found[0] if found else []
        assert gate is not None
        share = 1.0 / (1.0 + math.exp(-gate))
        local, memory = found
        return [share * b + (1.0 - share) * a for a, b in zip(local, memory, strict=True)]


class OracleTiers:
    """A batch of `RowTiers`: ``rows[b][g]``."""

    def __init__(
        self, rule: TiersRule, batch: int, heads: int, weights: Any, exact_logits: bool
    ) -> None:
        self.rule, self.batch = rule, batch
        self.groups = heads if rule.first.per_head else 1
        self.rows = [
            [
                RowTiers(rule, weights, exact_logits, g if rule.first.per_head else None)
                for g in range(self.groups)
            ]
            for _ in range(batch)
        ]

    def insert(self, key: Any, value: Any, position: Any, valid: Any) -> list[Any]:
        """Insert nested lists (batch, seq, ...); return the evicted [b][g]."""
        evicted: list[Any] = []
        for b, row in enumerate(self.rows):
            evicted.append([])
            for g, tiers in enumerate(row):
                keys, values = key[b], value[b]
                if self.rule.first.per_head:
                    keys, values = ([[x[g]] for x in some] for some in (keys, values))
                evicted[b].append(tiers.insert(keys, values, position[b], valid[b]))
        return evicted

    def attend(
        self, query: Any, position: Any, valid: Any, top_k: int | None, causal: bool
    ) -> list[Attended]:
        """Attend with nested lists (batch, seq, heads, head_dim)."""
        results = []
        for b, row in enumerate(self.rows):
            share = len(query[b][0]) // self.groups
            joined = Attended([[] for _ in query[b]], [], [])
            for g, tiers in enumerate(row):
                own = [heads[g * share : (g + 1) * share] for heads in query[b]]
                gate = self.rule.gate and self.rule.gate[g * share : (g + 1) * share]
                part = tiers.attend(own, position[b], valid[b], top_k, causal, gate)
                for i in range(len(query[b])):
                    joined.output[i] += part.output[i]
            results.append(joined)
        return results

    @property
    def gap(self) -> float:
        """Closest decision so far."""
        return min(tiers.gap for row in self.rows for tiers in row)

    def tier(self, number: int) -> Any:
        """Return one tier of every row, in the form of `OracleMemory`."""
        return _OneTier(self, number)


class _OneTier:
    """One tier of a batch, for comparisons that are written for a memory."""

    def __init__(self, whole: OracleTiers, number: int) -> None:
        tiers = (whole.rule.first, *(tier.rule for tier in whole.rule.rest))
        self.rule, self.batch, self.groups = tiers[number], whole.batch, whole.groups
        self.rows = [[tiers.memories[number] for tiers in row] for row in whole.rows]
