"""Heads that are spread over several processes: the op in which their scores meet.

::

    process 0, heads 0-3   scores (batch, slots) ─┐
    process 1, heads 4-7   scores (batch, slots) ─┴─► all-reduce ─► the same scores, the same slots
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attendre_core.backend import generic_only
from attendre_core.errors import ConfigError
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.state import KeyValueState
from attendre_core.ops.heads import over_heads as _pooled
from attendre_core.policies import Policy
from attendre_core.tiers.state import TiersState
from attendre_core.tiers.tiers import Tiers
from attendre_torch.constants import constant_in_traces

__all__ = ["HeadGroup", "check_agreement", "current_group", "head_group", "over_heads"]


@dataclass(frozen=True)
class HeadGroup:
    """The processes that together hold the heads of a layer, as many heads each.

    Attributes
    ----------
    name
        Of the process group.
    size, rank
        Number of processes, and which of them this is.
    """

    name: str
    size: int
    rank: int

    @classmethod
    def of(cls, group: Any) -> HeadGroup:
        """Take a one-dimensional ``DeviceMesh`` or a ``ProcessGroup``."""
        from torch.distributed import ProcessGroup
        from torch.distributed.device_mesh import DeviceMesh

        if isinstance(group, HeadGroup):
            return group
        if isinstance(group, DeviceMesh) and group.ndim == 1:
            group = group.get_group()
        if not isinstance(group, ProcessGroup):
            shown = f"a DeviceMesh of {group.ndim} dimensions" if hasattr(group, "ndim") else group
            raise ConfigError(
                f"head_group: heads are to be spread over {shown}, expected a DeviceMesh of one "
                'dimension, such as mesh["tp"], or a process group.'
            )
        return cls(group.group_name, group.size(), group.rank())

    def reduced(self, x: Tensor, how: str) -> Tensor:
        """Return the ``"sum"`` or ``"max"`` over the processes, the same bits on each of them."""
        return all_reduced(x, how, self.name)


def all_reduced(x: Tensor, how: str, name: str) -> Tensor:
    """Return the ``"sum"`` or ``"max"`` over the processes of a group."""
    from torch.distributed import _functional_collectives as functional

    found: Tensor = functional.wait_tensor(functional.all_reduce(x.contiguous(), how, name))
    return found


_GROUP: ContextVar[HeadGroup | None] = ContextVar("head_group", default=None)
#: Dynamo cannot trace context variables, but it can trace a list that is as it was at the end.
_TRACED: list[HeadGroup] = []


def current_group() -> HeadGroup | None:
    """Return the group of the `head_group` around this call."""
    return _GROUP.get()


@constant_in_traces
def _name_and_size() -> tuple[str, int]:
    """Return those of the group around this call, or around the trace; no name if there is none."""
    group = _GROUP.get()
    return ("", 1) if group is None else (group.name, group.size)


@contextmanager
def head_group(group: Any) -> Iterator[None]:
    """Combine the scores of heads over processes, for what runs inside a ``with`` block.

    A memory in this block holds some of the heads, as many as in the other processes. All
    processes must keep the same entries, so the scores of their heads are combined before anything
    is ranked: one all-reduce of (batch, slots) numbers per step, and nothing else. With
    ``per_head=True`` each K/V head decides for itself, and nothing is exchanged.
    `AttendreAttention` and `TrainableModel` do this by themselves once their heads are spread
    (`shard_heads`). It applies to this thread or task only; functions that were compiled outside
    of the block, except by `compiled_step`, are not affected.

    Parameters
    ----------
    group
        A ``DeviceMesh`` of one dimension, or a process group; None changes nothing.

    Examples
    --------
    One process that holds all heads, which is a group of its own:

    >>> import torch.distributed as dist
    >>> import attendre_core as at
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> layer = at.AttendreLayer(at.KeyValueMemory(8, at.LFA()))
    >>> chunk = at.Chunk(*torch.ones(3, 1, 4, 2, 16))
    >>> with head_group(dist.group.WORLD):
    ...     state, out = layer.step(layer.init(like=chunk), chunk)
    >>> out.value.shape
    torch.Size([1, 4, 2, 16])
    >>> dist.destroy_process_group()
    """
    if group is None:
        yield
        return
    if generic_only():
        raise ConfigError(
            "head_group: heads are spread over processes, but force_generic() turns off the "
            "kernel that combines their scores. Compare in one process."
        )
    own = HeadGroup.of(group)
    if torch.compiler.is_compiling():
        _TRACED.append(own)
        try:
            yield
        finally:
            _TRACED.pop()
    else:
        token = _GROUP.set(own)
        try:
            yield
        finally:
            _GROUP.reset(token)


def over_heads(x: Tensor, how: str = "sum", *, per_head: bool = False) -> Any:
    """Combine the heads of this process, then, in a `head_group`, those of all processes."""
    if torch.compiler.is_compiling() and _TRACED:
        name, size = _TRACED[-1].name, _TRACED[-1].size
    else:
        name, size = _name_and_size()
    if not name or per_head:
        return NotImplemented
    plain: Any = _pooled.plain  # type: ignore[attr-defined]
    own = plain(x, how)
    if how == "any":
        return all_reduced(own.to(torch.uint8), "max", name) != 0
    if how == "mean":
        return all_reduced(own, "sum", name) / size
    return all_reduced(own, how, name)


def check_agreement(
    group: HeadGroup | None, memory: KeyValueMemory | Tiers, state: KeyValueState | TiersState
) -> None:
    """Raise if processes with heads of one memory hold different entries or scores.

    The policies of this package combine heads in one place, so only others are checked, in eager
    code, by one more all-reduce per step.

    Raises
    ------
    ConfigError
        On all processes alike.
    """
    memories = memory.memories if isinstance(memory, Tiers) else (memory,)
    unknown = [one.policy for one in memories if not _is_known(one.policy)]
    if group is None or memory.per_head or torch.compiler.is_compiling() or not unknown:
        return
    bits = state.score.detach().to(torch.float32).contiguous().view(torch.int32)
    own = bits.to(torch.int64) * 2**32 + (state.arrival.to(torch.int64) + 2**31)
    highest, lowest = group.reduced(torch.stack([own, ~own]), "max")
    if bool((highest != ~lowest).any()):
        raise ConfigError(
            f"{type(unknown[0]).__name__}: the {group.size} processes that share the heads of a "
            "memory do not agree on its scores, so they would keep different entries. A policy "
            "must see all heads: pool with attention.pool, sum_logits or used_by_query, or with "
            "attendre_core.ops.over_heads, and compute enter and priority from what is the same "
            "on all heads. Or decide per head: KeyValueMemory(..., per_head=True)."
        )


def _is_known(policy: Policy) -> bool:
    """Whether a policy is of this package, and so is its rule for new entries."""
    rules = (policy, getattr(policy, "initial", policy))
    return all(type(x).__module__.startswith("attendre_core.policies.") for x in rules)
