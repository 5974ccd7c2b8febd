"""The nested parameters of a model as ``nn.Parameter``, for optimisers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

__all__ = ["Weights"]


class Weights(nn.Module):  # type: ignore[misc]
    """Nested dicts and lists of tensors as a tree of modules.

    Names are paths: ``layers.0.q``. A tensor that occurs several times becomes one parameter.
    Tensors are shared, not copied.

    Parameters
    ----------
    tree
        Dicts and lists of tensors.

    Examples
    --------
    >>> import torch
    >>> weights = Weights({"norm": torch.ones(2), "layers": [{"q": torch.zeros(2, 2)}]})
    >>> [name for name, _ in weights.named_parameters()]
    ['norm', 'layers.0.q']
    >>> sorted(weights.tree())
    ['layers', 'norm']
    """

    def __init__(self, tree: Any, _known: dict[int, nn.Parameter] | None = None) -> None:
        super().__init__()
        known = {} if _known is None else _known
        self._listed = isinstance(tree, list)
        #: Under which name each part is registered: ``type``, for example, is a module's method.
        self._names: dict[Any, str] = {}
        for name, part in enumerate(tree) if self._listed else tree.items():
            own = str(name)
            while hasattr(self, own):
                own += "_"
            self._names[name] = own
            if not isinstance(part, Tensor):
                self.add_module(own, Weights(part, known))
                continue
            if id(part) not in known:
                known[id(part)] = nn.Parameter(part, part.is_floating_point())
            self.register_parameter(own, known[id(part)])

    def tree(self) -> Any:
        """Return the current parameters in the original nesting."""
        parts = {}
        for name, own in self._names.items():
            part = self._modules.get(own)
            parts[name] = self._parameters[own] if part is None else part.tree()
        return list(parts.values()) if self._listed else parts
