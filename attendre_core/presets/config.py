"""`MemoryConfig`: the memories of all layers of a model, as plain settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.queue import DataOnlyMemory
from attendre_core.memory.spec import CHUNK
from attendre_core.outside.tier import HostTier
from attendre_core.policies import Policy
from attendre_core.tiers.spec import Tier
from attendre_core.tiers.tiers import Tiers

__all__ = ["MemoryConfig", "usual_chunk"]

_WORDS = {
    "present": ("compete", "visible"),
    "positions": ("clamp", "model", "in-cache"),
    "finish": ("drain", "flush"),
    "decode": ("separate", "inside"),
}

#: How many times smaller the last layer of a pyramid is than the mean: beta of PyramidKV.
_PYRAMID = 20


def usual_chunk(size: int) -> int:
    """Return S for a memory of M entries if nothing else is said: the paper's, but at most M.

    A memory that holds less than a chunk would refuse the rest of it, or take more than it was
    given.
    """
    return max(min(CHUNK, size), 1)


@dataclass(frozen=True)
class MemoryConfig:
    """The memories of all layers of a model; `preset` makes one from a name.

    Parameters
    ----------
    policy
        Eviction policy of the K/V memories.
    kv_size, q_size
        M and N: entries of the K/V memory and of the Q memory of each layer. N = 0 means no Q
        memory. Layers with a sliding window have a K/V memory of their own size; see `kv_memory`.
    chunk, top_k
        S and K: positions read per step (0: 128, or M if that is less), and entries each query
        retrieves (None: all).
    present
        See `KeyValueMemory`.
    positions
        How rotary positions behave beyond the length a model was trained on: ``"clamp"`` limits
        distances to that length (LM-Infinite, the paper's choice), ``"model"`` keeps counting,
        ``"in-cache"`` numbers the stored entries instead (StreamingLLM).
    finish
        How waiting queries leave at the end of the input: ``"drain"`` (chunk by chunk) or
        ``"flush"`` (all at once).
    decode
        Where generated tokens go: ``"separate"`` puts them into a cache of their own and leaves
        the memory unchanged; with ``"inside"`` they enter the memory and compete for its slots.
    encoder_outputs
        O: how many outputs of an encoder its decoder can attend to.
    layer_policies
        Policies of layers that do not use ``policy``: ((layer, policy), ...).
    per_head, protect_recent, sinks, pin
        See `KeyValueMemory`.
    cross_top_k
        How many encoder outputs each head of a decoder retrieves (Unlimiformer); None: all.
    adapt
        Whether a model may change the system to what is best for its kind and trained length; see
        `attendre_core.presets.adapted`.
    layer_sizes
        Entries of each layer's K/V memory; empty: M in every layer. ``"pyramid"``: many in the
        first layers and few in the last, M on average; see `for_layers`.
    head_sizes
        Entries of each K/V head of each layer, ((layer 0's heads), ...), with ``per_head=True``;
        empty: M in every head. `attendre_core.presets.head_sizes` measures them.
    tiers
        Memories behind the first, which receive what it evicts (see `Tiers`); M counts the
        entries of all of them.
    host
        What all of these evict goes to a store outside of the device, of which every layer
        without a sliding window has one (see `HostTier`); M does not count its entries.

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
    chunk: int = 0
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
    adapt: bool = False
    layer_sizes: tuple[int, ...] | Literal["pyramid"] = ()
    head_sizes: tuple[tuple[int, ...], ...] = ()
    tiers: tuple[Tier, ...] = ()
    host: HostTier | None = None

    def __post_init__(self) -> None:
        where = "MemoryConfig"
        checks.whole_number(where, "kv_size", self.kv_size, least=1, hint="It counts entries.")
        checks.whole_number(where, "q_size", self.q_size, least=0, hint="0 means no Q memory.")
        if self.chunk == 0:
            object.__setattr__(self, "chunk", usual_chunk(self.kv_size))
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
        self._check_sizes(where)
        # `KeyValueMemory` checks the rest, such as whether the protected entries fit.
        for layer in (-1, *dict(self.layer_policies)):
            self._memory(layer, self.kv_size)
        for layer, size in enumerate(self.layer_sizes if self.layer_sizes != "pyramid" else ()):
            self._memory(layer, int(size))
        for layer, sizes in enumerate(self.head_sizes):
            self._memory(layer, max(sizes, default=0))

    def _check_sizes(self, where: str) -> None:
        sizes = self.layer_sizes
        if self.head_sizes:
            _check_head_sizes(where, self)
        if sizes == "pyramid":
            return
        if not isinstance(sizes, tuple):
            raise ConfigError(
                f"{where}: layer_sizes is {sizes!r}, expected a number of entries for each "
                "layer, such as (1024, 512), or 'pyramid'."
            )
        for size in sizes:
            checks.whole_number(where, "layer_sizes", size, least=1, hint="It counts entries.")
            if self.q_size >= size:
                raise ConfigError(
                    f"{where}: q_size is {self.q_size} and layer_sizes has {size}, expected more "
                    "entries than queries wait for in every layer."
                )

    @property
    def name(self) -> str:
        """The full canonical name, such as ``"LRA-sum+softmax+c=0:1024"``.

        `preset` makes an equal configuration from it, and equal configurations have equal names.
        Settings outside the grammar (a policy with other arguments, `layer_policies`) are written
        as their ``repr``; `preset` cannot read such a name back.
        """
        from attendre_core.presets.naming import name_of

        return name_of(self)

    @property
    def compresses(self) -> bool:
        """Whether an entry of a tier may stand for several."""
        return any(tier.compress is not None for tier in self.tiers)

    def policy_of(self, layer: int) -> Policy:
        """Return the policy of one layer."""
        return dict(self.layer_policies).get(layer, self.policy)

    def governs(self, layer: int, window: int | None) -> bool:
        """Whether policy, M and K apply to a layer: it has no window, or a policy of its own."""
        return window is None or layer in dict(self.layer_policies)

    def for_layers(self, windows: Sequence[int | None]) -> MemoryConfig:
        """Return the configuration of a model with these layers, with a size for each.

        ``"pyramid"`` is the budget of PyramidKV (arXiv 2406.02069): sizes fall linearly from the
        first layer to the last, and their mean is M. The last layer has p + (M - p) / 20 entries
        and the first 2 M minus that, where p is what every layer needs: its protected entries, one
        more than queries wait, and a chunk if new entries compete before they are attended to.
        Layers with a sliding window keep their own size and are left out.

        Parameters
        ----------
        windows
            Sliding window of each layer, None where there is none.

        Examples
        --------
        >>> import attendre_core as at
        >>> at.preset("LRA-sum+visible+pyramid:100").for_layers([None] * 5).layer_sizes
        (195, 148, 100, 52, 5)
        """
        if self.layer_sizes == "pyramid":
            sizes = iter(_pyramid(self, sum(self.governs(i, w) for i, w in enumerate(windows))))
            each = (next(sizes) if self.governs(i, w) else self.kv_size
                    for i, w in enumerate(windows))  # fmt: skip
            return replace(self, layer_sizes=tuple(each))
        for name, what in (("layer_sizes", "numbers"), ("head_sizes", "tuples")):
            given = getattr(self, name)
            if given and len(given) != len(windows):
                raise ConfigError(
                    f"MemoryConfig: {name} has {len(given)} {what}, but the model has "
                    f"{len(windows)} layers. Give one for each layer."
                )
        return self

    def size_of(self, layer: int) -> int:
        """Return M of one layer."""
        if isinstance(self.layer_sizes, str):
            raise ConfigError(
                f"MemoryConfig: layer_sizes is {self.layer_sizes!r}, whose sizes depend on the "
                "number of layers. Use for_layers(windows) first, with one window or None for each."
            )
        if self.head_sizes:
            return max(self.head_sizes[layer])
        return self.layer_sizes[layer] if self.layer_sizes else self.kv_size

    def top_k_of(self, layer: int, window: int | None = None) -> int | None:
        """Return K of one layer: at most its size; None where K does not apply."""
        if self.top_k is None or not self.governs(layer, window):
            return None
        return min(self.top_k, self.size_of(layer))

    def kv_memory(self, layer: int = 0, window: int | None = None) -> KeyValueMemory | Any:
        """Return the K/V memory of one layer; `Tiers`, if there are any.

        A layer with a sliding window never sees again what is outside of it. Unless
        `layer_policies` names its policy, it gets a first-in-first-out memory of everything that
        it can still see, whatever M is: it computes what it would compute without a memory.

        Parameters
        ----------
        window
            Sliding window of the layer, its own position included; None: it has none.

        Examples
        --------
        >>> import attendre_core as at
        >>> at.preset("attendre-causal+chunk=128:64").kv_memory(0, window=512).size
        639
        """
        if window is not None and not self.governs(layer, window):
            # The oldest query of a chunk waits for N positions and then looks `window` back. A
            # flush sends all N of the layer below as one chunk.
            longest = max(self.chunk, self.q_size if self.finish == "flush" else 0)
            return KeyValueMemory(size=window - 1 + self.q_size + longest)
        return self._memory(layer, self.size_of(layer))

    def _memory(self, layer: int, size: int) -> KeyValueMemory | Any:
        held = sum(tier.memory.size for tier in self.tiers)
        if held >= size:
            raise ConfigError(
                f"MemoryConfig: a layer has {size} entries, of which the tiers behind the first "
                f"hold {held}. Leave some to the first: raise kv_size, or make tiers smaller."
            )
        first = KeyValueMemory(
            size=size - held,
            policy=self.policy_of(layer),
            present=self.present,
            per_head=self.per_head,
            protect_recent=self.protect_recent,
            sinks=self.sinks,
            pin=self.pin,
            head_sizes=self.head_sizes[layer] if self.head_sizes and layer >= 0 else (),
        )
        behind = (*self.tiers, *((self.host,) if self.host else ()))
        return Tiers(first, *behind) if behind else first

    def q_memory(self, layer: int = 0) -> DataOnlyMemory | None:
        """Return the Q memory of one layer; None if N = 0."""
        return DataOnlyMemory(size=self.q_size) if self.q_size else None

    def with_layer_policies(self, policies: Mapping[int, Policy]) -> MemoryConfig:
        """Return a copy in which the given layers use other policies.

        Parameters
        ----------
        policies
            Policy by layer number; replaces earlier entries for the same layers.
        """
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
        windows: Sequence[int | None] = (),
    ) -> int:
        """Return how many bytes the memories of all layers take; nothing is allocated.

        The count includes, per layer, the keys, the values and their bookkeeping (score,
        position, ...) for M entries; ``present="visible"`` adds room for one chunk (S entries, or
        N above the first layer if N is larger, because a flush passes N entries on at once). Each
        of the N waiting queries adds the query and its residual stream. Parameters, activations,
        the cache for generated tokens, the outputs of an encoder and what lies outside of the
        device are not included.

        Parameters
        ----------
        layers, kv_heads, head_dim, dtype, value_dim, batch
            Shape of the model; values are ``head_dim`` wide by default.
        heads, carry_dim
            Number of query heads (``kv_heads`` by default) and width of the residual stream
            (``heads * head_dim`` by default). Used only if queries wait.
        windows
            Sliding window of each layer, None where there is none; empty: no layer has one.

        Examples
        --------
        >>> import attendre_core as at
        >>> at.preset("MT:1024").nbytes(layers=12, kv_heads=8, head_dim=64)
        50516208
        """
        total = 0
        windows = windows or (None,) * layers
        sized = self.for_layers(windows)
        for layer, window in zip(range(layers), windows, strict=True):
            total += sized.kv_memory(layer, window).nbytes(
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


def _check_head_sizes(where: str, config: MemoryConfig) -> None:
    sizes = config.head_sizes
    if not isinstance(sizes, tuple) or not all(isinstance(each, tuple) and each for each in sizes):
        raise ConfigError(
            f"{where}: head_sizes is {sizes!r}, expected the sizes of all K/V heads for each "
            "layer, such as ((96, 32), (64, 64))."
        )
    if config.layer_sizes:
        raise ConfigError(f"{where}: layer_sizes and head_sizes are both given. Keep one of them.")
    if 0 < config.q_size >= min(map(min, sizes)):
        raise ConfigError(
            f"{where}: q_size is {config.q_size} and head_sizes has {min(map(min, sizes))}, "
            "expected more entries than queries wait for in every head."
        )


def _pyramid(config: MemoryConfig, layers: int) -> list[int]:
    """Return sizes that fall linearly and have the mean M; see `MemoryConfig.for_layers`."""
    size = config.kv_size
    sinks = max(config.sinks, config.policy.sinks)
    least = max(sinks + config.protect_recent, config.q_size + 1)
    if config.present == "compete":
        least = max(least, config.chunk)
    least = min(least, size)
    spread = size - least - (size - least) // _PYRAMID
    falls = [
        round(spread * (layers - 1 - 2 * layer) / max(layers - 1, 1))
        for layer in range(layers // 2)
    ]
    middle = [0] * (layers % 2)
    return [size + fall for fall in (*falls, *middle, *(-fall for fall in reversed(falls)))]
