"""Blocks and stacks, one position at a time: what leaves a layer is read by the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attendre_conformance.oracle.layer import Answer, LayerRule, OracleLayer, Query
from attendre_conformance.oracle.positions import Numbers, full_attention


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
