"""Stand-ins until the core and the presets are merged; then this file goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from attendre_core import presets
from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.policies import (
    Clip,
    InitialScore,
    Policy,
    QuantileScore,
    QuotaScore,
    RandomTies,
    Stored,
)

New = Any


@dataclass(frozen=True)
class Random(Policy):
    """Random sample."""

    seed: int = 0

    def enter(self, stored: Stored, count: Array) -> Array:
        """Return 0."""
        return namespace_of(stored.score).zeros_like(stored.score[..., 0])

    def priority(self, stored: Stored) -> Array:
        """Random."""
        xp = namespace_of(stored.score)
        return xp.astype(RandomTies(self.seed).order(stored.arrival), stored.score.dtype)


@dataclass(frozen=True)
class MemoryConfig(presets.MemoryConfig):
    """With pins and a name."""

    pin: tuple[tuple[int, int], ...] = ()

    def kv_memory(self, layer: int = 0) -> KeyValueMemory:
        """With pins."""
        return replace(super().kv_memory(layer), pin=self.pin)


_INITIAL: dict[str, Callable[[float], Any]] = {
    "c": InitialScore,
    "quota": QuotaScore,
    "quantile": QuantileScore,
}
_FIELDS: dict[str, tuple[str, Any]] = {
    "softmax": ("score", "softmax"),
    "logits": ("score", "logits"),
    "clip": ("score", Clip()),
    "hold": ("hold", True),
}
_MEMORY: dict[str, tuple[str, Any]] = {
    "visible": ("present", "visible"),
    "compete": ("present", "compete"),
    "per-head": ("per_head", True),
    "in-cache": ("positions", "in-cache"),
    "model": ("positions", "model"),
    "clamp": ("positions", "clamp"),
}


class Parsed(NamedTuple):
    """Parsed name."""

    name: str
    options: tuple[str, ...] = ()
    size: Any = None

    def __str__(self) -> str:
        return "+".join((self.name, *self.options))


def parse(text: str, others: Any = ()) -> Parsed:
    """Parse."""
    text, _, size = text.partition(":")
    name, *options = text.split("+")
    known = (*presets.PRESETS, "first-M", "random", *others)
    spelled = {p.lower(): p for p in known}.get(name.lower(), name)
    if spelled not in known and not spelled.lower().startswith("lfa-"):
        raise ConfigError(
            f"memory name {text!r}: {name!r} is not known, expected NAME[+option...][:size] with "
            f"one of {', '.join(known)}, any LFA-<decay>, or my_module:MyPolicy."
        )
    order = ["softmax", "logits", "clip", "hold", "c", "quota", "quantile", "seed", "visible"]
    options = [o.lower() for o in options]
    options.sort(key=lambda o: [*order, o.partition("=")[0]].index(o.partition("=")[0]))
    return Parsed(spelled, tuple(options), size or None)


@dataclass(frozen=True)
class FirstOnly(Policy):
    """First."""

    def enter(self, stored: Stored, count: Array) -> Array:
        """Return 0."""
        return namespace_of(stored.score).zeros_like(stored.score[..., 0])

    def priority(self, stored: Stored) -> Array:
        """Earlier."""
        xp = namespace_of(stored.score)
        return -xp.astype(stored.arrival, stored.score.dtype)


def preset(words: str, kv: int, q: int, chunk: int, top_k: int | None = None) -> MemoryConfig:
    """Parse."""
    name, *options = words.split("+") if "+" in words else [words]
    own = {"first-M": FirstOnly(), "random": Random()}
    base = presets.preset("MT" if name in own else name, kv, q, chunk, top_k)
    if name in own:
        base = replace(base, policy=own[name])
    memory = MemoryConfig(**{f.name: getattr(base, f.name) for f in fields(base)})
    for option in options:
        memory = _with_option(words, memory, option)
    return memory


def _with_option(words: str, memory: MemoryConfig, option: str) -> MemoryConfig:
    if option in _MEMORY:
        name, value = _MEMORY[option]
        return replace(memory, **{name: value})
    if option in _FIELDS:
        return replace(memory, policy=_changed(words, memory.policy, *_FIELDS[option]))
    kind, _, number = option.partition("=")
    try:
        initial = _INITIAL[kind](float(number))
    except (KeyError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"memory name {words!r}: the option {option!r} is not known.") from error
    return replace(memory, policy=_changed(words, memory.policy, "initial", initial))


def _changed(words: str, policy: Policy, name: str, value: Any) -> Policy:
    if name not in {field.name for field in fields(policy)}:
        raise ConfigError(f"preset: {words!r}: {type(policy).__name__} has no {name}.")
    return replace(policy, **{name: value})
