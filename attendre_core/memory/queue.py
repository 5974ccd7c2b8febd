"""The data-only memory: insert, and read everything at once (paper, section 3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from attendre_core import checks, ops
from attendre_core.backend import Array, backend_of, namespace_of, numbers
from attendre_core.errors import ShapeError
from attendre_core.memory.admission import rank
from attendre_core.memory.batch import reorder_rows, reset_rows
from attendre_core.memory.spec import check_policy
from attendre_core.policies import FIFO, Policy, RandomTies
from attendre_core.policies.base import Stored
from attendre_core.tree import tree_leaves, tree_map, tree_of

__all__ = ["Data", "DataOnlyMemory", "DataOnlyState", "EvictedData"]


class DataOnlyState(NamedTuple):
    """Everything a `DataOnlyMemory` remembers; slots are in order of rank, next to go first.

    Attributes
    ----------
    data
        Nested arrays (batch, slots, ...).
    position, valid, score, arrival
        (batch, slots), as in `KeyValueState`.
    clock
        int32, (batch,): valid entries inserted so far.
    """

    data: Any
    position: Array
    valid: Array
    score: Array
    arrival: Array
    clock: Array


class Data(NamedTuple):
    """All entries of a `DataOnlyMemory`: (batch, size, ...); only valid ones are real."""

    data: Any
    position: Array
    valid: Array


class EvictedData(NamedTuple):
    """What left a `DataOnlyMemory`: (batch, seq, ...); only valid ones are real."""

    data: Any
    position: Array
    valid: Array


@dataclass(frozen=True)
class DataOnlyMemory:
    """A memory of fixed size for anything array-shaped, read as a whole.

    Inserting is a concatenation and a slice: stored and new entries together, lowest rank first;
    as many as were inserted leave, the others stay.

    With `FIFO` it is a delay line: it starts full of empty entries, so a stream of full chunks
    comes out in order, exactly ``size`` positions late.

    Parameters
    ----------
    size
        N: how many entries a row holds.
    policy
        Decides what is evicted when the memory is full. There are no queries here, so policies
        that use them rank by the scores passed to `insert`.
    protect_recent, ties
        As in `KeyValueMemory`.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> queue = at.DataOnlyMemory(size=3)
    >>> state = queue.init((np.zeros((1, 1), dtype=np.int32),))
    >>> out = []
    >>> for start in (0, 2, 4):
    ...     chunk = np.asarray([[start, start + 1]], dtype=np.int32)
    ...     state, evicted = queue.insert(state, (chunk,))
    ...     out += evicted.data[0][evicted.valid].tolist()
    >>> out, queue.get_all(state).data[0].tolist()
    ([0, 1, 2], [[3, 4, 5]])
    """

    size: int
    policy: Policy = FIFO()
    protect_recent: int = 0
    ties: Literal["recency"] | RandomTies = "recency"

    def __post_init__(self) -> None:
        where = "DataOnlyMemory"
        checks.whole_number(
            where, "size", self.size, least=1,
            hint="To delay nothing, leave the memory out (q_memory=None).",
        )  # fmt: skip
        check_policy(where, self.policy, self.size, 0, self.protect_recent, self.ties)

    def init(self, example: Any) -> DataOnlyState:
        """Make an empty state.

        Parameters
        ----------
        example
            (Nested) arrays (batch, any, ...), for shapes, dtypes, library and device.
        """
        where = "DataOnlyMemory.init"
        checks.same_library(where, example)
        leaves = list(tree_leaves(example))
        batch = leaves[0].shape[0] if leaves[0].ndim else None
        for leaf in leaves:
            if leaf.ndim < 2 or leaf.shape[0] != batch or batch == 0:
                raise ShapeError(
                    f"{where}: an array of the example has shape {tuple(leaf.shape)}, expected "
                    "(batch, any, ...) with the same batch of at least 1 everywhere."
                )
        backend = backend_of(leaves[0])
        xp, device = backend.xp, backend.device_of(leaves[0])
        shape = (batch, self.size)

        def zeros(kind: Any) -> Array:
            return xp.zeros(shape, dtype=kind, device=device)

        return DataOnlyState(
            data=tree_map(
                lambda leaf: xp.zeros((*shape, *leaf.shape[2:]), dtype=leaf.dtype, device=device),
                example,
            ),
            position=zeros(xp.int32) - 1,
            valid=zeros(xp.bool),
            score=zeros(xp.float32),
            arrival=zeros(xp.int32) + (numbers(self.size, leaves[0]) - self.size),
            clock=xp.zeros((batch,), dtype=xp.int32, device=device),
        )

    def nbytes(self, example: Any) -> int:
        """Return the bytes a state will take, before anything is allocated."""
        total = 0
        for leaf in tree_leaves(example):
            each = 1
            for length in leaf.shape[2:]:
                each *= length
            width = 1 if checks.dtype_name(leaf.dtype) == "bool" else _bits(leaf) // 8
            total += leaf.shape[0] * self.size * each * width
        batch = tree_leaves(example)[0].shape[0]
        return int(total + batch * (self.size * (4 + 1 + 4 + 4) + 4))

    def insert(
        self,
        state: DataOnlyState,
        data: Any,
        position: Array | None = None,
        valid: Array | None = None,
        *,
        score: Array | None = None,
    ) -> tuple[DataOnlyState, EvictedData]:
        """Insert a chunk and return what leaves, lowest rank first.

        Parameters
        ----------
        data
            Nested as in `init`, (batch, seq, ...).
        position
            int32, (batch, seq); None continues counting.
        valid
            Boolean, (batch, seq); False = padding, which never displaces anything.
        score
            (batch, seq): scores of the new entries, for a policy that ranks by them.

        Returns
        -------
        state
            The new state.
        evicted
            (batch, seq, ...): for `FIFO` the oldest entries in order, empty ones first.
        """
        where = "DataOnlyMemory.insert"
        xp = checks.same_library(where, tuple(state), data, position, valid, score)
        self._check_state(where, state)
        batch = state.valid.shape[0]
        first = tree_leaves(data)[0]
        if first.ndim < 2:
            raise ShapeError(
                f"{where}: data has shape {tuple(first.shape)}, expected (batch, seq, ...)."
            )
        seq = first.shape[1]
        checks.metadata(where, state.data, data, (batch, seq), 2)
        valid = checks.flags(where, "valid", valid, (batch, seq), first, default=True)
        arrival = checks.numbered(state.clock, valid, first)
        hint = "Give one number to each entry of each row."
        if position is None:
            position = arrival
        else:
            checks.shape(where, "position", position, "batch, seq", (batch, seq), hint)
            position = checks.positions(where, "position", position, valid)
        if score is None:
            score = xp.zeros_like(valid, dtype=xp.float32)
        else:
            checks.shape(where, "score", score, "batch, seq", (batch, seq), hint)
            checks.finite_rows(where, "score", score, valid, (0, 1), math.inf)
            score = xp.astype(score, xp.float32)
        arrival = xp.where(valid, arrival, xp.zeros_like(arrival) - 1 - numbers(seq, arrival))
        clock = state.clock + ops.count_true(valid, axis=1)
        stored = (state.position, state.valid, state.score, state.arrival, *tree_leaves(state.data))
        new = (position, valid, score, arrival, *tree_leaves(data))
        records = [xp.concat(pair, axis=1) for pair in zip(stored[:4], new[:4], strict=True)]
        primary, order = self._rank(tuple(records), clock)
        kept, gone = ops.push_slots(stored, new, primary, order)
        state = DataOnlyState(*(tree_of(state.data, kept[4:]), *kept[:4], clock))
        return state, EvictedData(*(tree_of(state.data, gone[4:]), *gone[:2]))

    def get_all(self, state: DataOnlyState) -> Data:
        """Return everything, oldest first; empty entries come before all others."""
        self._check_state("DataOnlyMemory.get_all", state)
        order = ops.lowest(None, state.arrival, self.size)
        arrays = (state.position, state.valid, *tree_leaves(state.data))
        position, valid, *leaves = (ops.gather_slots(x, order, axis=1) for x in arrays)
        return Data(tree_of(state.data, leaves), position, valid)

    def reset(self, state: DataOnlyState, rows: Array) -> DataOnlyState:
        """Empty the rows where ``rows``, boolean (batch,), is True."""
        self._check_state("DataOnlyMemory.reset", state)
        return reset_rows("DataOnlyMemory.reset", state, self.init(state.data), rows)

    def reorder(self, state: DataOnlyState, index: Array) -> DataOnlyState:
        """Return row ``index[i]`` as row i; ``index`` is integer, (new batch,)."""
        self._check_state("DataOnlyMemory.reorder", state)
        return reorder_rows("DataOnlyMemory.reorder", state, index)

    def _rank(self, records: tuple[Array, ...], clock: Array) -> tuple[Array | None, Array]:
        """Return the ranks of entries as primary and order; FIFO ranks by arrival alone."""
        position, valid, score, arrival = records
        if self.policy.sinks == 0 and type(self.policy).priority is Policy.by_arrival:
            return None, arrival
        never = namespace_of(valid).zeros_like(valid)
        entries = Stored(None, None, position, valid, score, arrival, never, never, clock=clock)
        return rank(
            self.policy,
            entries,
            clock,
            sinks=self.policy.sinks,
            protect_recent=self.protect_recent,
            ties=self.ties,
        )

    def _check_state(self, where: str, state: DataOnlyState) -> None:
        record = (None, self.size)
        fields = {"position": record, "valid": record, "score": record}
        checks.belongs(where, state, DataOnlyState, fields, self)


def _bits(array: Array) -> int:
    xp = backend_of(array).xp
    info = xp.finfo if xp.isdtype(array.dtype, "real floating") else xp.iinfo
    return int(info(array.dtype).bits)
