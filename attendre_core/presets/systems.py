"""The known systems, and how a name becomes a `MemoryConfig`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from attendre_core.errors import ConfigError
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.policies import (
    FIFO,
    H2O,
    LFA,
    LFU,
    LRA,
    LRU,
    RKV,
    TOVA,
    TRAMS,
    AttentionSink,
    Defensive,
    DropKV,
    ExpectedAttention,
    InitialScore,
    KeyDiff,
    Knorm,
    LagKV,
    Leverage,
    Nexus,
    Policy,
    Random,
    Salience,
    SnapKV,
    ValueNorm,
)
from attendre_core.presets.config import MemoryConfig, usual_chunk
from attendre_core.presets.grammar import ParsedName, split_name
from attendre_core.presets.options import option_of
from attendre_core.tiers.compress import MeanPool
from attendre_core.tiers.spec import Tier

__all__ = [
    "CONTROL_PRESETS",
    "KEY_PRESETS",
    "NAMES",
    "OTHER_PRESETS",
    "OWN_PRESETS",
    "PAPER_PRESETS",
    "PRESETS",
    "SCORE_PRESETS",
    "TIER_PRESETS",
    "build",
    "is_recommended",
    "parse",
    "preset",
    "settings_of",
]

#: The paper's systems by the paper's names.
PAPER_PRESETS = ("MT", "AS", "LRA-last", "LRA-max", "LRA-sum", "LFA-0", "LFA-1e-3", "LRU", "LFU")
#: Systems from other papers, as far as memories of fixed size can express them.
OTHER_PRESETS = ("Transformer-XL", "Unlimiformer", "LM-Infinite", "H2O", "TOVA")
#: Systems of several memories, of which each receives what the one before it evicts.
TIER_PRESETS = ("Compressive-Transformer",)
#: Published scores, each in a complete system: those that read weights and values, ...
SCORE_PRESETS = ("H2O-vlen", "SnapKV", "Defensive", "DropKV", "ValueNorm")
#: ... and those that read keys, values or queries.
KEY_PRESETS = (
    "Knorm", "KeyDiff", "LagKV", "R-KV", "Leverage", "ExpectedAttention", "TRAMS", "Nexus",
)  # fmt: skip
#: Recommended by this project: for models that look both ways, and for causal ones.
OWN_PRESETS = ("attendre", "attendre-causal")
#: Names of complete systems; `preset` also accepts any LFA-<decay>.
PRESETS = (
    *PAPER_PRESETS, *OTHER_PRESETS, *TIER_PRESETS, *SCORE_PRESETS, *KEY_PRESETS, *OWN_PRESETS,
)  # fmt: skip
#: Memories that a policy has to beat: the first M entries, and a random sample of all entries.
CONTROL_PRESETS = ("first-M", "random")
#: Everything that a name can begin with, except LFA-<decay> and module:Class.
NAMES = (*PRESETS, "LRA-mean", *CONTROL_PRESETS)
#: Sinks of LM-Infinite in its authors' runs, with windows of 2,048 or 4,096 positions.
_LM_INFINITE_SINKS = 100
#: Settings that, besides the policy, define a system.
DEFINING = frozenset({"present", "per_head", "protect_recent", "sinks", "tiers", "host"})


def parse(text: str, others: Sequence[str] = ()) -> ParsedName:
    """Split a memory name into its parts, in canonical spelling.

    Parameters
    ----------
    text
        ``NAME[+option...][:size]``.
    others
        More names to accept; the caller gives them a meaning.

    Examples
    --------
    >>> str(parse("lfa-0.001+WAIT=8:64"))
    'LFA-1e-3+wait=8:64'
    """
    return split_name(text, (*NAMES, *others))


def preset(
    name: str,
    kv_size: int | None = None,
    q_size: int | None = None,
    chunk: int | None = None,
    top_k: int | None = None,
    *,
    sigmas: float | None = None,
) -> MemoryConfig:
    """Make the memories of a system from its name, ``NAME[+option...][:size]``.

    Parameters
    ----------
    name
        From the paper: ``"MT"`` (Memorizing Transformer: FIFO), ``"AS"`` (four attention sinks),
        ``"LRA-last"``, ``"LRA-max"``, ``"LRA-sum"``, ``"LFA-<decay>"`` such as ``"LFA-0"`` or
        ``"LFA-1e-3"``, ``"LRU"``, ``"LFU"``, all with c = 1. From other papers:
        ``"Transformer-XL"``, ``"Compressive-Transformer"`` (half of the entries are the mean of
        four each), ``"Unlimiformer"``, ``"LM-Infinite"``, ``"H2O"``, ``"TOVA"``,
        ``"H2O-vlen"``, ``"SnapKV"``, ``"Defensive"``, ``"DropKV"``, ``"ValueNorm"``,
        ``"Knorm"``, ``"KeyDiff"``, ``"LagKV"``, ``"R-KV"``, ``"Leverage"``,
        ``"ExpectedAttention"``, ``"TRAMS"``, ``"Nexus"``.
        Recommended: ``"attendre"`` for models that look both ways, ``"attendre-causal"`` for
        causal ones. Controls: ``"first-M"``, ``"random"``. Your own policy:
        ``"my_module:MyPolicy"``, which is imported and called without arguments; only there does
        case matter. Options such as ``+softmax``, ``+c=0``, ``+visible`` change a system;
        `OPTIONS` lists them.
    kv_size, q_size, chunk, top_k
        M, N, S and K: the same as ``:M``, ``+wait=N``, ``+chunk=S`` and ``+k=K`` in the name.
        Without N there is no Q memory, except in ``"attendre"``, where N is half of M. Without S,
        chunks have 128 positions, or M if that is less.
    sigmas
        c of the initial score mu - c sigma: the same as ``+c=``.

    Examples
    --------
    >>> preset("AS", kv_size=256).policy
    AttentionSink(sinks=4)
    >>> preset("attendre:256").q_size, preset("attendre:256").chunk, preset("attendre:64").chunk
    (128, 128, 64)
    >>> preset("lfa-0+softmax+c=-1+visible+wait=half:512").name
    'attendre:512'
    """
    parsed = parse(name)
    if isinstance(parsed.size, str):
        raise ConfigError(
            f"memory name {name!r}: how many entries {parsed.size} hold depends on the model. Use "
            f"at.load(path, memory={str(parsed)!r}), or give entries, as in "
            f"{str(parsed._replace(size=1024))!r}."
        )
    size = kv_size if parsed.size is None else parsed.size
    if kv_size is not None and kv_size != size:
        raise _disagreement(name, f":{size}", f"kv_size={kv_size}")
    if size is None:
        raise ConfigError(
            f"memory name {name!r}: the size is missing, expected {str(parsed) + ':1024'!r} or "
            "kv_size=1024 (entries per layer)."
        )
    return build(parsed, size, q_size, chunk, top_k, sigmas)


def build(
    parsed: ParsedName,
    size: int,
    q_size: int | None = None,
    chunk: int | None = None,
    top_k: int | None = None,
    sigmas: float | None = None,
) -> MemoryConfig:
    """Make the memories of a parsed name, with ``size`` entries per layer.

    The other arguments are those of `preset`; the size in the name is ignored.
    """
    text = str(parsed)
    given: dict[str, Any] = {}
    words: dict[str, str] = {}
    for word in parsed.options:
        option, value = option_of(word)
        if option.field == "pin":
            value = (*given.get("pin", ()), value)
        given[option.field] = size // 2 if value == "half" else value
        words[option.field] = f"+{word}"
    arguments: dict[str, tuple[str, Any]] = {
        "q_size": (f"q_size={q_size}", q_size),
        "chunk": (f"chunk={chunk}", chunk),
        "top_k": (f"top_k={top_k}", top_k),
        "policy.initial": (f"sigmas={sigmas}", None if sigmas is None else InitialScore(sigmas)),
    }
    for field, (argument, value) in arguments.items():
        if value is not None:
            if given.setdefault(field, value) != value:
                raise _disagreement(text, words[field], argument)
            words.setdefault(field, argument)
    read = given.setdefault("chunk", usual_chunk(size))
    settings = settings_of(parsed.name, size, read, given.pop("top_k", None))
    policy = settings.pop("policy")
    names = _fields(policy)
    if "sinks" in given and "sinks" in names:
        given["policy.sinks"] = given.pop("sinks")
    changes = {}
    for field in [field for field in given if field.startswith("policy.")]:
        attribute = field.removeprefix("policy.")
        if attribute not in names:
            kinds = (LRA, LFA, LRU, LFU, Random, SnapKV, Defensive, DropKV, RKV)
            some = [kind.__name__ for kind in kinds if attribute in _fields(kind)]
            raise ConfigError(
                f"memory name {text!r}: {words[field]} does not apply to {type(policy).__name__}, "
                f"which has no {attribute!r}; {', '.join(some)} do. Leave it out."
            )
        changes[attribute] = given.pop(field)
    config = MemoryConfig(replace(policy, **changes), size, **{**settings, **given})
    return config if "adapt" in given else replace(config, adapt=is_recommended(config))


def is_recommended(config: MemoryConfig) -> bool:
    """Whether a configuration has the policy of a recommended system and all that defines it.

    Names of such systems adapt to the model. Whoever changes one of them means the change.
    """
    return any(_defines(config, name) for name in OWN_PRESETS)


def _defines(config: MemoryConfig, name: str) -> bool:
    settings = settings_of(name, config.kv_size, config.chunk, None)
    defaults = {field.name: field.default for field in fields(MemoryConfig)}
    return config.policy == settings["policy"] and all(
        getattr(config, field) == settings.get(field, defaults[field]) for field in DEFINING
    )


def _fields(policy: Policy | type[Policy]) -> set[str]:
    return {field.name for field in fields(policy)}


def _disagreement(text: str, said: str, argument: str) -> ConfigError:
    return ConfigError(
        f"memory name {text!r}: the name says {said}, but {argument} is also given. Keep one of "
        "them."
    )


def settings_of(name: str, size: int, chunk: int, top_k: int | None) -> dict[str, Any]:
    """Return the settings of a system that differ from `MemoryConfig`'s defaults, and its policy.

    ``size``, ``chunk`` and ``top_k`` are those of the memory, for settings that depend on them.
    """
    plain: dict[str, Any] = {"top_k": top_k}
    # Published for whole prompts, whose last queries and first entries are kept.
    guarded: dict[str, Any] = {
        "present": "visible", "sinks": 4, "protect_recent": min(32, size // 16),
    }  # fmt: skip
    each: dict[str, Any] = {"present": "visible", "per_head": True}
    quarter = size // 4
    systems: dict[str, dict[str, Any]] = {
        "MT": {"policy": FIFO()},
        "AS": {"policy": AttentionSink(sinks=4)},
        "LRU": {"policy": LRU()},
        "LFU": {"policy": LFU()},
        "Transformer-XL": {"policy": FIFO(), "present": "visible"},
        "Compressive-Transformer": {
            "policy": FIFO(), "present": "visible",
            "tiers": (Tier(KeyValueMemory(max(size // 2, 1)), MeanPool(4)),),
        },
        # K belongs to the attention from decoder to encoder.
        "Unlimiformer": {"policy": FIFO(), "top_k": None, "cross_top_k": top_k or chunk},
        "LM-Infinite": {
            "policy": AttentionSink(sinks=min(_LM_INFINITE_SINKS, size // 4)), "present": "visible",
        },
        "H2O": {
            "policy": H2O(), "present": "visible", "per_head": True, "protect_recent": size // 2,
        },
        "TOVA": {"policy": TOVA(), "present": "visible"},
        "H2O-vlen": {
            "policy": H2O(value_norm=True),
            "present": "visible", "per_head": True, "protect_recent": size // 2,
        },
        "SnapKV": {"policy": SnapKV(), "per_head": True, **guarded},
        "Defensive": {"policy": Defensive(value_norm=True), "per_head": True, **guarded},
        "DropKV": {"policy": DropKV(), "per_head": True, **guarded},
        "ValueNorm": {"policy": ValueNorm(), **guarded},
        "Knorm": {"policy": Knorm(), **each},
        "KeyDiff": {"policy": KeyDiff(), **each},
        "LagKV": {
            "policy": LagKV(lag=max(1, min(128, quarter))), "sinks": min(16, quarter), **each,
        },
        "R-KV": {"policy": RKV(), "protect_recent": min(8, quarter), **each},
        "Leverage": {
            "policy": Leverage(), "sinks": min(8, quarter), "protect_recent": min(4, quarter),
            **each,
        },
        "ExpectedAttention": {"policy": ExpectedAttention(), "sinks": min(4, quarter), **each},
        "TRAMS": {"policy": TRAMS(), **each},
        "Nexus": {"policy": Nexus(), "present": "visible"},
        "attendre": {
            "policy": LFA(decay=0.0, initial=InitialScore(-1.0), score="softmax"),
            "present": "visible", "q_size": size // 2,
        },
        "attendre-causal": {
            "policy": Salience(), "present": "visible", "per_head": True,
            "sinks": min(4, size // 4), "protect_recent": size // 4,
        },
        "first-M": {"policy": FIFO(), "sinks": size},
        "random": {"policy": Random()},
    }  # fmt: skip
    if name in systems:
        return {**plain, **systems[name]}
    if name.startswith("LRA-"):
        return {**plain, "policy": LRA(pool=name.removeprefix("LRA-"))}  # type: ignore[arg-type]
    if name.startswith("LFA-"):
        return {**plain, "policy": LFA(decay=float(name.removeprefix("LFA-")))}
    return {**plain, "policy": _imported(name)}


def _imported(path: str) -> Policy:
    """Import ``module:Class`` and return an instance."""
    module, _, name = path.partition(":")
    where = f"policy {path!r}"
    try:
        target: Any = importlib.import_module(module)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "") in module
        raise ConfigError(
            f"{where}: there is no module {module}. It has to be importable: installed, on "
            "PYTHONPATH, or, for commands, in the current folder."
            if missing
            else f"{where}: importing {module} failed with {type(error).__name__}: {error}"
        ) from error
    try:
        for part in name.split("."):
            target = getattr(target, part)
    except AttributeError as error:
        raise ConfigError(
            f"{where}: the module {module} has no {name}. Check the spelling; case matters here."
        ) from error
    if not (isinstance(target, type) and issubclass(target, Policy)):
        raise ConfigError(f"{where}: {name} is {target!r}, expected a subclass of at.Policy.")
    try:
        return target()
    except Exception as error:
        raise ConfigError(
            f"{where}: {name}() failed with {type(error).__name__}: {error}. Every parameter needs "
            "a default; in Python, at.MemoryConfig(policy, kv_size) takes any instance."
        ) from error
