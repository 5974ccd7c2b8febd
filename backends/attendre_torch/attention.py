"""Attention over a memory of fixed size as an ``nn.Module``, used like ``nn.GRU``.

::

    x ─► query, key, value ─► AttendreLayer.step(state) ─► out ─► y, N positions late
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from attendre_core import checks
from attendre_core.errors import ConfigError, ShapeError
from attendre_core.layer.records import Chunk, LayerOutput, LayerState
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.queue import DataOnlyMemory
from attendre_core.modules import head_sizes, layer_of, table_shape
from attendre_core.policies import Policy
from attendre_core.positions import Encoding, NoPosition
from attendre_core.presets import MemoryConfig
from attendre_core.tiers.tiers import Tiers
from attendre_torch.autocast import without_autocast, working_dtype
from attendre_torch.chunks import read_in_chunks
from attendre_torch.fsdp import check_scores, like_forward
from attendre_torch.heads import HeadGroup, check_agreement, head_group
from attendre_torch.states import detach, make_known

__all__ = ["AttendreAttention", "AttentionOutput"]


class AttentionOutput(NamedTuple):
    """What `AttendreAttention.step` returns, N positions late; only valid positions are real.

    Attributes
    ----------
    x
        (batch, seq, dim): zeros where not valid.
    carry
        (batch, seq, any): what was passed as ``carry`` for these positions; or None.
    position, valid, document
        (batch, seq): the positions, which of them are valid, and their document.
    metadata
        What was passed as ``metadata`` for these positions.
    """

    x: Tensor
    carry: Tensor | None
    position: Tensor
    valid: Tensor
    document: Tensor | None = None
    metadata: Any = None


make_known(AttentionOutput)


class AttendreAttention(nn.Module):  # type: ignore[misc]
    """Self-attention over a memory of fixed size, with queries that may wait for their future.

    ``out, state = attention(x, state)``: the state is passed in and returned; None starts a new
    one. With a Q memory, outputs come N positions late, so a model must know their positions and
    delay the residual stream too: call `step`, or `run` for a whole sequence in order.

    Parameters
    ----------
    dim
        Width of the input and of the output.
    heads, kv_heads, head_dim
        Query heads, K/V heads (as many by default), width of a head (dim / heads by default).
    memory
        A `KeyValueMemory`, `Tiers`, a size M, a name such as ``"attendre-causal:1024"``, or a
        `MemoryConfig` from `preset`; the last two also set policy, Q memory and top K.
    policy
        Decides what is evicted when the memory is full; only if ``memory`` is a size.
    q_memory
        A `DataOnlyMemory`, or its size N; None or 0 attends at once.
    top_k, causal, encoding
        As in `AttendreLayer`. The table of a `T5Bias`, or of `TransformerXLPositions`, becomes a
        parameter.
    bias
        Whether the linear maps have biases.
    detach
        Detach the state that is passed in: no gradient flows into earlier chunks.
    checkpoint
        Recompute a step in the backward pass instead of storing its activations: less memory,
        more time, the same gradients.
    device, dtype
        Device and dtype of the parameters. States have this dtype, or that of autocast; scores
        are always float32 (float64 with float64).

    Examples
    --------
    >>> attention = AttendreAttention(dim=32, heads=4, memory=16)
    >>> out, state = attention(torch.randn(2, 8, 32))
    >>> out, state = attention(torch.randn(2, 8, 32), state)
    >>> out.shape, int(state.kv.valid.sum())
    (torch.Size([2, 8, 32]), 32)
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        memory: KeyValueMemory | Tiers | MemoryConfig | str | int = 1024,
        policy: Policy | None = None,
        q_memory: DataOnlyMemory | int | None = None,
        top_k: int | None = None,
        causal: bool = False,
        encoding: Encoding = NoPosition(),
        bias: bool = False,
        detach: bool = False,
        checkpoint: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.dim, self.heads = dim, heads
        self.kv_heads, self.head_dim = head_sizes(dim, heads, kv_heads, head_dim)
        self.layer = layer_of(memory, policy, q_memory, top_k, causal, encoding)
        self.detach_state, self.checkpoint = detach, checkpoint
        #: The processes that share the heads; None = this one holds all of them.
        self.head_group: HeadGroup | None = None

        def linear(rows: int, columns: int) -> nn.Linear:
            return nn.Linear(rows, columns, bias=bias, device=device, dtype=dtype)

        self.query = linear(dim, heads * self.head_dim)
        self.key = linear(dim, self.kv_heads * self.head_dim)
        self.value = linear(dim, self.kv_heads * self.head_dim)
        self.out = linear(heads * self.head_dim, dim)
        table = table_shape(encoding, heads, self.head_dim)
        if table is not None:
            self.table = nn.Parameter(torch.zeros(table, device=device, dtype=dtype))
        else:
            self.register_parameter("table", None)

    @property
    def delay(self) -> int:
        """N: how many positions late the output comes."""
        return self.layer.delay

    def extra_repr(self) -> str:
        """Describe the sizes and the memory."""
        shown = f"{self.dim}, heads={self.heads}, kv_heads={self.kv_heads}, "
        return shown + f"memory={self.layer.kv_memory}, delay={self.delay}"

    # ---------------------------------------------------------------- states

    def init_state(
        self,
        batch: int,
        *,
        carry: Tensor | int | None = None,
        documents: bool = False,
        metadata: Any = None,
        chunk: int | None = None,
        dtype: Any = None,
    ) -> LayerState:
        """Make an empty state on the device of the parameters.

        Parameters
        ----------
        carry
            An example of the residual stream that waits with the queries, or its width; None = no
            residual stream.
        documents, metadata, chunk
            As in `AttendreLayer.init`.
        dtype
            Dtype of keys, values and queries; by default that of autocast if it is on, else that
            of the parameters.
        """
        weight = self.key.weight
        kind = working_dtype(weight) if dtype is None else dtype
        layer, group = self.layer, self._group()
        parts = 1 if group is None else group.size
        heads, kv_heads = self.heads // parts, self.kv_heads // parts
        state = replace(layer, q_memory=None).init(
            batch=batch, heads=heads, kv_heads=kv_heads, head_dim=self.head_dim,
            xp="torch", dtype=kind, device=weight.device, documents=documents, chunk=chunk,
        )  # fmt: skip
        if layer.q_memory is None:
            return state

        def shown(*rest: int, dtype: Any = kind) -> Tensor:
            return torch.zeros((batch, 1, *rest), dtype=dtype, device=weight.device)

        if isinstance(carry, int):
            carry = shown(carry, dtype=weight.dtype)
        elif carry is not None:
            carry = shown(*carry.shape[2:], dtype=carry.dtype)
        ids = shown(dtype=torch.int32) if documents else None
        waiting = (shown(heads, self.head_dim), carry, ids, metadata)
        return LayerState(state.kv, layer.q_memory.init(waiting))

    def reset(self, state: LayerState, rows: Tensor) -> LayerState:
        """Empty the rows where ``rows``, boolean (batch,), is True, e.g. for a new document."""
        return self.layer.reset(state, rows)

    def reorder(self, state: LayerState, index: Tensor) -> LayerState:
        """Return row ``index[i]`` as row i, for beam search."""
        return self.layer.reorder(state, index)

    # ---------------------------------------------------------------- steps

    def forward(
        self,
        x: Tensor,
        state: LayerState | None = None,
        *,
        position: Tensor | None = None,
        valid: Tensor | None = None,
        document: Tensor | None = None,
        donate: bool = False,
    ) -> tuple[Tensor, LayerState]:
        """Read one chunk.

        Parameters
        ----------
        x
            (batch, seq, dim).
        state
            From the last call; None starts a new one.
        position, valid, document
            (batch, seq), as in `Chunk`.
        donate
            The caller will not use ``state`` again: if no gradient is recorded, the new one
            reuses its memory.

        Returns
        -------
        out
            (batch, seq, dim), zeros where not valid.
        state
            For the next call.

        Raises
        ------
        ConfigError
            If there is a Q memory: outputs would not belong to ``x``.
        """
        if self.delay:
            raise ConfigError(
                f"AttendreAttention: with a Q memory, outputs come N = {self.delay} positions "
                "late, so they do not belong to x. Call run(x) for a whole sequence, or step(x, "
                "state, carry=x), which returns the positions of the outputs, and flush at the end."
            )
        out, state = AttendreAttention.step.plain(  # type: ignore[attr-defined]
            self, x, state, position=position, valid=valid, document=document, donate=donate
        )
        return out.x, state

    @like_forward
    def step(
        self,
        x: Tensor,
        state: LayerState | None = None,
        *,
        carry: Tensor | None = None,
        position: Tensor | None = None,
        valid: Tensor | None = None,
        document: Tensor | None = None,
        metadata: Any = None,
        donate: bool = False,
    ) -> tuple[AttentionOutput, LayerState]:
        """Like `forward`, but also return the positions of the outputs, and what waited with them.

        Parameters
        ----------
        carry
            (batch, seq, any): the residual stream, which comes out with its query.
        metadata
            Any nested tensors (batch, seq, ...), which come out with their query.
        """
        self._check(x, state)
        if state is None:
            state = self.init_state(
                x.shape[0], carry=carry, documents=document is not None, metadata=metadata
            )
        elif self.detach_state:
            state = detach(state)
        given = Chunk(x, x, x, position, valid, carry, document, metadata)
        if self.checkpoint and torch.is_grad_enabled():
            result: tuple[AttentionOutput, LayerState] = recomputed(
                self._step, given, state, False, use_reentrant=False
            )
            return result
        return self._step(given, state, donate)

    @like_forward
    def flush(self, state: LayerState) -> tuple[AttentionOutput, LayerState]:
        """Let all waiting queries attend at once: the last N positions, in order."""
        with without_autocast(state.kv.key), head_group(self._group()):
            state, out = self.layer.flush(state, encoding_params=self._table())
        return self._finished(out), state

    @like_forward
    def drain(self, state: LayerState, chunk: int) -> tuple[AttentionOutput, LayerState]:
        """Like `flush`, but ``chunk`` queries at a time, which takes less memory."""
        with without_autocast(state.kv.key), head_group(self._group()):
            state, out = self.layer.drain(state, chunk, encoding_params=self._table())
        return self._finished(out), state

    def run(
        self,
        x: Tensor,
        chunk: int = 128,
        *,
        valid: Tensor | None = None,
        document: Tensor | None = None,
        detach_every: int | None = None,
    ) -> tuple[Tensor, LayerState]:
        """Read a whole sequence chunk by chunk; return the output in input order, without delay.

        Parameters
        ----------
        x
            (batch, length, dim).
        chunk
            S: positions read at a time.
        valid, document
            (batch, length): rows may begin, pause and end at different times.
        detach_every
            Detach the state after every so many chunks; None never does.

        Returns
        -------
        out
            (batch, length, dim), zeros where not valid.
        state
            After the last position.
        """
        return read_in_chunks(self, x, chunk, valid, document, detach_every)

    # ---------------------------------------------------------------- inside

    def _check(self, x: Tensor, state: LayerState | None) -> None:
        if x.ndim != 3 or x.shape[2] != self.dim:
            heads = "Pass hidden states; it makes queries, keys and values of them itself."
            checks.shape(
                "AttendreAttention", "x", x, "batch, seq, dim", (None, None, self.dim),
                heads if x.ndim == 4 else "The batch comes first.",
            )  # fmt: skip
        rows = x.shape[0] if state is None else state.kv.key.shape[0]
        if rows != x.shape[0]:
            raise ShapeError(
                f"AttendreAttention: x has {x.shape[0]} rows, but the state has {rows}. Pass the "
                f"rows that it was made for, or make one with init_state(batch={x.shape[0]})."
            )

    def _step(
        self, given: Chunk, state: LayerState, donate: bool
    ) -> tuple[AttentionOutput, LayerState]:
        check_scores("AttendreAttention", state)
        x, group = given.query, self._group()
        kind = state.kv.key.dtype
        chunk = given._replace(
            query=self.query(x).to(kind).unflatten(2, (-1, self.head_dim)),
            key=self.key(x).to(kind).unflatten(2, (-1, self.head_dim)),
            value=self.value(x).to(kind).unflatten(2, (-1, self.head_dim)),
        )
        table = self._table()
        with without_autocast(x), head_group(group):
            state, out = self.layer.step(state, chunk, encoding_params=table, donate=donate)
        check_agreement(group, self.layer.kv_memory, state.kv)
        return self._finished(out), state

    def _group(self) -> HeadGroup | None:
        """Return the processes that share the heads, also if a plan of the caller's split them."""
        if self.head_group is None and hasattr(self.query.weight, "device_mesh"):
            from attendre_torch.parallel import group_of

            self.head_group = group_of(self)
        return self.head_group

    def _table(self) -> Tensor | None:
        """Return the part of the table that belongs to the heads of this process."""
        if self.table is not None and hasattr(self.table, "to_local"):
            return self.table.to_local()
        return self.table

    def _finished(self, out: LayerOutput) -> AttentionOutput:
        """Apply the output projection; invalid positions stay zero, also with a bias."""
        merged = out.value.flatten(2).to(working_dtype(self.out.weight))
        y = self.out(merged)
        if self.out.bias is not None:
            y = torch.where(out.valid[:, :, None], y, torch.zeros_like(y))
        return AttentionOutput(y, out.carry, out.position, out.valid, out.document, out.metadata)
