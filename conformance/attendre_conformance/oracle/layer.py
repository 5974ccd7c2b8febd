"""One row of an Attendre layer: the memory of a row behind a queue of waiting queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attendre_conformance.oracle.entries import Attended, Entry
from attendre_conformance.oracle.memory import OracleQueue
from attendre_conformance.oracle.positions import (
    NO_SCHEME,
    Numbers,
    Pair,
    SchemeRule,
    in_cache,
    pair_logit,
)
from attendre_conformance.oracle.row import RowMemory
from attendre_conformance.oracle.rules import MemoryRule


@dataclass(frozen=True)
class LayerRule:
    """What an Attendre layer does: a memory, a queue of N queries (or none), a scheme."""

    memory: MemoryRule
    queue: MemoryRule | None = None
    scheme: SchemeRule = NO_SCHEME
    top_k: int | None = None
    causal: bool = False


@dataclass
class Query:
    """One waiting query and the number of the input position it belongs to."""

    heads: list[Numbers]
    position: int
    index: int
    document: int | None = None


@dataclass
class Answer:
    """A query that attended: what it got for each head."""

    query: Query
    heads: list[Numbers]


class Gone(NamedTuple):
    """An entry that went, what it was worth, and what it had to beat.

    ``refused`` says that it went with the chunk it came in; ``threshold`` is the lowest score of
    the entries that stayed although they could have gone, None if there was no such entry.
    """

    position: int
    refused: bool
    score: float
    threshold: float | None


class Step(NamedTuple):
    """What one row did in one step.

    ``answers`` has one slot per query that could come out, None for those that did not exist;
    ``evicted`` holds, for each group of heads, what went.
    """

    answers: list[Answer | None]
    evicted: list[list[Gone]]


@dataclass
class LayerRow(RowMemory):
    """The K/V memory of one row, with positions and documents.

    Attributes
    ----------
    first_head, all_heads : int
        Which query heads it serves: all, or with per-head eviction those of one K/V head.
    documents : dict
        Document of each entry by its arrival.
    """

    scheme: SchemeRule = NO_SCHEME
    table: Numbers | None = None
    first_head: int = 0
    all_heads: int = 1
    documents: dict[int, int] = field(default_factory=dict)

    def logit_of(self, query: Query, head: int, entry: Entry, own_heads: int) -> float:
        """Logit of one pair, `head` counted within this memory."""
        key = np.asarray(entry.key[head // (own_heads // len(entry.key))], dtype=np.float64)
        at, to, scheme = query.position, entry.position, self.scheme
        if scheme.kind == "in_cache" and scheme.inner is not None:
            at, to = in_cache(at, to, [e.position for e in self.entries])
            scheme = scheme.inner
        scale = len(key) ** -0.5 if self.rule.scale is None else self.rule.scale
        vector = query.heads[self.first_head + head]
        pair = Pair(vector, key, at, to, self.first_head + head, self.all_heads)
        return pair_logit(scheme, pair, scale, self.table)

    def could_go(self, entry: Entry, clock: int) -> bool:
        """Whether an entry competed without protection when the clock stood at ``clock``."""
        sink = entry.arrival < max(self.rule.sinks, self.rule.policy.sinks)
        recent = entry.arrival >= clock - self.rule.protect_recent
        return entry.arrival < clock and not (entry.pinned or sink or recent)

    def may_attend(self, query: Query, entry: Entry, causal: bool) -> bool:
        """Whether the pair is allowed."""
        if causal and entry.position > query.position:
            return False
        return query.document is None or self.documents[entry.arrival] == query.document

    def answer(
        self, queries: Sequence[Query | None], own_heads: int, top_k: int | None, causal: bool
    ) -> Attended:
        """Let queries attend, and update the scores."""
        self.steps += 1
        width = len(self.entries[0].value[0]) if self.entries else 0
        result = Attended([], [], [])
        logits: list[list[dict[int, float]]] = []
        for query in queries:
            rows, chosen, outputs = [], [], []
            for h in range(own_heads):
                row = {}
                for entry in self.entries:
                    if query is not None and self.may_attend(query, entry, causal):
                        row[entry.arrival] = self.logit_of(query, h, entry, own_heads)
                rows.append(row)
                chosen.append(self.best(row, top_k))
                outputs.append(self.weighted(row, chosen[-1], h, own_heads, width))
            logits.append(rows)
            result.selected.append(chosen)
            result.output.append(outputs)
        position = [0 if query is None else query.position for query in queries]
        valid = [query is not None for query in queries]
        own = slice(self.first_head, self.first_head + own_heads)
        vectors = [[] if q is None else [x.tolist() for x in q.heads[own]] for q in queries]
        self.observe(logits, result.selected, position, valid, vectors)
        return result


class OracleLayer:
    """One row of an Attendre layer.

    Parameters
    ----------
    rule : LayerRule
        What to do.
    heads, kv_heads : int
        Query heads and K/V heads.
    exact : bool
        Whether the stream is dyadic.
    table : array or None
        T5's biases.
    """

    def __init__(
        self,
        rule: LayerRule,
        heads: int,
        kv_heads: int,
        exact: bool = True,
        table: Numbers | None = None,
    ) -> None:
        self.rule = rule
        self.heads = heads
        self.groups = kv_heads if rule.memory.per_head else 1
        self.queue = None if rule.queue is None else OracleQueue(rule.queue)
        self.memories = [
            LayerRow(
                rule.memory,
                exact and rule.scheme.exact,
                scheme=rule.scheme,
                table=table,
                first_head=g * (heads // self.groups),
                all_heads=heads,
            )
            for g in range(self.groups)
        ]

    def step(
        self,
        queries: Sequence[Query | None],
        key: Numbers,
        value: Numbers,
        score: Sequence[float] | None = None,
    ) -> Step:
        """Read one chunk; None among the queries is padding.

        Parameters
        ----------
        key, value : array
            (seq, kv_heads, dim).
        score : sequence of float or None
            Of the queries, for a queue that goes by score.
        """
        valid = [query is not None for query in queries]
        position = [0 if query is None else query.position for query in queries]
        due: list[Query | None] = list(queries)
        if self.queue is not None:
            out = self.queue.insert(queries, position, valid, score)
            due = [None if entry is None else entry.key for entry in out]
        evicted = []
        for g, memory in enumerate(self.memories):
            keys, values = key.tolist(), value.tolist()
            if self.rule.memory.per_head:
                keys, values = [[heads[g]] for heads in keys], [[heads[g]] for heads in values]
            arrival = memory.clock
            for query in queries:
                if query is not None:
                    memory.documents[arrival] = -1 if query.document is None else query.document
                    arrival += 1
            # In visible mode it is the chunk before that is refused.
            compete = self.rule.memory.present == "compete"
            since = memory.clock if compete else memory.offered_from
            before = memory.clock
            gone = memory.insert(keys, values, position, valid)
            clock = memory.clock if compete else before
            free = [e.score for e in memory.entries if memory.could_go(e, clock)]
            least = min(free, default=None)
            evicted.append([Gone(e.position, e.arrival >= since, e.score, least) for e in gone])
        return Step(self._answers(due), evicted)

    def flush(self) -> list[Answer | None]:
        """Let all waiting queries attend at once, and empty the queue."""
        if self.queue is None:
            return []
        due = [None if entry is None else entry.key for entry in self.queue.get_all()]
        self.queue.memory.entries = []
        return self._answers(due)

    def kept(self) -> list[list[int]]:
        """Positions held, sorted, for each group of heads."""
        return [sorted(entry.position for entry in memory.entries) for memory in self.memories]

    @property
    def gap(self) -> float:
        """Closest decision so far."""
        return min(memory.gap for memory in self.memories)

    def _answers(self, due: Sequence[Query | None]) -> list[Answer | None]:
        own = self.heads // self.groups
        parts = [m.answer(due, own, self.rule.top_k, self.rule.causal) for m in self.memories]
        answers: list[Answer | None] = []
        for i, query in enumerate(due):
            if query is None:
                answers.append(None)
                continue
            got = [np.asarray(head) for part in parts for head in part.output[i]]
            answers.append(Answer(query, got))
        return answers
