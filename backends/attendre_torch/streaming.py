"""A module that keeps its own state, for input that arrives over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attendre_core.errors import ConfigError, StateError
from attendre_core.tree import tree_leaves, tree_map
from attendre_torch.attention import AttendreAttention, AttentionOutput
from attendre_torch.states import detach, writable

__all__ = ["Streaming"]


class Streaming(nn.Module):  # type: ignore[misc]
    """`AttendreAttention` with its state inside: ``out = stream(x)``, chunk after chunk.

    The state is in non-persistent buffers: ``.to(device, dtype)`` moves it (scores stay float32),
    and ``state_dict`` leaves it out, so a checkpoint has only parameters. If no gradient is
    recorded, its memory is updated in place.

    Parameters
    ----------
    module
        The attention whose state to keep.
    batch
        Number of rows, to create the state now; None creates it in the first call.

    Examples
    --------
    >>> stream = Streaming(AttendreAttention(dim=32, heads=4, memory=16))
    >>> with torch.no_grad():
    ...     for _ in range(3):
    ...         out = stream(torch.randn(2, 8, 32))
    >>> out.shape, int(stream.state.kv.clock[0])
    (torch.Size([2, 8, 32]), 24)
    >>> stream.reset()
    >>> stream.state is None
    True
    """

    def __init__(self, module: AttendreAttention, batch: int | None = None) -> None:
        super().__init__()
        if not isinstance(module, AttendreAttention):
            raise ConfigError(
                f"Streaming: module is a {type(module).__name__}, expected an AttendreAttention. "
                "Pass states of other modules by hand."
            )
        self.module = module
        self._names: Any = None
        if batch is not None:
            self.state = module.init_state(batch)

    # ---------------------------------------------------------------- the state

    @property
    def state(self) -> Any:
        """The state as the module returned it; None before the first call. May be set."""
        if self._names is None:
            return None
        return tree_map(self._buffers.__getitem__, self._names)

    @state.setter
    def state(self, new: Any) -> None:
        names = None if new is None else _named("state", new)
        if names != self._names:
            for old in tree_leaves(self._names):
                del self._buffers[old]
            for name in tree_leaves(names):
                self.register_buffer(name, None, persistent=False)
            self._names = names
        for name, leaf in zip(tree_leaves(names), tree_leaves(new), strict=True):
            if torch.compiler.is_exporting() and self._buffers[name] is not None:
                self._buffers[name].copy_(leaf)  # an exported program only sees writes
            else:
                self._buffers[name] = leaf

    def reset(self, rows: Tensor | None = None) -> None:
        """Empty all rows, or those where ``rows``, boolean (batch,), is True."""
        if rows is None:
            self.state = None
        elif self._names is not None:
            self.state = self.module.reset(writable(self.state), rows)

    def detach(self) -> None:
        """Detach the state: gradients of later calls stop here."""
        if self._names is not None:
            self.state = detach(self.state)

    # ---------------------------------------------------------------- steps

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """Read one chunk; options as in `AttendreAttention.forward`, except ``donate``."""
        self._check_batch(x)
        state = self._usable()
        out, self.state = self.module(x, state, donate=_may_donate(state), **options)
        return out

    def step(self, x: Tensor, **options: Any) -> AttentionOutput:
        """Read one chunk and also return the outputs' positions; see `AttendreAttention.step`."""
        self._check_batch(x)
        state = self._usable()
        out, self.state = self.module.step(x, state, donate=_may_donate(state), **options)
        return out

    def flush(self) -> AttentionOutput:
        """Let all waiting queries attend: the last N positions, in order."""
        state = self._usable()
        if state is None:
            raise StateError("Streaming.flush: nothing was read yet. Call the module first.")
        out, self.state = self.module.flush(state)
        return out

    # ---------------------------------------------------------------- inside

    def _usable(self) -> Any:
        return None if self._names is None else writable(self.state)

    def _check_batch(self, x: Tensor) -> None:
        if self._names is None:
            return
        rows = self.state.kv.clock.shape[0]
        if x.shape[0] != rows:
            raise StateError(
                f"Streaming: x has {x.shape[0]} rows, but {rows} are being read. Call reset() "
                "before another batch."
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Streaming:
        """Move parameters and state; scores change device, but stay float32 or float64."""
        before = {name: self._buffers[name] for name in self._score_names()}
        super()._apply(fn, *args, **kwargs)
        for name, score in before.items():
            exact = score.dtype if score.dtype == torch.float64 else torch.float32
            self._buffers[name] = score.to(device=self._buffers[name].device, dtype=exact)
        return self

    def _score_names(self) -> list[str]:
        return [name for name in tree_leaves(self._names) if name.endswith("_score")]


def _may_donate(state: Any) -> bool:
    """Return whether no gradient needs the old values, neither now nor from before."""
    if torch.is_grad_enabled() or state is None:
        return False
    return not any(leaf.requires_grad for leaf in tree_leaves(state))


def _named(prefix: str, tree: Any) -> Any:
    """Return the same structure with a name in place of each tensor."""
    if tree is None:
        return None
    if isinstance(tree, Tensor):
        return prefix
    if isinstance(tree, dict):
        return {key: _named(f"{prefix}_{key}", part) for key, part in tree.items()}
    fields = getattr(tree, "_fields", range(len(tree)))
    parts = [_named(f"{prefix}_{field}", part) for field, part in zip(fields, tree, strict=True)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
