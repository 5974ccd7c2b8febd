"""Make a layer from the arguments of a framework's module: sizes, memories, learned tables."""

from __future__ import annotations

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.queue import DataOnlyMemory
from attendre_core.policies import Policy
from attendre_core.positions import (
    DisentangledPositions,
    Encoding,
    T5Bias,
    TransformerXLPositions,
)
from attendre_core.presets import MemoryConfig, preset
from attendre_core.tiers.tiers import Tiers

__all__ = ["head_sizes", "layer_of", "table_shape"]

_WHERE = "AttendreAttention"


def head_sizes(dim: int, heads: int, kv_heads: int | None, head_dim: int | None) -> tuple[int, int]:
    """Return K/V heads (as many as heads by default) and the width of a head (dim / heads).

    Examples
    --------
    >>> head_sizes(64, 4, None, None)
    (4, 16)
    """
    for name, number in (("dim", dim), ("heads", heads)):
        checks.whole_number(_WHERE, name, number, least=1, hint="It is a length of an axis.")
    if head_dim is None:
        if dim % heads:
            raise ConfigError(
                f"{_WHERE}: dim {dim} does not divide into {heads} heads. Give head_dim, or "
                "another number of heads."
            )
        head_dim = dim // heads
    checks.whole_number(_WHERE, "head_dim", head_dim, least=1, hint="None is dim / heads.")
    kv_heads = heads if kv_heads is None else kv_heads
    checks.whole_number(_WHERE, "kv_heads", kv_heads, least=1, hint="None is one per head.")
    if heads % kv_heads:
        raise ConfigError(
            f"{_WHERE}: {heads} heads over {kv_heads} K/V heads, expected a multiple. Each K/V "
            "head serves the same number of query heads."
        )
    return kv_heads, head_dim


def layer_of(
    memory: KeyValueMemory | Tiers | MemoryConfig | str | int,
    policy: Policy | None,
    q_memory: DataOnlyMemory | int | None,
    top_k: int | None,
    causal: bool,
    encoding: Encoding,
) -> AttendreLayer:
    """Make a layer.

    Parameters
    ----------
    memory
        A `KeyValueMemory`, `Tiers`, a size M, a name such as ``"attendre-causal:1024"``, or a
        `MemoryConfig` from `preset`; the last two also set policy, Q memory and top K.
    policy
        Decides what is evicted when the memory is full; only if ``memory`` is a size.
    q_memory
        A `DataOnlyMemory`, or its size N; None or 0 attends at once.
    top_k, causal, encoding
        As in `AttendreLayer`.

    Examples
    --------
    >>> from attendre_core.positions import RoPE
    >>> layer_of(64, None, 32, None, True, RoPE()).delay
    32
    """
    memory = preset(memory) if isinstance(memory, str) else memory
    if policy is not None and not isinstance(memory, int):
        raise ConfigError(
            f"{_WHERE}: policy is {policy!r}, but memory brings one of its own. Give the policy "
            "only beside a size."
        )
    if isinstance(memory, int):
        memory = KeyValueMemory(memory) if policy is None else KeyValueMemory(memory, policy)
    elif isinstance(memory, MemoryConfig):
        q_memory = memory.q_memory() if q_memory is None else q_memory
        top_k = memory.top_k if top_k is None else top_k
        memory = memory.kv_memory()
    if isinstance(q_memory, int):
        q_memory = DataOnlyMemory(q_memory) if q_memory else None
    return AttendreLayer(memory, q_memory, top_k, causal, encoding)


def table_shape(encoding: Encoding, heads: int, head_dim: int) -> tuple[int, ...] | None:
    """Return the shape of an encoding's learned table, heads second; None if it has none."""
    inner = getattr(encoding, "inner", encoding)
    if isinstance(inner, (DisentangledPositions, TransformerXLPositions)):
        return inner.shape(heads, head_dim)
    return (inner.buckets, heads) if isinstance(inner, T5Bias) else None
