"""The paper's systems by name, and the settings that make a model's memories."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.queue import DataOnlyMemory
from attendre_core.policies import (
    FIFO,
    H2O,
    LFA,
    LFU,
    LRA,
    LRU,
    TOVA,
    AttentionSink,
    InitialScore,
    Policy,
)

__all__ = ["OTHER_PRESETS", "OWN_PRESETS", "PAPER_PRESETS", "PRESETS", "MemoryConfig", "preset"]

#: The paper's systems by the paper's names.
PAPER_PRESETS = ("MT", "AS", "LRA-last", "LRA-max", "LRA-sum", "LFA-0", "LFA-1e-3", "LRU", "LFU")
#: Systems that others proposed, as far as memories of fixed size can express them.
OTHER_PRESETS = ("Transformer-XL", "Unlimiformer", "LM-Infinite", "H2O", "TOVA")
#: What this project recommends: for models that look both ways, and for causal ones.
OWN_PRESETS = ("attendre", "attendre-causal")
#: Names that `preset` knows; any LFA-<decay> is understood too.
PRESETS = (*PAPER_PRESETS, *OTHER_PRESETS, *OWN_PRESETS)

#: Sinks of LM-Infinite in its authors' runs, where the window has 2,048 or 4,096 places.
_GLOBAL = 100

_WORDS = {
    "present": ("compete", "visible"),
    "positions": ("clamp", "model", "in-cache"),
    "finish": ("drain", "flush"),
    "decode": ("separate", "inside"),
}


@dataclass(frozen=True)
class MemoryConfig:
    """The memories of all layers of a model.

    Parameters
    ----------
    policy
        Of the K/V memories.
    kv_size, q_size
        M and N: entries of the K/V memory and of the Q memory of a layer; N = 0 means no Q
        memory.
    chunk, top_k
        S and K: how much is read at a time, how many entries each query retrieves (None = all).
    present
        See `KeyValueMemory`.
    positions
        What rotary positions do beyond the length a model was trained on: ``"clamp"`` treats
        everything farther away as that far (LM-Infinite, the paper's choice), ``"model"`` goes
        on counting, ``"in-cache"`` counts what is stored instead (StreamingLLM).
    finish
        How waiting queries come out at the end of the input: ``"drain"`` or ``"flush"``.
    decode
        Where generated tokens go: ``"separate"``, a cache beside what was read, which then
        stays whole; or ``"inside"``, where they compete with it.
    encoder_outputs
        O: how many outputs of an encoder its decoder attends to.
    layers
        Policies of single layers that differ: ((layer, policy), ...).
    per_head, protect_recent
        See `KeyValueMemory`.
    cross_top_k
        How many outputs of the encoder each head of a decoder attends to at a time
        (Unlimiformer); None = all of them.

    Examples
    --------
    >>> config = preset("LFA-1e-3", kv_size=1024, q_size=512, chunk=128, top_k=128)
    >>> config.kv_memory(0).size, config.q_memory(0).size
    (1024, 512)
    >>> config.replace_layers({3: FIFO()}).kv_memory(3).policy
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
    layers: tuple[tuple[int, Policy], ...] = ()
    per_head: bool = False
    protect_recent: int = 0
    cross_top_k: int | None = None

    def __post_init__(self) -> None:
        where = "MemoryConfig"
        checks.whole_number(where, "kv_size", self.kv_size, least=1, hint="It counts entries.")
        checks.whole_number(where, "q_size", self.q_size, least=0, hint="0 means no Q memory.")
        checks.whole_number(where, "chunk", self.chunk, least=1, hint="It counts positions.")
        if self.q_size >= self.kv_size:
            raise ConfigError(
                f"{where}: q_size is {self.q_size} and kv_size {self.kv_size}, expected q_size < "
                "kv_size. A query that waits for N positions would find its own and all earlier "
                "keys evicted. Half of kv_size is a good choice."
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

    def policy_of(self, layer: int) -> Policy:
        """Return the policy of one layer."""
        return dict(self.layers).get(layer, self.policy)

    def kv_memory(self, layer: int = 0) -> KeyValueMemory:
        """Return the K/V memory of one layer."""
        return KeyValueMemory(
            size=self.kv_size,
            policy=self.policy_of(layer),
            present=self.present,
            per_head=self.per_head,
            protect_recent=self.protect_recent,
        )

    def q_memory(self, layer: int = 0) -> DataOnlyMemory | None:
        """Return the Q memory of one layer; None when N = 0."""
        return DataOnlyMemory(size=self.q_size) if self.q_size else None

    def replace_layers(self, policies: Mapping[int, Policy]) -> MemoryConfig:
        """Return a configuration in which some layers have policies of their own."""
        merged = {**dict(self.layers), **policies}
        return replace(self, layers=tuple(sorted(merged.items(), key=lambda item: item[0])))


def preset(
    name: str,
    kv_size: int,
    q_size: int | None = None,
    chunk: int = 128,
    top_k: int | None = None,
    *,
    sigmas: float | None = None,
) -> MemoryConfig:
    """Make the memories of a system by its name; capitals do not matter.

    Parameters
    ----------
    name
        Of the paper: ``"MT"`` (Memorizing Transformer: FIFO), ``"AS"`` (four attention sinks),
        ``"LRA-last"``, ``"LRA-max"``, ``"LRA-sum"``, ``"LFA-<decay>"`` such as ``"LFA-0"`` or
        ``"LFA-1e-3"``, ``"LRU"``, ``"LFU"``. Of others: ``"Transformer-XL"``,
        ``"Unlimiformer"``, ``"LM-Infinite"``, ``"H2O"``, ``"TOVA"``. Our own: ``"attendre"`` for
        models that look both ways, ``"attendre-causal"`` for those that do not.
    kv_size, q_size, chunk, top_k
        M, N, S and K. Without ``q_size`` there is no Q memory, but for ``"attendre"``: half of M.
    sigmas
        c of the initial score mu - c sigma, for policies that have one; None is 1 for those of
        the paper and what was chosen for our own.

    Examples
    --------
    >>> preset("AS", kv_size=256).policy
    AttentionSink(sinks=4)
    >>> preset("attendre", kv_size=256).q_size
    128
    """
    wanted = name.lower()
    config = MemoryConfig(FIFO(), kv_size, q_size or 0, chunk, top_k)
    if wanted == "attendre" and q_size is None:
        config = replace(config, q_size=kv_size // 2)
    settings = _settings(wanted, config, sigmas)
    if settings is None:
        raise ConfigError(
            f"preset: {name!r} is not known; known are {', '.join(PRESETS)} and LFA-<decay> for "
            "any decay, e.g. LFA-1e-4."
        )
    return replace(config, **settings)


def _settings(name: str, config: MemoryConfig, sigmas: float | None) -> dict[str, Any] | None:
    """Return in what a system differs from FIFO; None if there is no such name."""
    policy = _paper_policy(name, InitialScore(1.0 if sigmas is None else sigmas))
    if policy is not None:
        return {"policy": policy}
    size = config.kv_size
    some: dict[str, dict[str, Any]] = {
        "transformer-xl": {"present": "visible"},
        "unlimiformer": {"top_k": None, "cross_top_k": config.top_k or config.chunk},
        "lm-infinite": {
            "policy": AttentionSink(sinks=min(_GLOBAL, size // 4)),
            "present": "visible",
        },
        "h2o": {
            "policy": H2O(),
            "present": "visible",
            "per_head": True,
            "protect_recent": size // 2,
        },
        "tova": {"policy": TOVA(), "present": "visible"},
        "attendre": {
            "policy": LFA(
                decay=0.0, score="softmax", initial=InitialScore(-1.0 if sigmas is None else sigmas)
            ),
            "present": "visible",
        },
        "attendre-causal": {
            "policy": LRA(
                "sum", score="softmax", initial=InitialScore(0.0 if sigmas is None else sigmas)
            ),
            "present": "visible",
        },
    }
    return some.get(name)


def _paper_policy(name: str, initial: InitialScore) -> Policy | None:
    """Return a policy of the paper; None if there is no such name."""
    simple: dict[str, Policy] = {
        "mt": FIFO(),
        "as": AttentionSink(sinks=4),
        "lra-last": LRA(pool="last", initial=initial),
        "lra-max": LRA(pool="max", initial=initial),
        "lra-sum": LRA(pool="sum", initial=initial),
        "lru": LRU(initial=initial),
        "lfu": LFU(initial=initial),
    }
    if name in simple:
        return simple[name]
    match = re.fullmatch(r"lfa-([0-9.]+(?:e[-+]?[0-9]+)?)", name)
    try:
        return LFA(decay=float(match[1]), initial=initial) if match else None
    except ValueError:
        return None
