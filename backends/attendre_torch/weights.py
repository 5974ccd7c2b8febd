"""The nested parameters of a model as modules, for optimisers and adapters."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from attendre_core.tree import tree_map
from attendre_torch.fsdp import is_sharded

__all__ = ["LayerWeights", "Weights"]

#: Linear maps, by the names that architectures give them; "cross_" may come before.
_MAPS = (
    "q", "k", "v", "qkv", "out", "up", "gate", "down", "head", "dense", "project", "distance_q",
    "distance_k",
)  # fmt: skip


class Weights(nn.Module):  # type: ignore[misc]
    """Nested dicts and lists of tensors as a tree of modules.

    Names are paths, such as ``layers.0.q``. A linear map is an ``nn.Linear``, which holds its bias
    too and may be replaced by another module, as peft does; everything else is a parameter. A
    tensor that occurs several times is registered where it occurs first. Tensors are shared, not
    copied.

    Parameters
    ----------
    tree
        Dicts and lists of tensors.

    Examples
    --------
    >>> import torch
    >>> weights = Weights({"norm": torch.ones(2), "layers": [{"q": torch.zeros(2, 2)}]})
    >>> [name for name, _ in weights.named_parameters()]
    ['norm', 'layers.0.q.weight']
    >>> weights.tree()["layers"][0]["q"]
    Linear(in_features=2, out_features=2, bias=False)
    """

    def __init__(self, tree: Any) -> None:
        super().__init__()
        #: ``tree`` with paths in place of tensors; ``layers.0.q:bias`` belongs to a linear map.
        self._paths = _registered(self, "", tree, {})

    def tree(self) -> Any:
        """Return parameters and linear maps in the original nesting; biases of maps are None."""
        return self._found(self._paths)

    def layers_of(self, part: str | None = None) -> list[LayerWeights]:
        """Return the layers of a part, such as ``"encoder"``; None = the model is one part."""
        paths = self._paths if part is None else self._paths[part]
        at = "layers" if part is None else f"{part}.layers"
        return [
            LayerWeights(self, self.get_submodule(f"{at}.{number}"), layer)
            for number, layer in enumerate(paths["layers"])
        ]

    def _found(self, paths: Any) -> Any:
        def found(path: str) -> Any:
            return None if path.endswith(":bias") else self._at(path)

        return tree_map(found, paths)

    def tensors(self) -> Any:
        """Return plain tensors in the original nesting.

        They are shared, except for those of maps with an adapter, which are merged copies.
        """
        merged: dict[str, Any] = {}

        def found(path: str) -> Tensor:
            path, _, name = path.partition(":")
            part = merged[path] if path in merged else self._at(path)
            if not isinstance(part, nn.Module):
                return part
            merged[path] = _merged(part)
            return getattr(merged[path], name or "weight")

        return tree_map(found, self._paths)

    def _at(self, path: str) -> Any:
        home, _, name = path.rpartition(".")
        return getattr(self.get_submodule(home), name)


class LayerWeights:
    """The weights of one layer, looked up when they are used.

    What a layer computes goes through `run`, and so through hooks on its module: ``fully_shard``
    of ``weights.layers.0`` gathers the weights of this layer just for that time.
    """

    def __init__(self, weights: Weights, home: nn.Module, paths: Any) -> None:
        self._weights, self._home, self._paths = weights, home, paths

    def tree(self) -> dict[str, Any]:
        """Return parameters and linear maps by name, as `Weights.tree` does."""
        found: dict[str, Any] = self._weights._found(self._paths)
        return found

    def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function as the ``forward`` of this layer's module."""
        if not is_sharded(self._home):
            return self._home(function, *args, **kwargs)
        with warnings.catch_warnings():
            # States are views. Nothing writes into them while gradients are recorded.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
            return self._home(function, *args, **kwargs)


class _Home(nn.Module):  # type: ignore[misc]
    """Holds parameters and further modules; its forward calls a function."""

    def forward(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


def _registered(home: nn.Module, path: str, tree: Any, known: dict[Any, str]) -> Any:
    """Register the tensors of a tree below ``home``, and return their paths."""
    if isinstance(tree, list):
        return list(_registered(home, path, dict(enumerate(tree)), known).values())
    paths: dict[Any, Any] = dict.fromkeys(tree)
    for name in sorted(tree, key=lambda name: str(name).endswith("_bias")):
        own, part = str(name), tree[name]
        while hasattr(home, own):  # ``type``, for example, is a method of modules
            own += "_"
        at = path + own
        if paths[name] is not None:  # a bias that its map has registered
            continue
        if not isinstance(part, Tensor):
            home.add_module(own, inner := _Home())
            paths[name] = _registered(inner, f"{at}.", part, known)
        elif (memory := _memory(part)) in known:
            paths[name] = known[memory]
        elif _is_map(tree, name):
            bias = f"{name}_bias"
            home.add_module(own, _linear(part, tree.get(bias)))
            paths[name], known[memory] = at, f"{at}.weight"
            if bias in tree:
                paths[bias] = f"{at}:bias"
        else:
            home.register_parameter(own, _parameter(part))
            paths[name] = known[memory] = at
    return paths


def _is_map(tree: dict[str, Any], name: str) -> bool:
    """Whether a tensor is the weight of a linear map, to be registered with its bias."""
    weight, bias = tree[name], tree.get(f"{name}_bias")
    called = str(name).removeprefix("cross_") in _MAPS
    return called and weight.ndim == 2 and (bias is None or bias.ndim == 1)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    columns, rows = weight.shape
    made = nn.Linear(rows, columns, bias=bias is not None, device="meta")
    made.weight = _parameter(weight)
    if bias is not None:
        made.bias = _parameter(bias)
    return made


def _memory(tensor: Tensor) -> Any:
    """Return a key that is equal for two tensors if they are the same numbers in memory."""
    start = tensor.data_ptr()
    return (start, tensor.shape, tensor.stride(), tensor.dtype) if start else id(tensor)


def _parameter(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, tensor.is_floating_point())


def _merged(module: nn.Module) -> Any:
    """Return a linear map; if it has an adapter of peft, a copy with the adapter merged."""
    if not hasattr(module, "get_base_layer"):
        return module
    copy = deepcopy(module)
    copy.merge()
    return copy.get_base_layer()
