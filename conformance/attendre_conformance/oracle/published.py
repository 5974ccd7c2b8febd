"""Policies of other papers in plain loops, from what the papers say."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from attendre_conformance.oracle.entries import Entry, Vector

if TYPE_CHECKING:
    from attendre_conformance.oracle.scores import ScoredEntries

#: The logits of the allowed pairs: ``[query][head][arrival]``.
Logits = list[list[dict[int, float]]]


def softmax(row: dict[int, float]) -> dict[int, float]:
    """Weights of one query and head over the entries it may attend to."""
    top = max(row.values(), default=0.0)
    total = math.fsum(math.exp(x - top) for x in row.values())
    return {arrival: math.exp(x - top) / total for arrival, x in row.items()}


def length(vector: Vector) -> float:
    """Length of a vector."""
    return math.sqrt(math.fsum(x * x for x in vector))


def mean_length(heads: Sequence[Vector]) -> float:
    """Mean over heads of the lengths of vectors."""
    return math.fsum(length(vector) for vector in heads) / len(heads)


def value_of(entry: Entry, head: int, heads: int) -> Vector:
    """Value of an entry in the K/V head of a query head."""
    value: Vector = entry.value[head // (heads // len(entry.value))]
    return value


def window_of(memory: ScoredEntries, real: list[int]) -> list[int]:
    """Choose the queries that count: the last of the valid ones, or all."""
    window = memory.rule.policy.option("window")
    return real if window is None else real[-window:]


def rewrite(memory: ScoredEntries, scores: dict[int, tuple[float, Hashable]]) -> None:
    """Give new scores, with their origins, to the entries that have one."""
    for entry in memory.entries:
        if entry.arrival in scores:
            entry.score, entry.origin = scores[entry.arrival]
            entry.observed = True


def enter_by_value(memory: ScoredEntries, new: list[Entry]) -> None:
    """ValueNorm: the mean over heads of the length of the value."""
    for entry in new:
        entry.score = mean_length(entry.value)
        squares = tuple(math.fsum(x * x for x in vector) for vector in entry.value)
        entry.origin = ("lengths", squares)


def observe_heavy(memory: ScoredEntries, logits: Logits, real: list[int]) -> None:
    """H2O: weights are summed over all queries, times the length of the value if so wished."""
    for entry in memory.entries:
        gain, seen = 0.0, False
        for i in real:
            for h, row in enumerate(logits[i]):
                if entry.arrival in row:
                    seen = True
                    weight = softmax(row)[entry.arrival]
                    if memory.rule.policy.option("value_norm"):
                        weight *= length(value_of(entry, h, len(logits[i])))
                    gain += weight
        if seen:
            entry.score += gain
            entry.origin, entry.observed = ("observed", entry.arrival, memory.steps), True


def observe_window(memory: ScoredEntries, logits: Logits, real: list[int]) -> None:
    """SnapKV: weights of the last queries, averaged over heads and over neighbours."""
    kernel = memory.rule.policy.option("kernel")
    raw: dict[int, float] = {}
    for i in window_of(memory, real):
        for row in logits[i]:
            for arrival, weight in softmax(row).items():
                raw[arrival] = raw.get(arrival, 0.0) + weight / len(logits[i])
    scores: dict[int, tuple[float, Hashable]] = {}
    for arrival in raw:
        near = tuple(sorted(other for other in raw if abs(other - arrival) <= kernel // 2))
        # Entries with the same neighbours are tied.
        scores[arrival] = math.fsum(raw[a] for a in near) / kernel, ("around", near, memory.steps)
    rewrite(memory, scores)


def largest(logits: Logits, asking: list[int]) -> dict[int, float]:
    """Largest weight that any query and head pays to each entry that one of them sees."""
    most: dict[int, float] = {}
    for i in asking:
        for row in logits[i]:
            for arrival, weight in softmax(row).items():
                most[arrival] = max(most.get(arrival, 0.0), weight)
    return most


def observe_largest(memory: ScoredEntries, logits: Logits, real: list[int]) -> None:
    """Defensive: the largest weight, at least the mean of these, times the length of the value."""
    most = largest(logits, window_of(memory, real))
    if not most:
        return
    mean = math.fsum(most.values()) / len(most)
    scores: dict[int, tuple[float, Hashable]] = {}
    for entry in memory.entries:
        if entry.arrival not in most:
            continue
        score = mean
        origin: Hashable = ("mean", memory.steps)
        if most[entry.arrival] > mean:
            score, origin = most[entry.arrival], ("observed", entry.arrival, memory.steps)
        if memory.rule.policy.option("value_norm"):
            score *= mean_length(entry.value)
            origin = ("observed", entry.arrival, memory.steps)
        scores[entry.arrival] = (score, origin)
    rewrite(memory, scores)


def observe_salience(memory: ScoredEntries, logits: Logits, real: list[int]) -> None:
    """Salience: peaks, plus their mean shared out by lengths of values and distances of keys."""
    most = largest(logits, real)
    before, now, option = memory.query_before, memory.latest_query, memory.rule.policy.option
    if not most or now is None:
        return
    left = 1.0 if before is None else math.exp(option("decay") * (before - now))
    heads = range(len(memory.entries[0].key))
    unlike = [unlike_mean([entry.key[g] for entry in memory.entries]) for g in heads]
    special = []
    for number, entry in enumerate(memory.entries):
        far = 1.0 + math.fsum(unlike[g][number] for g in heads) / len(heads)
        special.append(mean_length(entry.value) * (max(far, 0.0) + 0.01) ** option("contrast"))
    each = option("share") * math.fsum(most.values()) / (math.fsum(special) or 1.0)
    scores: dict[int, tuple[float, Hashable]] = {}
    for entry, amount in zip(memory.entries, special, strict=True):
        if entry.arrival in most:
            origin = ("observed", entry.arrival, memory.steps)
            gain = most[entry.arrival] + each * amount
            scores[entry.arrival] = (entry.score * left + gain, origin)
    rewrite(memory, scores)


def unlike_mean(keys: list[Vector]) -> Vector:
    """Return minus the cosine to the mean unit key; a mean shorter than 0.01 counts as 0.01."""
    unit = [[x / (length(k) or 1.0) for x in k] for k in keys]
    mean = [math.fsum(column) / len(unit) for column in zip(*unit, strict=True)]
    long = max(length(mean), 0.01)
    return [-math.fsum(a * b for a, b in zip(u, mean, strict=True)) / long for u in unit]


def observe_loss(memory: ScoredEntries, logits: Logits, real: list[int]) -> None:
    """DropKV: the outputs of the last queries, with an entry and without it."""
    scores: dict[int, float] = {}
    by_arrival = {entry.arrival: entry for entry in memory.entries}
    if not by_arrival:
        return
    for i in window_of(memory, real):
        for h, row in enumerate(logits[i]):
            whole = output(row, by_arrival, h, len(logits[i]))
            for arrival in row:
                others = {other: x for other, x in row.items() if other != arrival}
                without = output(others, by_arrival, h, len(logits[i]))
                moved = math.fsum((a - b) ** 2 for a, b in zip(whole, without, strict=True))
                scores[arrival] = scores.get(arrival, 0.0) + moved / len(logits[i])
    rewrite(memory, {a: (scores[a], ("observed", a, memory.steps)) for a in scores})


def output(row: dict[int, float], entries: dict[int, Entry], head: int, heads: int) -> Vector:
    """Mix the values of the entries by their weights; zeros if there are none."""
    total = [0.0] * len(next(iter(entries.values())).value[0])
    for arrival, weight in softmax(row).items():
        for d, x in enumerate(value_of(entries[arrival], head, heads)):
            total[d] += weight * x
    return total


#: How new entries of a policy get a score of their own.
ENTER: dict[str, Callable[[Any, list[Entry]], None]] = {"ValueNorm": enter_by_value}
#: How attention becomes scores.
OBSERVE: dict[str, Callable[[Any, Logits, list[int]], None]] = {
    "DropKV": observe_loss,
    "Defensive": observe_largest,
    "H2O": observe_heavy,
    "Salience": observe_salience,
    "SnapKV": observe_window,
}
