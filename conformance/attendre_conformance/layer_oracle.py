"""Layers, position schemes and stacks by brute force: every pair of positions by itself, float64.

Nothing here is shared with the code under test. A rotation is a matrix with 2x2 blocks, a clamped
distance is clamped pair by pair, a layer is the memory of `oracle` with a queue of waiting queries
in front of it, a stack feeds the outputs of one such layer to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_conformance.oracle import Attended, Entry, MemoryRule, OracleQueue, RowMemory

Numbers = NDArray[Any]


# -- position schemes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SchemeRule:
    """What a position scheme does, in words and numbers.

    Attributes
    ----------
    kind : {"none", "rope", "lm_infinite", "t5", "alibi", "in_cache"}
        The family.
    base, rotary_dim, interleaved
        Of a rotation.
    scaling : tuple
        ``()``, ``("interpolation", factor)``, ``("ntk", factor)`` or
        ``("yarn", factor, trained length, beta_fast, beta_slow)``.
    n_local : int
        The largest distance of LM-Infinite.
    buckets, max_distance, bidirectional
        Of T5's table.
    inner : SchemeRule or None
        What in-cache positions are given to.
    """

    kind: str
    base: float = 10000.0
    rotary_dim: int | None = None
    interleaved: bool = False
    scaling: tuple[Any, ...] = ()
    n_local: int = 0
    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    inner: SchemeRule | None = None

    @property
    def exact(self) -> bool:
        """Whether it adds no rounding to dyadic numbers (and, for ALiBi, 2**n heads)."""
        return self.kind in ("none", "t5", "alibi")


NO_SCHEME = SchemeRule("none")


def angles(rule: SchemeRule, dim: int) -> list[float]:
    """Radians per position of each pair of features."""
    plain = [rule.base ** (-2.0 * d / dim) for d in range(dim // 2)]
    if not rule.scaling:
        return plain
    kind, factor = rule.scaling[:2]
    if kind == "interpolation":  # positions m become m / factor (Chen et al. 2023)
        return [angle / factor for angle in plain]
    if kind == "ntk":  # the base becomes base * factor ** (dim / (dim - 2))
        base = rule.base * factor ** (dim / (dim - 2))
        return [base ** (-2.0 * d / dim) for d in range(dim // 2)]
    return [_yarn_angle(rule, dim, d, plain[d]) for d in range(dim // 2)]


def _yarn_angle(rule: SchemeRule, dim: int, pair: int, angle: float) -> float:
    """YaRN by parts: a fast pair keeps its angle, a slow one is interpolated (Peng et al. 2023).

    A pair that turns r times over the trained length L has angle 2 pi r / L, so it stands at index
    ln(L / (2 pi r)) / ln(base) * dim / 2. The ramp between the indices of beta_fast and beta_slow,
    rounded outwards, is linear in the index, as in the code released with that paper.
    """
    _, factor, length, fast, slow = rule.scaling

    def index(turns: float) -> float:
        return math.log(length / (2 * math.pi * turns)) / math.log(rule.base) * dim / 2

    first = max(0, math.floor(index(fast)))
    last = min(dim - 1, math.ceil(index(slow)))
    if pair <= first:
        share = 0.0
    elif pair >= last:
        share = 1.0
    else:
        share = (pair - first) / (last - first)
    return float((1.0 - share) * angle + share * angle / factor)


def sharpening(rule: SchemeRule) -> float:
    """Return YaRN's 1/t, sqrt(1/t) = 0.1 ln(factor) + 1, which multiplies all logits; else 1."""
    if rule.scaling and rule.scaling[0] == "yarn" and rule.scaling[1] > 1:
        return float((0.1 * math.log(rule.scaling[1]) + 1.0) ** 2)
    return 1.0


@lru_cache(maxsize=8192)
def rotation(rule: SchemeRule, head_dim: int, position: float) -> Numbers:
    """Matrix that turns each pair of features by its angle times the position."""
    dim = head_dim if rule.rotary_dim is None else rule.rotary_dim
    matrix = np.eye(head_dim)
    for d, angle in enumerate(angles(rule, dim)):
        one, two = (2 * d, 2 * d + 1) if rule.interleaved else (d, d + dim // 2)
        cosine, sine = math.cos(angle * position), math.sin(angle * position)
        matrix[one, one] = cosine
        matrix[one, two] = -sine
        matrix[two, one] = sine
        matrix[two, two] = cosine
    return matrix


def t5_bucket(offset: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """Bucket of a key ``offset`` positions after its query, in single precision as T5 computes it.

    Keys after the query use the upper half of the table (a decoder has none, and treats them as
    distance 0). Of the buckets of one direction the first half is for the distances 0, 1, 2, ...;
    beyond these, the logarithm of the distance is divided evenly up to ``max_distance``.
    """
    first, distance = 0, max(0, -offset)
    if bidirectional:
        buckets = buckets // 2
        first, distance = (buckets, offset) if offset > 0 else (0, -offset)
    own = buckets // 2
    if distance < own:
        return first + distance
    one = np.float32
    growth = np.log(one(distance) / one(own)) / one(math.log(max_distance / own))
    return first + min(buckets - 1, own + int(growth * one(buckets - own)))


def alibi_slope(head: int, heads: int) -> float:
    """Slope of one head: 2**(-8/n), 2**(-16/n), ... for n = 2**k heads.

    Other numbers of heads take those of the next lower power of two, and then the 1st, 3rd, 5th ...
    of the next higher one (Press et al. 2022).
    """
    power = 1
    while 2 * power <= heads:
        power *= 2
    if head < power:
        return float(2.0 ** (-8.0 * (head + 1) / power))
    number = 2 * (head - power) + 1
    return float(2.0 ** (-8.0 * number / (2 * power)))


class Pair(NamedTuple):
    """A query and a key: vectors, positions, and which of how many heads."""

    query: Numbers
    key: Numbers
    at: int
    to: int
    head: int
    heads: int


def pair_logit(rule: SchemeRule, pair: Pair, scale: float, table: Numbers | None) -> float:
    """Logit of one pair, with everything that the scheme does to it."""
    query, key, at, to = pair.query, pair.key, pair.at, pair.to
    if rule.kind == "none":
        return scale * float(query @ key)
    if rule.kind == "rope":
        turned = (rotation(rule, len(query), at) @ query) @ (rotation(rule, len(key), to) @ key)
        return scale * sharpening(rule) * float(turned)
    if rule.kind == "lm_infinite":
        distance = max(-rule.n_local, min(rule.n_local, at - to))
        return scale * float((rotation(rule, len(query), distance) @ query) @ key)
    if rule.kind == "alibi":
        return scale * float(query @ key) - alibi_slope(pair.head, pair.heads) * abs(at - to)
    if rule.kind == "t5" and table is not None:
        bucket = t5_bucket(to - at, rule.buckets, rule.max_distance, rule.bidirectional)
        return scale * float(query @ key) + float(table[bucket, pair.head])
    raise ValueError(f"no rule for {rule}")


def in_cache(at: int, to: int, stored: Sequence[int]) -> tuple[int, int]:
    """Numbers of a query and of a stored entry when only what is stored is counted.

    The entry has as many stored before it as its number says; the query stands at the number of
    the last stored entry that is not after it (-1 if there is none).
    """
    return sum(p <= at for p in stored) - 1, sum(p < to for p in stored)


def softmax(logits: Sequence[float]) -> list[float]:
    """Weights that sum to one."""
    top = max(logits)
    raised = [math.exp(x - top) for x in logits]
    return [x / math.fsum(raised) for x in raised]


def full_attention(
    query: Numbers,
    key: Numbers,
    value: Numbers,
    position: Numbers,
    valid: Numbers,
    *,
    rule: SchemeRule = NO_SCHEME,
    causal: bool = False,
    table: Numbers | None = None,
    document: Numbers | None = None,
    top_k: int | None = None,
) -> Numbers:
    """Attention of every valid position of one row to all valid positions it may attend to.

    Parameters
    ----------
    query, key, value : array
        (length, heads, dim), (length, kv_heads, dim) twice.
    position, valid, document : array
        (length,).

    Returns
    -------
    array
        (length, heads, value_dim), zeros for what is not valid.
    """
    query, key, value = (np.asarray(x, dtype=np.float64) for x in (query, key, value))
    length, heads, dim = query.shape
    share = heads // key.shape[1]
    real = [j for j in range(length) if valid[j]]
    stored = [int(position[j]) for j in real]
    output = np.zeros((length, heads, value.shape[2]))
    for i in real:
        own = [j for j in real if not causal or position[j] <= position[i]]
        if document is not None:
            own = [j for j in own if document[j] == document[i]]
        for h in range(heads):
            logits = []
            for j in own:
                at, to, inside = int(position[i]), int(position[j]), rule
                if rule.kind == "in_cache" and rule.inner is not None:
                    at, to = in_cache(at, to, stored)
                    inside = rule.inner
                pair = Pair(query[i, h], key[j, h // share], at, to, h, heads)
                logits.append(pair_logit(inside, pair, dim**-0.5, table))
            best = sorted(range(len(own)), key=lambda n: (-logits[n], -n))[: top_k or len(own)]
            for weight, n in zip(softmax([logits[n] for n in best]), best, strict=True):
                output[i, h] += weight * value[own[n], h // share]
    return output


# -- one layer -----------------------------------------------------------------------------------


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
        sink = self.rule.policy.kind == "sink" and entry.arrival < self.rule.policy.sinks
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
        self.observe(logits, result.selected, position, valid)
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


# -- blocks and stacks ---------------------------------------------------------------------------


def normed(x: Numbers) -> Numbers:
    """Divide a vector by its root mean square."""
    return x / math.sqrt(float(x @ x) / len(x) + 1e-6)


@dataclass(frozen=True, eq=False)
class PlainBlock:
    """A transformer block for one position at a time.

    Attributes
    ----------
    kind : {"pre", "post", "parallel"}
        Where the norm stands, and whether attention and feed-forward read the same input.
    weights : dict
        ``query, key, value, out, up, down``: matrices that multiply from the right.
    """

    kind: str
    heads: int
    kv_heads: int
    head_dim: int
    weights: dict[str, Numbers]

    def project(self, x: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Query, key and value, (heads, dim), of one input vector."""
        h = x if self.kind == "post" else normed(x)
        shapes = (("query", self.heads), ("key", self.kv_heads), ("value", self.kv_heads))
        q, k, v = ((h @ self.weights[name]).reshape(n, self.head_dim) for name, n in shapes)
        return q, k, v

    def feed(self, x: Numbers) -> Numbers:
        """Feed-forward part."""
        fed: Numbers = np.maximum(x @ self.weights["up"], 0.0) @ self.weights["down"]
        return fed

    def finish(self, attended: Numbers, x: Numbers) -> Numbers:
        """Output vector, from what was attended (heads, dim) and the input vector."""
        mixed: Numbers = attended.reshape(-1) @ self.weights["out"]
        middle: Numbers = x + mixed
        if self.kind == "parallel":
            return np.add(middle, self.feed(normed(x)))
        if self.kind == "post":
            middle = normed(middle)
            return normed(middle + self.feed(middle))
        return np.add(middle, self.feed(normed(middle)))


def full_stack(
    blocks: Sequence[PlainBlock],
    rules: Sequence[LayerRule],
    x: Numbers,
    position: Numbers,
    valid: Numbers,
    tables: Sequence[Numbers | None],
    document: Numbers | None = None,
) -> Numbers:
    """Run an ordinary transformer over one whole row: (length, width), zeros if not valid."""
    x = np.asarray(x, dtype=np.float64)
    for block, rule, table in zip(blocks, rules, tables, strict=True):
        parts = [block.project(vector) for vector in x]
        q, k, v = (np.stack([part[n] for part in parts]) for n in range(3))
        mixed = full_attention(
            q, k, v, position, valid,
            rule=rule.scheme, causal=rule.causal, table=table, document=document,
            top_k=rule.top_k,
        )  # fmt: skip
        x = np.stack([block.finish(mixed[t], x[t]) for t in range(len(x))])
    return np.where(valid[:, None], x, 0.0)


@dataclass(frozen=True)
class Item:
    """One vector on its way through a stack."""

    x: Numbers
    position: int
    index: int
    document: int | None


class OracleStack:
    """One row of a stack: what leaves a layer is read by the next one.

    Attributes
    ----------
    output : dict
        Vectors that came out so far, by input index.
    order : list of int
        Their indices as they came.
    """

    def __init__(self, blocks: Sequence[PlainBlock], layers: Sequence[OracleLayer]) -> None:
        self.blocks = list(blocks)
        self.layers = list(layers)
        self.waiting: list[dict[int, Item]] = [{} for _ in layers]
        self.output: dict[int, Numbers] = {}
        self.order: list[int] = []

    def step(self, items: Sequence[Item | None], first: int = 0) -> None:
        """Send a chunk through the layers from ``first`` on."""
        for number in range(first, len(self.layers)):
            block, layer = self.blocks[number], self.layers[number]
            blank = np.zeros((block.kv_heads, block.head_dim))
            queries: list[Query | None] = []
            keys, values = [], []
            for item in items:
                if item is None:
                    queries.append(None)
                    keys.append(blank)
                    values.append(blank)
                    continue
                q, k, v = block.project(item.x)
                queries.append(Query(list(q), item.position, item.index, item.document))
                keys.append(k)
                values.append(v)
                self.waiting[number][item.index] = item
            step = layer.step(queries, np.stack(keys), np.stack(values))
            items = self._finished(number, step.answers)
        for item in items:
            if item is not None:
                self.output[item.index] = item.x
                self.order.append(item.index)

    def flush(self, length: int | None = None) -> None:
        """Empty the queues from the input upwards, all at once or ``length`` queries at a time."""
        for number, layer in enumerate(self.layers):
            answers = layer.flush() if length is None else []
            if length is None and answers:
                self.step(self._finished(number, answers), number + 1)
            if length is not None and layer.queue is not None:
                due = layer.queue.get_all()
                layer.queue.memory.entries = []
                for start in range(0, len(due), length):
                    part = [None if e is None else e.key for e in due[start : start + length]]
                    self.step(self._finished(number, layer._answers(part)), number + 1)

    @property
    def gap(self) -> float:
        """Closest decision so far."""
        return min(layer.gap for layer in self.layers)

    def _finished(self, number: int, answers: Sequence[Answer | None]) -> list[Item | None]:
        """Turn the answers of one layer into the input of the next."""
        items: list[Item | None] = []
        for answer in answers:
            if answer is None:
                items.append(None)
                continue
            item = self.waiting[number].pop(answer.query.index)
            x = self.blocks[number].finish(np.stack(answer.heads), item.x)
            items.append(replace(item, x=x))
        return items
