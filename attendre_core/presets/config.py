"""`MemoryConfig`: the memories of all layers of a model, as plain settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.queue import DataOnlyMemory
from attendre_core.policies import Policy

__all__ = ["MemoryConfig"]

_WORDS = {
    "present": ("compete", "visible"),
    "positions": ("clamp", "model", "in-cache"),
    "finish": ("drain", "flush"),
    "decode": ("separate", "inside"),
}


@dataclass(frozen=True)
class MemoryConfig:
    """The memories of all layers of a model; `preset` makes one from a name.

    Parameters
    ----------
    policy
        Eviction policy of the K/V memories.
    kv_size, q_size
        M and N: entries of the K/V memory and of the Q memory of each layer. N = 0 means no Q
        memory.
    chunk, top_k
        S and K: positions read per step, and entries each query retrieves (None = all).
    present
        See `KeyValueMemory`.
    positions
        What rotary positions do beyond the length a model was trained on: ``"clamp"`` treats
        everything farther away as that far (LM-Infinite, the paper's choice), ``"model"`` keeps
        counting, ``"in-cache"`` counts stored entries instead (StreamingLLM).
    finish
        How waiting queries leave at the end of the input: ``"drain"`` or ``"flush"``.
    decode
        Where generated tokens go: ``"separate"``, a cache beside the memory, which then stays as
        it is; or ``"inside"``, where they compete with what was read.
    encoder_outputs
        O: how many outputs of an encoder its decoder can attend to.
    layer_policies
        Policies of single layers that differ: ((layer, policy), ...).
    per_head, protect_recent, sinks, pin
        See `KeyValueMemory`.
    cross_top_k
        How many encoder outputs each head of a decoder retrieves (Unlimiformer); None = all.

    Examples
    --------
    >>> import attendre_core as at
    >>> config = at.preset("LFA-1e-3", kv_size=1024, q_size=512, chunk=128, top_k=128)
    >>> config.kv_memory(0).size, config.q_memory(0).size
    (1024, 512)
    >>> config.name
    'LFA-1e-3+wait=512+k=128:1024'
    >>> config.with_layer_policies({3: at.FIFO()}).kv_memory(3).policy
    FIFO()
    """

    policy: Policy
    kv_size: int
    q_size: int = 0
    chunk: int = 128
    top_k: int | None = None
    present: Literal["compete", "visible"] = "compete"
    positions: Literal["clamp", "model", "in-cache"] = "clamp"
    finish: Literal["drain", "flush"] = "drain"
    decode: Literal["separate", "inside"] = "separate"
    encoder_outputs: int = 8192
    layer_policies: tuple[tuple[int, Policy], ...] = ()
    per_head: bool = False
    protect_recent: int = 0
    sinks: int = 0
    pin: tuple[tuple[int, int], ...] = ()
    cross_top_k: int | None = None

    def __post_init__(self) -> None:
        where = "MemoryConfig"
        checks.whole_number(where, "kv_size", self.kv_size, least=1, hint="It counts entries.")
        checks.whole_number(where, "q_size", self.q_size, least=0, hint="0 means no Q memory.")
        checks.whole_number(where, "chunk", self.chunk, least=1, hint="It counts positions.")
        if self.q_size >= self.kv_size:
            raise ConfigError(
                f"{where}: q_size is {self.q_size} and kv_size {self.kv_size}, expected q_size < "
                "kv_size. After waiting for N positions a query would find its own and all earlier "
                "keys evicted. Half of kv_size is a good choice, and what the preset 'attendre' "
                "uses; causal models need no Q memory ('attendre-causal')."
            )
        checks.whole_number(
            where, "encoder_outputs", self.encoder_outputs, least=1, hint="It counts positions."
        )
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                given = getattr(self, name)
                raise ConfigError(f"{where}: {name} is {given!r}, expected {' or '.join(words)}.")
        if self.cross_top_k is not None:
            checks.whole_number(
                where, "cross_top_k", self.cross_top_k, least=1, hint="None attends to all."
            )
        if self.top_k is not None:
            checks.whole_number(where, "top_k", self.top_k, least=1, hint="None retrieves all.")
            if self.top_k > self.kv_size:
                raise ConfigError(
                    f"{where}: top_k is {self.top_k}, but the memory has {self.kv_size} slots. "
                    "Use top_k=None to attend to all."
                )
        # The memory checks the rest: what is protected has to fit into it.
        for layer in (-1, *dict(self.layer_policies)):
            self.kv_memory(layer)

    @property
    def name(self) -> str:
        """The full canonical name, such as ``"LRA-sum+softmax+c=0:1024"``.

        `preset` makes an equal configuration from it, and equal configurations have equal names.
        What no name can say (a policy with arguments of its own, `layer_policies`) is written as
        Python shows it; such a name only tells systems apart.
        """
        from attendre_core.presets.naming import name_of

        return name_of(self)

    def policy_of(self, layer: int) -> Policy:
        """Return the policy of one layer."""
        return dict(self.layer_policies).get(layer, self.policy)

    def kv_memory(self, layer: int = 0) -> KeyValueMemory:
        """Return the K/V memory of one layer."""
        return KeyValueMemory(
            size=self.kv_size,
            policy=self.policy_of(layer),
            present=self.present,
            per_head=self.per_head,
            protect_recent=self.protect_recent,
            sinks=self.sinks,
            pin=self.pin,
        )

    def q_memory(self, layer: int = 0) -> DataOnlyMemory | None:
        """Return the Q memory of one layer; None when N = 0."""
        return DataOnlyMemory(size=self.q_size) if self.q_size else None

    def with_layer_policies(self, policies: Mapping[int, Policy]) -> MemoryConfig:
        """Return a configuration in which some layers have policies of their own."""
        merged = {**dict(self.layer_policies), **policies}
        ordered = tuple(sorted(merged.items(), key=lambda item: item[0]))
        return replace(self, layer_policies=ordered)

    def nbytes(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: Any = "float32",
        heads: int | None = None,
        carry_dim: int | None = None,
        value_dim: int | None = None,
        batch: int = 1,
    ) -> int:
        """Return the bytes of the memories of all layers, before anything is allocated.

        Counted are keys, values and what is recorded with them (score, position, ...) for M
        entries of each layer, with ``present="visible"`` for as many more as a chunk can bring (S,
        but N above the first layer if that is larger: a flush); and for each of the N queries
        that wait, the query and its residual stream. Not counted: parameters,
        activations, a cache for generated tokens, and the outputs of an encoder. A layer with a
        sliding window takes less than is counted for it.

        Parameters
        ----------
        layers, kv_heads, head_dim, dtype, value_dim, batch
            Of the model; values are ``head_dim`` wide by default.
        heads, carry_dim
            Query heads (``kv_heads`` by default) and width of the residual stream (heads *
            head_dim by default). They matter only where queries wait.

        Examples
        --------
        >>> import attendre_core as at
        >>> at.preset("MT:1024").nbytes(layers=12, kv_heads=8, head_dim=64)
        50516208
        """
        total = 0
        for layer in range(layers):
            total += self.kv_memory(layer).nbytes(
                batch=batch, heads=kv_heads, head_dim=head_dim, dtype=dtype,
                value_dim=value_dim, chunk=max(self.chunk, self.q_size if layer else 0),
            )  # fmt: skip
        queue = self.q_memory()
        if queue is None:
            return total
        heads = heads or kv_heads
        name = dtype if isinstance(dtype, str) else checks.dtype_name(dtype)
        kind = np.dtype("float16" if name == "bfloat16" else name)
        query = np.empty((batch, 1, heads, head_dim), kind)
        carry = np.empty((batch, 1, carry_dim or heads * head_dim), kind)
        return total + layers * queue.nbytes((query, carry))
