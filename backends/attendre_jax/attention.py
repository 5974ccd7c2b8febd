"""Attention over a memory of fixed size as a pytree: parameters are leaves, all else is static.

::

    x ─► query, key, value ─► AttendreLayer.step(state) ─► out ─► y, N positions late

It is a plain registered dataclass, so `jax.jit`, `jax.grad`, `jax.vmap`, optax and the filtered
transforms of equinox accept it; optax and equinox are not imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from attendre_core import checks
from attendre_core.backend import Array
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import Chunk, LayerOutput, LayerState
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.queue import DataOnlyMemory
from attendre_core.modules import head_sizes, layer_of, table_shape
from attendre_core.policies import Policy
from attendre_core.positions import Encoding, NoPosition
from attendre_core.presets import MemoryConfig
from attendre_core.tiers.tiers import Tiers
from attendre_jax.scanning import chunked_attention

__all__ = ["AttendreAttention"]


@dataclass(frozen=True, eq=False)  # jax.lax.scan hashes its function; arrays have no hash
class AttendreAttention:
    """Self-attention over a memory of fixed size, with queries that may wait for their future.

    ``state, out = attention(state, x)`` has the signature that `jax.lax.scan` expects: the state
    is passed in and returned. With a Q memory, the output comes N positions late; ``out.carry`` is
    the input that belongs to it, so ``out.carry + out.value`` is a residual connection.

    All parameters have a separate axis for heads, which can be sharded.

    Attributes
    ----------
    query, key, value
        (dim, heads or kv_heads, head_dim).
    out
        (heads, head_dim, dim).
    table
        Learned table of the position scheme (`T5Bias`, `TransformerXLPositions`); None if it has
        none.
    layer
        Memories, mask and position scheme: static.

    Examples
    --------
    >>> import attendre_core as at
    >>> attention = AttendreAttention.create(jax.random.key(0), dim=32, heads=4, memory=16)
    >>> xs = jax.random.normal(jax.random.key(1), (5, 2, 8, 32))
    >>> state, out = jax.lax.scan(attention, attention.init_state(batch=2), xs)
    >>> out.value.shape, int(state.kv.valid.sum())
    ((5, 2, 8, 32), 32)
    """

    query: Array
    key: Array
    value: Array
    out: Array
    table: Array | None
    layer: AttendreLayer

    @classmethod
    def create(
        cls,
        rng: Array,
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
        dtype: Any = jnp.float32,
    ) -> AttendreAttention:
        """Initialise parameters at random.

        Parameters
        ----------
        rng
            A key of `jax.random`.
        dim
            Width of the input and of the output.
        heads, kv_heads, head_dim
            Query heads, K/V heads (as many by default), width of a head (dim / heads).
        memory, policy, q_memory
            A `KeyValueMemory`, `Tiers`, a size M (then with a policy), a name such as
            ``"attendre-causal:1024"``, or a `MemoryConfig` from `preset`; a `DataOnlyMemory` or
            its size N.
        top_k, causal, encoding
            As in `AttendreLayer`.
        dtype
            Dtype of parameters and states; scores are always float32 (float64 with float64).
        """
        kv_heads, head_dim = head_sizes(dim, heads, kv_heads, head_dim)
        layer = layer_of(memory, policy, q_memory, top_k, causal, encoding)
        shapes = [(dim, heads), (dim, kv_heads), (dim, kv_heads)]
        rngs = jax.random.split(rng, 4)
        query, key, value = (
            jax.random.normal(r, (*shape, head_dim), dtype) * dim**-0.5
            for r, shape in zip(rngs, shapes, strict=False)
        )
        out = jax.random.normal(rngs[3], (heads, head_dim, dim), dtype)
        table = table_shape(encoding, heads, head_dim)
        return cls(
            query, key, value, out * (heads * head_dim) ** -0.5,
            None if table is None else jnp.zeros(table, dtype), layer,
        )  # fmt: skip

    @property
    def delay(self) -> int:
        """N: how many positions late the output comes."""
        return self.layer.delay

    def init_state(self, batch: int, *, chunk: int | None = None, dtype: Any = None) -> LayerState:
        """Make an empty state; ``chunk`` as in `AttendreLayer.init`."""
        dim, heads, head_dim = self.query.shape
        kind = self.key.dtype if dtype is None else dtype
        return self.layer.init(
            batch=batch,
            heads=heads,
            kv_heads=self.key.shape[1],
            head_dim=head_dim,
            carry_dim=dim,
            xp="jax",
            dtype=kind,
            chunk=chunk,
        )

    def __call__(
        self, state: LayerState, x: Array, position: Array | None = None, valid: Array | None = None
    ) -> tuple[LayerState, LayerOutput]:
        """Read one chunk.

        Parameters
        ----------
        state
            From `init_state` or the last call.
        x
            (batch, seq, dim).
        position, valid
            (batch, seq), as in `Chunk`.

        Returns
        -------
        state
            For the next call.
        out
            ``value`` is (batch, seq, dim), zeros where not valid; ``carry`` is the input of the
            same positions.
        """
        query, key, value = self._projected(x, state.kv.key.dtype)
        carry = x.astype(state.kv.key.dtype)
        chunk = Chunk(query, key, value, position, valid, carry)
        state, out = self.layer.step(state, chunk, encoding_params=self.table)
        return state, self._mixed(out)

    def flush(self, state: LayerState) -> tuple[LayerState, LayerOutput]:
        """Let all waiting queries attend: the last N positions, in order."""
        state, out = self.layer.flush(state, encoding_params=self.table)
        return state, self._mixed(out)

    def run(
        self,
        x: Array,
        *,
        chunk: int = 128,
        valid: Array | None = None,
        remat: bool = False,
        truncate: int | None = None,
    ) -> Array:
        """Read a whole input, (batch, time, dim), and return the output in input order.

        ``chunk``, ``valid``, ``remat`` and ``truncate`` as in `chunked_attention`.
        """
        query, key, value = self._projected(x, self.key.dtype)
        attended = chunked_attention(
            self.layer, query, key, value,
            chunk=chunk, valid=valid, encoding_params=self.table, remat=remat, truncate=truncate,
        )  # fmt: skip
        return jnp.einsum("bthd,hdc->btc", attended, self.out)

    def _projected(self, x: Array, dtype: Any) -> tuple[Array, Array, Array]:
        checks.shape(
            "AttendreAttention", "x", x, "batch, seq, dim", (None, None, self.query.shape[0]),
            "The batch comes first.",
        )  # fmt: skip
        weights = (self.query, self.key, self.value)
        query, key, value = (jnp.einsum("btc,chd->bthd", x, w).astype(dtype) for w in weights)
        return query, key, value

    def _mixed(self, out: LayerOutput) -> LayerOutput:
        return out._replace(value=jnp.einsum("bthd,hdc->btc", out.value, self.out))


jax.tree_util.register_dataclass(
    AttendreAttention,
    data_fields=["query", "key", "value", "out", "table"],
    meta_fields=["layer"],
)
