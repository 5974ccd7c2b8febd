"""From a `MemoryConfig` back to its canonical name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from attendre_core.errors import ConfigError
from attendre_core.policies import LFA
from attendre_core.presets.config import MemoryConfig
from attendre_core.presets.grammar import ParsedName
from attendre_core.presets.options import OPTIONS, option_of
from attendre_core.presets.systems import NAMES, PAPER_PRESETS, build, parse, settings_of

__all__ = ["canonical", "name_of"]

#: Settings besides the policy that make a system what it is.
_DEFINING = ("present", "per_head", "protect_recent", "sinks")
#: Sizes at which every setting that depends on the size differs.
_SIZES = (390, 8192)


def canonical(text: str, others: Sequence[str] = ()) -> str:
    """Return the canonical spelling of a name, whatever its size, for a table of several sizes.

    Parameters
    ----------
    text, others
        As in `parse`; a size in the text is left out.

    Examples
    --------
    >>> canonical("lra-sum+visible+c=0+softmax"), canonical("lfa-0+wait=half+c=1")
    ('attendre-causal', 'LFA-0+wait=half')
    """
    parsed = parse(text, others)._replace(size=None)
    if parsed.name in others:
        return str(parsed)
    names = set()
    for size in _SIZES:
        try:
            found = name_of(build(parsed, size)).removesuffix(f":{size}")
        except ConfigError:
            build(parsed, 2**31)  # What is wrong at every size is said.
            return str(parsed)
        names.add(f"{found}+".replace(f"+wait={size // 2}+", "+wait=half+").removesuffix("+"))
    return names.pop() if len(names) == 1 else str(parsed)


def name_of(config: MemoryConfig) -> str:
    """Return the full canonical name of a configuration; see `MemoryConfig.name`.

    A system of the paper is called by its name with as few options as possible; any other system
    only if its policy and what it protects are the same, and just sizes and the like differ.
    """
    plain = replace(config, layer_policies=())
    layers = "".join(f"+layer{i}={policy!r}" for i, policy in config.layer_policies)
    for parsed in sorted(_candidates(plain), key=_preference):
        try:
            if build(parsed, config.kv_size) == plain:
                return f"{parsed}{layers}:{config.kv_size}"
        except ConfigError:
            continue
    options = _differences(plain, {"policy": config.policy}) or ()
    return f"{'+'.join((repr(config.policy), *options))}{layers}:{config.kv_size}"


def _preference(parsed: ParsedName) -> tuple[bool, bool, int]:
    """Return what names are sorted by; of equals, the first in the order of `NAMES`."""
    changed = [option_of(text)[0].field for text in parsed.options]
    another = any(field.startswith("policy.") or field in _DEFINING for field in changed)
    paper = parsed.name.startswith("LFA-") or parsed.name in PAPER_PRESETS
    return ":" in parsed.name, another and not paper, len(parsed.options)


def _candidates(config: MemoryConfig) -> Iterator[ParsedName]:
    """Yield all names with the options that make up the difference."""
    kind = type(config.policy)
    names = [*NAMES, f"{kind.__module__}:{kind.__qualname__}"]
    if isinstance(config.policy, LFA):
        names.append(parse(f"LFA-{config.policy.decay!r}").name)
    for name in dict.fromkeys(names):
        try:
            base = settings_of(name, config.kv_size, config.chunk, None)
        except ConfigError:
            continue
        options = _differences(config, base)
        if options is not None:
            yield ParsedName(name, options)


def _differences(config: MemoryConfig, base: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the options that turn a system into a configuration; None if there are none."""
    if type(config.policy) is not type(base["policy"]):
        return None
    wanted: dict[str, Any] = {}
    for field in fields(config.policy):
        value = getattr(config.policy, field.name)
        if value != getattr(base["policy"], field.name):
            wanted["sinks" if field.name == "sinks" else f"policy.{field.name}"] = value
    for field in fields(MemoryConfig):
        if field.name not in ("policy", "kv_size", "layer_policies"):
            value = getattr(config, field.name)
            if value != base.get(field.name, field.default):
                wanted[field.name] = value
    found, said = [], set()
    for option in OPTIONS:
        for value in wanted.get("pin", ()) if option.field == "pin" else [wanted.get(option.field)]:
            text = option.text(value) if option.field in wanted else None
            if text is not None:
                found.append(text)
                said.add(option.field)
    return tuple(found) if said == set(wanted) else None
