"""A policy under observation: every call it gets from a memory, and what it answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import attendre_core as at
from attendre_core.backend import namespace_of


class Call(NamedTuple):
    """One call of a method of a policy.

    Attributes
    ----------
    method : str
        ``"enter"``, ``"observe"``, ``"soft_mask"``, ``"priority"``, ``"init"`` or ``"remember"``.
    ask : callable
        The method itself, of the policy under test.
    stored : Stored
        Its first argument.
    other : New, Attention or None
        Its second argument, if it has one.
    result : nested arrays or None
        What it returned.
    """

    method: str
    ask: Callable[..., Any]
    stored: Any
    other: Any
    result: Any

    def again(self, stored: Any = None, other: Any = None) -> Any:
        """Call the same method again, with the same arguments or with others."""
        stored = self.stored if stored is None else stored
        other = self.other if other is None else other
        return self.ask(stored) if other is None else self.ask(stored, other)

    @property
    def lead(self) -> tuple[int, ...]:
        """Shape of one score per row, (batch,) or (batch, kv_heads)."""
        return tuple(self.stored.score.shape[:-1])

    @property
    def matters(self) -> Any:
        """Boolean, for scores: which of them the memory will use; None = all."""
        if self.method == "observe":
            return self.stored.valid & self.other.seen
        if self.method == "priority":
            return self.stored.valid
        if self.method == "soft_mask":
            slots = self.stored.valid
            slots = slots if slots.ndim == 3 else slots[:, None, :]
            queries = self.other.valid[:, None, None, :, None]
            return slots[:, :, None, None, :] & queries
        if self.method == "enter" and tuple(self.result.shape) != self.lead:
            return self.other.valid
        return None


@dataclass(frozen=True)
class Watched(at.Policy):
    """A policy that answers as another one does, and keeps a list of its calls."""

    policy: Any
    calls: list[Call] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sinks", self.policy.sinks)
        if self.policy.soft_mask is not None:
            object.__setattr__(self, "soft_mask", partial(self._asked, "soft_mask"))

    def __getattr__(self, name: str) -> Any:
        # Options that a memory looks for, such as ``hold``.
        return getattr(self.policy, name)

    def _asked(self, method: str, stored: Any, other: Any = None) -> Any:
        ask = getattr(self.policy, method)
        result = ask(stored) if other is None else ask(stored, other)
        if method in ("enter", "observe", "priority"):
            self._check_shape(method, stored, other, result)
        self.calls.append(Call(method, ask, stored, other, result))
        return result

    def _check_shape(self, method: str, stored: Any, other: Any, result: Any) -> None:
        whole = tuple(stored.score.shape)
        allowed = [whole[:-1], tuple(other.valid.shape)] if method == "enter" else [whole, None]
        given = None if result is None else tuple(result.shape)
        assert given in allowed, (
            f"{self.policy!r}: {method} returned shape {given}, expected "
            f"{' or '.join(map(str, allowed))}. Law: enter gives one score per row or per new "
            "entry, observe and priority one per slot."
        )

    def init(self, stored: Any) -> Any:
        """Return what the policy under test returns."""
        return self._asked("init", stored)

    def enter(self, stored: Any, new: Any) -> Any:
        """Return what the policy under test returns."""
        return self._asked("enter", stored, new)

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return what the policy under test returns."""
        return self._asked("observe", stored, attention)

    def remember(self, stored: Any, attention: Any) -> Any:
        """Return what the policy under test returns."""
        return self._asked("remember", stored, attention)

    def priority(self, stored: Any) -> Any:
        """Return what the policy under test returns."""
        return self._asked("priority", stored)


class GarbledNew:
    """Arriving entries with garbage in the padding."""

    def __init__(self, inner: Any, number: float) -> None:
        self._inner, self._number = inner, number

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("key", "value", "position", "arrival", "pinned"):
            return garbled(found, self._inner.valid, self._number)
        return found


class GarbledAttention:
    """A view of queries with garbage wherever nothing is promised, and so are its views."""

    def __init__(self, inner: Any, filled: Any, number: float) -> None:
        self._inner, self._filled, self._number = inner, filled, number

    def __getattr__(self, name: str) -> Any:
        inner, found = self._inner, getattr(self._inner, name)
        if name == "logits":
            return namespace_of(found).where(inner.allowed, found, self._number)
        if name == "query":
            real = inner.valid[:, None, None, :, None]
            return namespace_of(found).where(real, found, self._number)
        if name in ("key", "value"):
            return garbled(found, self._filled, self._number)
        if name == "position":
            return garbled(found, inner.valid, self._number)
        if callable(found):
            return self._with_views(found)
        return found

    def _with_views(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            if isinstance(result, at.Attention):
                return GarbledAttention(result, self._filled, self._number)
            return result

        return call


def garbled(array: Any, real: Any, number: float) -> Any:
    """Put garbage where nothing is real; ``array`` may have axes for heads and features."""
    xp = namespace_of(array)
    if array.ndim == 4 and real.ndim == 2:
        real = real[:, None, :]
    if array.ndim == 4:
        real = real[..., None]
    if xp.isdtype(array.dtype, "bool"):
        return array | ~real
    if xp.isdtype(array.dtype, "integral"):
        return xp.where(real, array, xp.full_like(array, 12345))
    return xp.where(real, array, number)


def garbled_call(call: Call, number: float) -> Any:
    """Ask again with garbage in empty slots, padding and pairs that may not attend."""
    names = ("score", "position", "arrival", "pinned", "observed", "key", "value")
    stored = call.stored._replace(
        **{
            name: garbled(getattr(call.stored, name), call.stored.valid, number)
            for name in names
            if getattr(call.stored, name) is not None
        }
    )
    other = call.other
    if call.method == "enter":
        other = GarbledNew(other, number)
    elif other is not None:
        other = GarbledAttention(other, call.stored.valid, number)
    with np.errstate(all="ignore"):  # of the garbage itself
        return call.again(stored, other)
