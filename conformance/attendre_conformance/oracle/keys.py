"""Published scores that are made from keys, values and queries, entry by entry.

Each is written from the formula of its paper. An entry holds a list of heads; where they decide
together, the scores of the heads are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from attendre_conformance.oracle.entries import Entry, Heads, Vector, exact
from attendre_conformance.oracle.published import softmax as weights_of
from attendre_conformance.oracle.published import unlike_mean
from attendre_conformance.oracle.rules import PolicyRule

#: Score of an entry of LagKV whose next block is not complete.
WAITING = 2.0


class KeyScores:
    """The policy's own state of one memory, and the scores it gives.

    Parameters
    ----------
    rule : PolicyRule
        ``kind`` chooses the formula, ``options`` has its parameters.
    """

    def __init__(self, rule: PolicyRule) -> None:
        self.rule = rule
        self.begin = 0  # LagKV: arrival with which the latest block begins
        self.queries: list[Heads] = []  # ExpectedAttention: all so far

    def enter(self, stored: list[Entry], new: list[Entry], steps: int) -> None:
        """Give new entries their scores; a policy without scores of its own changes nothing."""
        kind = self.rule.kind
        if kind == "LagKV":
            for entry in new:
                entry.score, entry.origin = WAITING, exact(WAITING)
        elif kind in AMONG or kind == "ExpectedAttention":
            scores = self.among(stored + new)
            if kind == "RKV":
                share = self.rule.option("share")
                scores = [share / len(scores) - (1 - share) * x for x in scores]
            for entry, score in zip(new, scores[len(stored) :], strict=True):
                entry.score, entry.origin = score, ("entered", entry.arrival, steps)
                if kind == "Knorm":
                    entry.origin = ("norms", *(dot(k, k) for k in entry.key))
                elif kind == "TRAMS":
                    entry.origin = exact(score)

    def observe(
        self,
        entries: list[Entry],
        seen: set[int],
        query: Sequence[Heads],
        logits: Sequence[Sequence[dict[int, float]]],
        clock: int,
        steps: int,
    ) -> None:
        """Score the entries that queries saw.

        ``query`` and ``logits`` (``[query][head][arrival]``) are those of the valid queries.
        """
        kind = self.rule.kind
        if kind == "RKV":
            window = self.rule.option("window") or len(logits)
            weights = [[weights_of(row) for row in rows] for rows in logits[-window:]]
            self.observe_redundancy(entries, weights, steps)
        if kind == "LagKV":
            self.observe_blocks(entries, seen, clock, steps)
        elif kind == "ExpectedAttention":
            self.queries += query
        if kind in ("KeyDiff", "Leverage", "ExpectedAttention"):
            for entry, score in zip(entries, self.among(entries), strict=True):
                if entry.arrival in seen:
                    entry.score, entry.origin = score, ("observed", entry.arrival, steps)

    def among(self, entries: list[Entry]) -> list[float]:
        """Score entries among each other, averaged over heads."""
        if not entries:
            return []
        per_head = []
        groups = len(entries[0].key)
        for g in range(groups):
            keys = [entry.key[g] for entry in entries]
            if self.rule.kind == "ExpectedAttention":
                values = [entry.value[g] for entry in entries]
                asked = [
                    vector
                    for one in self.queries
                    for h, vector in enumerate(one)
                    if h // (len(one) // groups) == g
                ]
                per_head.append(expected_attention(keys, values, asked))
            else:
                per_head.append(AMONG[self.rule.kind](keys, self.rule))
        return [math.fsum(column) / len(column) for column in zip(*per_head, strict=True)]

    def observe_redundancy(
        self,
        entries: list[Entry],
        weights: Sequence[Sequence[dict[int, float]]],
        steps: int,
    ) -> None:
        """R-KV: the weights of the last queries, the largest of the neighbours', and redundancy."""
        importance: dict[int, float] = {}
        for entry in entries:
            per_head = []
            for h in range(len(weights[0])):
                given = [rows[h][entry.arrival] for rows in weights if entry.arrival in rows[h]]
                if given:
                    per_head.append(math.fsum(given) / len(given))
            if per_head:
                importance[entry.arrival] = max(per_head)
        reach, share = self.rule.option("kernel") // 2, self.rule.option("share")
        for entry, redundancy in zip(entries, self.among(entries), strict=True):
            if entry.arrival in importance:
                near = range(entry.arrival - reach, entry.arrival + reach + 1)
                largest = max(importance.get(arrival, 0.0) for arrival in near)
                entry.score = share * largest - (1 - share) * redundancy
                entry.origin = ("observed", entry.arrival, steps)

    def observe_blocks(self, entries: list[Entry], seen: set[int], clock: int, steps: int) -> None:
        """LagKV: a complete block scores the one before it."""
        if clock - self.begin < self.rule.option("lag"):
            return
        reference = [entry for entry in entries if entry.arrival >= self.begin]
        waiting = [e for e in entries if e.arrival < self.begin and e.score == WAITING]
        total = [0.0] * len(waiting)
        if waiting:
            for name in ("key", "value"):
                for g in range(len(waiting[0].key)):
                    block = [getattr(e, name)[g] for e in waiting]
                    after = [getattr(e, name)[g] for e in reference]
                    for i, weight in enumerate(softmax(deviations(block, after))):
                        total[i] += weight / (2 * len(waiting[0].key))
        for entry, score in zip(waiting, total, strict=True):
            if entry.arrival in seen:
                entry.score, entry.origin = score, ("observed", entry.arrival, steps)
        self.begin = clock


def dot(a: Vector, b: Vector) -> float:
    """Product of two vectors."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def softmax(numbers: list[float]) -> list[float]:
    """Softmax of a list."""
    top = max(numbers)
    total = math.fsum(math.exp(x - top) for x in numbers)
    return [math.exp(x - top) / total for x in numbers]


def small_norm(keys: list[Vector], rule: PolicyRule) -> list[float]:
    """Knorm."""
    return [-math.sqrt(dot(k, k)) for k in keys]


def along_ones(keys: list[Vector], rule: PolicyRule) -> list[float]:
    """TRAMS: cos(k, 1) |k|."""
    return [math.fsum(k) / math.sqrt(len(k)) for k in keys]


def unlike(keys: list[Vector], rule: PolicyRule) -> list[float]:
    """KeyDiff: minus the cosine to the mean key."""
    return unlike_mean(keys)


def leverages(keys: list[Vector], rule: PolicyRule) -> list[float]:
    """Leverage: k'(K'K + c I)^-1 k, where c is a share of the mean eigenvalue of K'K."""
    dim = len(keys[0])
    gram = [[math.fsum(k[i] * k[j] for k in keys) for j in range(dim)] for i in range(dim)]
    ridge = rule.option("ridge") * math.fsum(gram[i][i] for i in range(dim)) / dim
    if ridge == 0.0:
        return [0.0] * len(keys)
    for i in range(dim):
        gram[i][i] += ridge
    return [dot(k, solved(gram, k)) for k in keys]


def solved(matrix: list[Vector], right: Vector) -> Vector:
    """Solve a system of equations by elimination, with the largest pivot of each column."""
    n = len(right)
    rows = [[*matrix[i], right[i]] for i in range(n)]
    for i in range(n):
        best = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[best] = rows[best], rows[i]
        for r in range(n):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def expected_attention(
    keys: list[Vector], values: list[Vector], queries: list[Vector]
) -> list[float]:
    """ExpectedAttention: softmax of k.m/sqrt(d) + k'Ck/2d, times the norm of the value."""
    dim = len(keys[0])
    n = len(queries) or 1
    mean = [math.fsum(q[i] for q in queries) / n for i in range(dim)]
    apart = [[q[i] - mean[i] for i in range(dim)] for q in queries]
    logits = []
    for k in keys:
        variance = math.fsum(dot(a, k) ** 2 for a in apart) / n
        logits.append(dot(k, mean) / math.sqrt(dim) + variance / (2 * dim))
    norms = [math.sqrt(dot(v, v)) for v in values]
    return [weight * norm for weight, norm in zip(softmax(logits), norms, strict=True)]


def redundancies(keys: list[Vector], rule: PolicyRule) -> list[float]:
    """R-KV: softmax of the mean cosine to the other keys, 0 to itself."""
    unit = [[x / (math.sqrt(dot(k, k)) or 1.0) for x in k] for k in keys]
    return softmax(
        [
            math.fsum(dot(u, other) for j, other in enumerate(unit) if j != i) / len(unit)
            for i, u in enumerate(unit)
        ]
    )


def deviations(block: list[Vector], after: list[Vector]) -> list[float]:
    """LagKV: deviation over channels, each scaled by its range in the block after."""
    low = [min(column) for column in zip(*after, strict=True)]
    span = [max(column) - min(column) for column in zip(*after, strict=True)]
    found = []
    for x in block:
        scaled = [(x[i] - low[i]) / span[i] if span[i] else 0.0 for i in range(len(x))]
        mean = math.fsum(scaled) / len(scaled)
        squares = math.fsum((y - mean) ** 2 for y in scaled)
        found.append(math.sqrt(squares / max(len(scaled) - 1, 1)))
    return found


#: Formulas of one head, from all keys.
AMONG: dict[str, Callable[[list[Vector], PolicyRule], list[float]]] = {
    "Knorm": small_norm,
    "TRAMS": along_ones,
    "KeyDiff": unlike,
    "Leverage": leverages,
    "RKV": redundancies,
}


def reservoir(weight: float, arrival: int, seed: Any) -> float:
    """Nexus: a number in the order of u^(1/w), where u comes from the arrival number alone.

    u is made of the upper 23 of the 30 bits to which the seeded order of ties (specification,
    reading 15) maps the arrival number.
    """
    left, right = (arrival >> 15) & 0x7FFF, arrival & 0x7FFF
    state = (int(seed) * 7919 + 12345) % 32749
    for _ in range(6):
        state = (state * 16381 + 1013) % 32749
        left, right = right, left ^ ((right * (state | 1) + state) % 32749 & 0x7FFF)
    u = (((left << 15 | right) >> 7) + 0.5) / 2**23
    return math.log(max(weight, 1e-9)) - math.log(-math.log(u))
