"""The fields of an Attendre layer, their checks, and its states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core import checks
from attendre_core.backend import Array, Backend, Namespace, resolve
from attendre_core.errors import ConfigError
from attendre_core.layer.records import Chunk, LayerState
from attendre_core.memory.batch import reorder_rows
from attendre_core.memory.inside import check_sizes
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.queue import DataOnlyMemory
from attendre_core.positions import Encoding, NoPosition
from attendre_core.tiers.tiers import Tiers

__all__ = ["LayerSpec"]


@dataclass(frozen=True)
class LayerSpec:
    """The fields of an `AttendreLayer`; see its documentation."""

    kv_memory: KeyValueMemory | Any  # or Tiers
    q_memory: DataOnlyMemory | None = None
    top_k: int | None = None
    causal: bool = False
    encoding: Encoding = NoPosition()
    trace: bool = False
    evicted: bool = False

    def __post_init__(self) -> None:
        _check_layer(self)

    @property
    def delay(self) -> int:
        """N: how many positions late the output comes."""
        return 0 if self.q_memory is None else self.q_memory.size

    # ---------------------------------------------------------------- states

    def init(
        self,
        *,
        batch: int | None = None,
        heads: int | None = None,
        head_dim: int = 64,
        kv_heads: int | None = None,
        carry_dim: int | None = None,
        xp: Namespace | str | Backend = "numpy",
        dtype: Any = None,
        device: Any = None,
        value_dim: int | None = None,
        documents: bool = False,
        metadata: Any = None,
        chunk: int | None = None,
        like: Chunk | None = None,
    ) -> LayerState:
        """Make an empty state.

        Parameters
        ----------
        batch, heads, head_dim, kv_heads
            Rows, heads, width of a head, and K/V heads (as many as heads by default).
        carry_dim
            Width of the residual stream that waits with the queries; None = no residual stream.
        xp, dtype, device, value_dim, chunk
            As in `KeyValueMemory.init`.
        documents
            Whether chunks will have document ids.
        metadata
            An example of the chunks' metadata: nested arrays (batch, any, ...).
        like
            A chunk to take all of the above from; of the others only ``chunk`` still applies.
        """
        if like is not None:
            return self._init_like(like, chunk)
        check_sizes("AttendreLayer.init", batch=batch, heads=heads, head_dim=head_dim)
        backend = resolve(xp)
        kind = checks.dtype_named(backend.xp, dtype)
        ids = backend.xp.zeros((batch, 1), dtype=backend.xp.int32, device=device)
        kv = self.kv_memory.init(
            batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim, xp=backend, dtype=kind,
            device=device, value_dim=value_dim, aux={"document": ids} if documents else None,
            chunk=chunk,
        )  # fmt: skip
        if self.q_memory is None:
            return LayerState(kv, None)

        def shown(*rest: int | None) -> Array:
            return backend.xp.zeros((batch, 1, *rest), dtype=kind, device=device)

        example = (
            shown(heads, head_dim),
            None if carry_dim is None else shown(carry_dim),
            ids if documents else None,
            metadata,
        )
        return LayerState(kv, self.q_memory.init(example))

    def _init_like(self, chunk: Chunk, longest: int | None) -> LayerState:
        aux = None if chunk.document is None else {"document": chunk.document}
        kv = self.kv_memory.init(
            like=chunk.key, value_dim=chunk.value.shape[3], aux=aux, chunk=longest
        )
        if self.q_memory is None:
            return LayerState(kv, None)
        example = (chunk.query, chunk.carry, chunk.document, chunk.metadata)
        return LayerState(kv, self.q_memory.init(example))

    def reset(self, state: LayerState, rows: Array) -> LayerState:
        """Empty the rows where ``rows``, boolean (batch,), is True, e.g. where a document begins.

        Queries that still wait in these rows are dropped: flush first to get their outputs.
        """
        queue = state.queue
        if self.q_memory is not None and queue is not None:
            queue = self.q_memory.reset(queue, rows)
        return LayerState(self.kv_memory.reset(state.kv, rows), queue)

    def reorder(self, state: LayerState, index: Array) -> LayerState:
        """Return row ``index[i]`` as row i, for beam search."""
        return reorder_rows("AttendreLayer.reorder", state, index)


def _check_layer(layer: LayerSpec) -> None:
    where = "AttendreLayer"
    if not isinstance(layer.kv_memory, (KeyValueMemory, Tiers)):
        told = "expected a KeyValueMemory or Tiers."
        raise ConfigError(f"{where}: kv_memory is {layer.kv_memory!r}, {told}")
    tiers = layer.kv_memory if isinstance(layer.kv_memory, Tiers) else None
    if layer.trace and tiers and (tiers.compresses or tiers.outside):
        raise ConfigError(
            f"{where}: Tiers cannot be traced where they compress or go on in a HostTier: a token "
            "would be a part of an entry, or held elsewhere. Trace one memory, or plain tiers."
        )
    if layer.q_memory is not None and not isinstance(layer.q_memory, DataOnlyMemory):
        raise ConfigError(
            f"{where}: q_memory is {layer.q_memory!r}, expected a DataOnlyMemory, or None to "
            "attend at once."
        )
    size = layer.kv_memory.size
    if layer.delay >= size:
        raise ConfigError(
            f"{where}: the Q memory holds N = {layer.delay} and the K/V memory M = {size}, "
            "expected N < M. A query that waits for N positions would find its own and all "
            f"earlier keys evicted, and attend to its future alone. Use N = {max(size // 2, 1)}, "
            "half of M."
        )
    if layer.top_k is not None:
        checks.whole_number(where, "top_k", layer.top_k, least=1, hint="None attends to all.")
        if layer.top_k > size:
            raise ConfigError(
                f"{where}: top_k is {layer.top_k}, but the memory has {size} slots. Use "
                "top_k=None to attend to all."
            )
