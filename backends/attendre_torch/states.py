"""What PyTorch users do with a state: cut its graph, move it, copy it.

A state is nested tuples of tensors, as `init_state` or the last call returned it.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from attendre_core.tree import tree_leaves, tree_map

__all__ = ["detach", "writable"]

State = TypeVar("State")


def detach(state: State) -> State:
    """Cut a state off from the graph that made it: truncated back-propagation.

    Gradients of what is read later stop here. The numbers are shared, not copied.

    Examples
    --------
    >>> x = torch.ones(2, requires_grad=True)
    >>> detach((x * 2, None))[0].requires_grad
    False
    """
    detached: State = tree_map(torch.Tensor.detach, state)
    return detached


def writable(state: State) -> State:
    """Return a state that may be used here: what inference mode made is copied outside of it.

    PyTorch neither records gradients through tensors of inference mode nor writes into them
    elsewhere.
    """
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return state
    if not any(leaf.is_inference() for leaf in tree_leaves(state)):
        return state

    def copied(leaf: Tensor) -> Tensor:
        return leaf.clone() if leaf.is_inference() else leaf

    result: State = tree_map(copied, state)
    return result
