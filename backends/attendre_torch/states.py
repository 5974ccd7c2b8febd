"""What PyTorch users do with a state: cut its graph, move it, copy it.

A state is nested tuples of tensors, as `init_state` or the last call returned it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from attendre_core.layer.records import LayerState
from attendre_core.memory.queue import DataOnlyState
from attendre_core.memory.state import KeyValueState
from attendre_core.tiers.state import TiersState, TierState
from attendre_core.tree import tree_leaves, tree_map
from attendre_core.written.memory import WrittenState

__all__ = ["detach", "make_known", "writable"]

State = TypeVar("State")


def make_known(*kinds: type) -> None:
    """Let PyTorch read and write named tuples: ``torch.load``, ``torch.export.save``.

    They hold nothing but tensors, so loading them is safe.
    """
    torch.serialization.add_safe_globals(list(kinds))
    # PyTorch's own message names this function, which has no public name yet.
    register: Any = getattr(torch.utils._pytree, "_register_namedtuple", None)
    if register is not None:
        for kind in kinds:
            register(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")


make_known(LayerState, KeyValueState, DataOnlyState, TiersState, TierState, WrittenState)


def detach(state: State) -> State:
    """Detach a state from the graph that made it, for truncated back-propagation.

    Gradients of what is read later stop here. The data is shared, not copied.

    Examples
    --------
    >>> x = torch.ones(2, requires_grad=True)
    >>> detach((x * 2, None))[0].requires_grad
    False
    """
    detached: State = tree_map(torch.Tensor.detach, state)
    return detached


def writable(state: State) -> State:
    """Return a state that can be used here: tensors made in inference mode are copied.

    Outside of inference mode, PyTorch neither records gradients through such tensors nor writes
    into them.
    """
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return state
    if not any(leaf.is_inference() for leaf in tree_leaves(state)):
        return state

    def copied(leaf: Tensor) -> Tensor:
        return leaf.clone() if leaf.is_inference() else leaf

    result: State = tree_map(copied, state)
    return result
