"""Batches of memories, and queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attendre_conformance.oracle.entries import Attended, Entry
from attendre_conformance.oracle.row import RowMemory
from attendre_conformance.oracle.rules import MemoryRule


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
