"""Systems by the words of the command line: a preset or a control, and what differs from it.

``LRA-sum+softmax+c=0+visible`` is the preset LRA-sum, scored by softmax weights, whose new entries
start at the mean score, and whose own chunk is attended to before it competes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from attendre_core.errors import ConfigError
from attendre_core.evaluation.systems import CONTROLS, System, system
from attendre_core.policies import Clip, InitialScore, Policy, QuantileScore, QuotaScore
from attendre_core.presets import PRESETS, MemoryConfig, preset

__all__ = ["system_of"]

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
    "in-cache": ("positions", "in-cache"),
    "model": ("positions", "model"),
    "clamp": ("positions", "clamp"),
}


def system_of(words: str, kv_size: int, q_size: int, chunk: int, top_k: int | None) -> System:
    """Make a system from a name and what differs from it.

    Parameters
    ----------
    words
        A preset, as it is or with options behind ``+``; or a control.
    kv_size, q_size, chunk, top_k
        M, N, S and K; K is M where M is smaller.

    Examples
    --------
    >>> system_of("LRA-sum+softmax+c=0", 256, 0, 128, 128).memory.policy.score
    'softmax'
    >>> system_of("LFA-1e-3", 256, 0, 128, None).memory.policy.initial
    InitialScore(sigmas=1.0)
    """
    name, *options = words.split("+") if "+" in words else [words]
    found = None if top_k is None else min(top_k, kv_size)
    if name in CONTROLS:
        if options:
            raise ConfigError(
                f"eval: {words!r} is a control with options, expected plain {name!r}."
            )
        return system(name, kv_size, q_size, chunk=chunk, top_k=found)
    try:
        memory = preset(name, kv_size, q_size, chunk, found)
    except ConfigError as error:
        if not str(error).startswith("preset:"):
            raise
        raise ConfigError(
            f"eval: the policy {name!r} is not known; known are {', '.join(PRESETS)}, "
            f"LFA-<decay>, and the controls {', '.join(CONTROLS)}. Options follow with +, as in "
            "LRA-sum+softmax+c=0."
        ) from error
    for option in options:
        memory = _with_option(words, memory, option)
    return System(words, memory)


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
        raise ConfigError(
            f"eval: {option!r} in {words!r} is not known. Options are "
            f"{', '.join([*_FIELDS, *_MEMORY, *(f'{name}=NUMBER' for name in _INITIAL)])}."
        ) from error
    return replace(memory, policy=_changed(words, memory.policy, "initial", initial))


def _changed(words: str, policy: Policy, name: str, value: Any) -> Policy:
    if name not in {field.name for field in fields(policy)}:
        raise ConfigError(
            f"eval: {words!r}: {type(policy).__name__} has no {name}, so this option means nothing "
            "to it. Leave it out."
        )
    return replace(policy, **{name: value})
