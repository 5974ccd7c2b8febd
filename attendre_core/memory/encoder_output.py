"""The encoder-output memory and the cross-attention that reads it (paper, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core import checks
from attendre_core.backend import Array, Backend, Namespace, backend_of, numbers, resolve
from attendre_core.errors import ShapeError
from attendre_core.memory.queue import Data, DataOnlyMemory, DataOnlyState, EvictedData
from attendre_core.memory.state import KeyValueState
from attendre_core.ops.dense import attention, logits_of, masked_softmax, mix
from attendre_core.ops.pairs import grouped, ungrouped
from attendre_core.ops.selection import select_top_k
from attendre_core.policies import FIFO, Policy

__all__ = ["EncoderOutputMemory", "cross_attention"]


def cross_attention(
    query: Array, key: Array, value: Array, valid: Array, *,
    top_k: int | None = None, scale: float | None = None, weights: bool = False,
) -> Any:  # fmt: skip
    """Cross-attend to all valid entries, without positions.

    Parameters
    ----------
    query
        (batch, queries, heads, head_dim).
    key, value
        (batch, slots, kv_heads, dim): projections of the encoder's output.
    valid
        Boolean, (batch, slots).
    top_k
        Attend only to the K best of each query and head (Unlimiformer); None = all.
    scale
        Multiplies the logits; None is 1/sqrt(head_dim).
    weights
        Return the weights too.

    Returns
    -------
    output
        (batch, queries, heads, value_dim); zeros in a row without valid entries.
    weights
        (batch, queries, heads, slots), if they were asked for.

    Examples
    --------
    >>> import numpy as np
    >>> q, kv = np.zeros((1, 1, 2, 4)), np.ones((1, 3, 2, 4))
    >>> cross_attention(q, kv, kv, np.asarray([[True, True, False]])).shape
    (1, 1, 2, 4)
    """
    where = "cross_attention"
    xp = checks.same_library(where, query, key, value, valid)
    batch, slots, heads, dim = key.shape
    checks.query_heads(where, query, batch, heads, dim)
    checks.heads(where, "value", value, (batch, slots, heads, None))
    checks.flags(where, "valid", valid, (batch, slots), key, default=True)
    if top_k is not None:
        checks.whole_number(where, "top_k", top_k, least=1, hint="None attends to all.")
    rows = grouped(query, heads) * (dim**-0.5 if scale is None else scale)
    key = xp.permute_dims(key, (0, 2, 1, 3))
    value = xp.permute_dims(value, (0, 2, 1, 3))
    allowed = valid[:, None, None, None, :]
    if (top_k is None or top_k >= slots) and not weights:
        return ungrouped(attention(rows, key, value, allowed))
    logits = logits_of(rows, key)
    used = allowed
    if top_k is not None and top_k < slots:
        used = select_top_k(logits, allowed, top_k, numbers(slots, key))
    shares = masked_softmax(logits, used)
    output = ungrouped(mix(shares, value))
    return (output, ungrouped(shares)) if weights else output


@dataclass(frozen=True)
class EncoderOutputMemory:
    """The last O outputs of an encoder, read by the cross-attention of a decoder.

    Parameters
    ----------
    size
        O: 8,192 in the paper.
    policy
        `FIFO` in the paper. A policy that ranks by score keeps the outputs with the highest
        scores, which are passed to `insert` or borrowed from the last encoder layer (the paper's
        footnote).

    Examples
    --------
    >>> import numpy as np
    >>> memory = EncoderOutputMemory(size=4)
    >>> state = memory.init(batch=1, dim=2)
    >>> state, gone = memory.insert(state, np.ones((1, 6, 2), dtype=np.float32))
    >>> memory.read(state).position.tolist(), gone.position[gone.valid].tolist()
    ([[2, 3, 4, 5]], [0, 1])
    """

    size: int = 8192
    policy: Policy = FIFO()

    def __post_init__(self) -> None:
        self._queue()

    def _queue(self) -> DataOnlyMemory:
        return DataOnlyMemory(self.size, self.policy)

    def init(
        self,
        batch: int,
        dim: int,
        xp: Namespace | str | Backend = "numpy",
        dtype: Any = None,
        device: Any = None,
    ) -> DataOnlyState:
        """Make an empty state for outputs (batch, seq, dim)."""
        library = resolve(xp).xp
        kind = checks.dtype_named(library, dtype)
        return self._queue().init(library.zeros((batch, 1, dim), dtype=kind, device=device))

    def insert(
        self,
        state: DataOnlyState,
        output: Array,
        position: Array | None = None,
        valid: Array | None = None,
        *,
        score: Array | None = None,
    ) -> tuple[DataOnlyState, EvictedData]:
        """Insert outputs of the encoder, (batch, seq, dim); padding is ignored."""
        return self._queue().insert(state, output, position, valid, score=score)

    def read(self, state: DataOnlyState) -> Data:
        """Return all outputs, oldest first, to be projected to keys and values once."""
        return self._queue().get_all(state)

    def borrow(self, state: DataOnlyState, encoder: KeyValueState) -> DataOnlyState:
        """Set each output's score to that of its position in the last encoder layer.

        An output whose position that layer's memory no longer holds keeps its score.

        Parameters
        ----------
        encoder
            State of the last encoder layer's K/V memory (with ``per_head=False``).
        """
        score, known = self._scores(encoder, state.position)
        xp = backend_of(state.score).xp
        return state._replace(score=xp.where(known & state.valid, score, state.score))

    def scores(self, encoder: KeyValueState, position: Array) -> Array:
        """Return scores for new outputs: that of the position, or the lowest held if it is gone."""
        score, known = self._scores(encoder, position)
        xp = backend_of(score).xp
        held = xp.where(encoder.valid, encoder.score, float("inf"))
        lowest = xp.min(held, axis=-1, keepdims=True)
        lowest = xp.where(lowest == float("inf"), xp.zeros_like(lowest), lowest)
        return xp.where(known, score, lowest)

    def _scores(self, encoder: KeyValueState, position: Array) -> tuple[Array, Array]:
        if encoder.valid.ndim != 2:
            raise ShapeError(
                "EncoderOutputMemory: scores are per K/V head, expected one per token. Borrow from "
                "a memory with per_head=False."
            )
        xp = backend_of(encoder.score).xp
        same = (position[:, :, None] == encoder.position[:, None, :]) & encoder.valid[:, None, :]
        score = xp.where(same, encoder.score[:, None, :], -float("inf"))
        score = xp.max(score, axis=-1)
        known = xp.any(same, axis=-1)
        return xp.where(known, score, xp.zeros_like(score)), known
