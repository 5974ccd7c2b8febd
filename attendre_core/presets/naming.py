"""Find the canonical name of a `MemoryConfig`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from attendre_core.errors import ConfigError
from attendre_core.policies import LFA
from attendre_core.presets.config import MemoryConfig, usual_chunk
from attendre_core.presets.grammar import ParsedName
from attendre_core.presets.options import OPTIONS, option_of
from attendre_core.presets.systems import (
    DEFINING,
    NAMES,
    PAPER_PRESETS,
    build,
    is_recommended,
    parse,
    settings_of,
)

__all__ = ["canonical", "name_of"]

#: Two sizes at which every setting that depends on the size differs.
_SIZES = (390, 8192)


def canonical(text: str, others: Sequence[str] = ()) -> str:
    """Return the canonical spelling of a name without its size, for tables of several sizes.

    Parameters
    ----------
    text, others
        As in `parse`; a size in the text is dropped.

    Examples
    --------
    >>> canonical("lra-sum+c=0+softmax"), canonical("lfa-0+wait=half+c=1")
    ('LRA-sum+softmax+c=0', 'LFA-0+wait=half')
    """
    parsed = parse(text, others)._replace(size=None)
    if parsed.name in others:
        return str(parsed)
    names = set()
    for size in _SIZES:
        try:
            name = name_of(build(parsed, size)).removesuffix(f":{size}")
        except ConfigError:
            build(parsed, 2**31 - 1)  # Raises the errors that do not depend on the size.
            return str(parsed)
        names.add(f"{name}+".replace(f"+wait={size // 2}+", "+wait=half+").removesuffix("+"))
    return names.pop() if len(names) == 1 else str(parsed)


def name_of(config: MemoryConfig) -> str:
    """Return the full canonical name of a configuration; see `MemoryConfig.name`.

    The name with the fewest options wins. Names of systems that are not the paper's are preferred
    only if no option changes their policy or their `DEFINING` settings.
    """
    plain = replace(config, layer_policies=(), head_sizes=())
    layers = "".join(f"+layer{i}={policy!r}" for i, policy in config.layer_policies)
    if config.head_sizes:
        layers += f"+head_sizes={config.head_sizes}"
    for parsed in sorted(_candidates(plain), key=_preference):
        try:
            if build(parsed, config.kv_size) == plain:
                return f"{parsed}{layers}:{config.kv_size}"
        except ConfigError:
            continue
    base = {"policy": config.policy, "tiers": config.tiers, "host": config.host}
    options = _differences(plain, base) or ()
    layers += f"+tiers={config.tiers!r}" if config.tiers else ""
    layers += f"+host={config.host!r}" if config.host else ""
    return f"{'+'.join((repr(config.policy), *options))}{layers}:{config.kv_size}"


def _preference(parsed: ParsedName) -> tuple[bool, bool, int]:
    """Return the sort key of a candidate name; ties keep the order of `NAMES`."""
    changed = [option_of(text)[0].field for text in parsed.options]
    redefined = any(field.startswith("policy.") or field in DEFINING for field in changed)
    paper = parsed.name.startswith("LFA-") or parsed.name in PAPER_PRESETS
    return ":" in parsed.name, redefined and not paper, len(parsed.options)


def _candidates(config: MemoryConfig) -> Iterator[ParsedName]:
    """Yield every name whose options can express the configuration."""
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
    """Return the options that turn a system into ``config``; None if options cannot do it."""
    if type(config.policy) is not type(base["policy"]):
        return None
    wanted: dict[str, Any] = {}
    for field in fields(config.policy):
        value = getattr(config.policy, field.name)
        if value != getattr(base["policy"], field.name):
            wanted["sinks" if field.name == "sinks" else f"policy.{field.name}"] = value
    for field in fields(MemoryConfig):
        if field.name not in ("policy", "kv_size", "layer_policies", "adapt"):
            value = getattr(config, field.name)
            default = usual_chunk(config.kv_size) if field.name == "chunk" else field.default
            if value != base.get(field.name, default):
                wanted[field.name] = value
    if config.adapt != is_recommended(config):
        wanted["adapt"] = config.adapt
    texts, covered = [], set()
    for option in OPTIONS:
        for value in wanted.get("pin", ()) if option.field == "pin" else [wanted.get(option.field)]:
            text = option.text(value) if option.field in wanted else None
            if text is not None:
                texts.append(text)
                covered.add(option.field)
    return tuple(texts) if covered == set(wanted) else None
