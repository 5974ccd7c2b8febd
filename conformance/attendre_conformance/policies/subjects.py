"""The policies under test: the one the user names, or all that ship with the core."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import attendre_core as at
from attendre_core.errors import ConfigError

#: Every policy of the core, each pool, score and option of it at least once.
SHIPPED: dict[str, Any] = {
    "fifo": at.FIFO(),
    "sink": at.AttentionSink(sinks=2),
    "lru": at.LRU(),
    "lfu": at.LFU(initial=at.ConstantScore(1.0)),
    "lra-last": at.LRA("last"),
    "lra-max-clip": at.LRA("max", score=at.Clip(-1.0, 1.0)),
    "lra-sum-softmax-hold": at.LRA("sum", at.QuotaScore(0.5), score="softmax", hold=True),
    "lra-mean": at.LRA("mean", heads="mean"),
    "lfa-0": at.LFA(0.0),
    "lfa-decay": at.LFA(0.0625, at.QuantileScore(0.25), heads="max"),
    "lfa-shift": at.LFA(1e-3, score=at.Shift("min"), start="replace", hold=True),
    "h2o": at.H2O(),
    "h2o-vlen": at.H2O(value_norm=True),
    "tova": at.TOVA(),
    "value-norm": at.ValueNorm(),
    "snapkv": at.SnapKV(window=2, kernel=3),
    "defensive": at.Defensive(window=2, value_norm=True),
    "defensive-output": at.Defensive(window=None, output_norm=True),
    "salience": at.Salience(),
    "dropkv": at.DropKV(window=2),
    "random": at.Random(seed=3),
    "knorm": at.Knorm(),
    "trams": at.TRAMS(),
    "keydiff": at.KeyDiff(),
    "leverage": at.Leverage(),
    "lagkv": at.LagKV(lag=3),
    "expected-attention": at.ExpectedAttention(),
    "nexus": at.Nexus(seed=5),
    "r-kv": at.RKV(window=2, kernel=3, share=0.5),
}
#: What some of them are given as ``policy_params``; streams have 4 heads of 4 dimensions.
PARAMS: dict[str, Any] = {
    "defensive-output": {
        "output": np.random.default_rng(0).standard_normal((4, 4, 3), dtype=np.float32)
    },
}


@dataclass(frozen=True)
class Subject:
    """A policy, and the arrays it is given as ``policy_params`` (NumPy), if it needs any."""

    name: str
    policy: Any
    params: Any = None

    def __repr__(self) -> str:
        return repr(self.policy)


def shipped() -> tuple[Subject, ...]:
    """Return all policies of the core."""
    return tuple(Subject(name, policy, PARAMS.get(name)) for name, policy in SHIPPED.items())


def load(path: str, folders: Iterable[Path] = ()) -> Subject:
    """Find a policy by ``module:attribute``.

    Parameters
    ----------
    path
        The attribute is a policy, a class of policies that needs no arguments, or a function
        that returns a policy or a pair (policy, policy_params).
    folders
        Where to look for the module besides the usual places.

    Raises
    ------
    ConfigError
        Says what is missing, and what to write instead.
    """
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(f"{path!r} is no module:Class, such as my_policies:MyPolicy.")
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"there is no module {error.name!r}. Looked in {', '.join(map(str, folders)) or '.'} "
            "and in the installed packages."
        ) from error
    except Exception as error:
        raise ConfigError(
            f"importing {module_name!r} failed with {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, attribute):
        found = [name for name, value in vars(module).items() if _is_policy(value, module_name)]
        raise ConfigError(
            f"module {module_name!r} has no {attribute!r}. "
            + (f"Its policies are {', '.join(found)}." if found else "It defines no policy.")
        )
    policy, params = _made(path, getattr(module, attribute)), None
    if isinstance(policy, tuple) and len(policy) == 2:
        policy, params = policy
    if not isinstance(policy, at.Policy):
        raise ConfigError(
            f"{path!r} gives a {type(policy).__name__}, expected an attendre_core.Policy. "
            "Write class MyPolicy(attendre_core.Policy) and name the class or an instance."
        )
    return Subject(path, policy, params)


def _made(path: str, found: Any) -> Any:
    """Call what makes a policy; a policy is returned as it is."""
    if not callable(found):
        return found
    try:
        return found()
    except TypeError as error:
        raise ConfigError(
            f"{path!r} cannot be called without arguments: {error}. Name an instance instead, "
            f"for example MY_POLICY = {path.partition(':')[2]}(...) in the same module."
        ) from error


def _is_policy(value: Any, module_name: str) -> bool:
    if isinstance(value, type):
        return issubclass(value, at.Policy) and value.__module__ == module_name
    return isinstance(value, at.Policy)
