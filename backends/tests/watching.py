"""Watch what PyTorch does on the ``meta`` device, which stands for an accelerator.

A tensor there has no numbers: whoever reads one gets an error, and so does whoever mixes it with a
tensor of the CPU, unless that has no axes. `Watch` finds those too, and copies from the host.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parents[2]
OURS = (str(ROOT / "attendre_core"), str(ROOT / "backends" / "attendre_torch"))
#: Functions that make a tensor of numbers on the host. For ``meta`` they call nothing below.
MAKERS = {torch.tensor, torch.asarray, torch.as_tensor, torch.Tensor.new_tensor, torch.from_numpy}
INDEXING = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}


class Watch:
    """Note what touches the host inside a ``with`` block.

    Attributes
    ----------
    copied
        What was copied from the host, each as ``"function, file:line"``; the line is that of the
        adapter's caller if the adapter made the copy.
    elsewhere
        Operations with a tensor that is not on ``meta``.
    """

    def __init__(self) -> None:
        self.copied: list[str] = []
        self.elsewhere: list[str] = []
        self.copying = False
        self._modes = (_Functions(self), _Operations(self))

    def __enter__(self) -> Watch:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    @property
    def everything(self) -> list[str]:
        """All that was noted."""
        return self.copied + self.elsewhere


def _said(name: str) -> str:
    """Add the innermost line of the project to a name."""
    ours = [
        frame for frame in traceback.extract_stack()
        if frame.filename.startswith(OURS) and not frame.filename.endswith("adapter.py")
    ]  # fmt: skip
    if not ours:
        return name
    return f"{name}, {Path(ours[-1].filename).relative_to(ROOT)}:{ours[-1].lineno}"


def _on_host(part: Any) -> bool:
    """Whether a part of an index is a list or an array that is no tensor."""
    return isinstance(part, list) or (
        hasattr(part, "__array__") and not isinstance(part, torch.Tensor)
    )


class _Functions(TorchFunctionMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        host = function in MAKERS and not isinstance(args[-1], torch.Tensor)
        if function in INDEXING:
            host = any(map(_on_host, args[1] if isinstance(args[1], tuple) else (args[1],)))
        if not host:
            return function(*args, **(kwargs or {}))
        self.watch.copied.append(_said(function.__name__))
        self.watch.copying = True
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self.watch.copying = False


class _Operations(TorchDispatchMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        result = function(*args, **(kwargs or {}))
        for leaf in [] if self.watch.copying else tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                self.watch.elsewhere.append(_said(str(function)))
                break
        return result
