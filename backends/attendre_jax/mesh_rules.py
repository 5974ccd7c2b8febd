"""Which axes of a mesh split which parameter, by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from jax.sharding import AxisType, Mesh, PartitionSpec

from attendre_core.errors import ConfigError
from attendre_core.zoo.architectures.base import Architecture, EncoderDecoder, Params, Part, Tensor
from attendre_jax.attention import AttendreAttention

__all__ = ["Axes", "Rules", "dividing", "length_of"]

#: One axis of a mesh, several, or none.
Axes = str | tuple[str, ...] | None

#: Names of a layer's parameters in every architecture of the zoo. Weights are (out, in).
_QUERIES = re.compile(r"(cross_|distance_)?q(_bias)?")
_KEYS_AND_VALUES = re.compile(r"(cross_|distance_)?(k|v)(_bias)?|qkv(_bias)?")
_HIDDEN = re.compile(r"(gate|up)(_bias)?")
_OUTWARDS = re.compile(r"(cross_)?out|down")
_VOCABULARY = ("embedding", "head", "head_bias")


def _named(axes: Axes) -> tuple[str, ...]:
    if axes is None:
        return ()
    return (axes,) if isinstance(axes, str) else tuple(axes)


def length_of(mesh: Mesh, what: str, axes: Axes) -> int:
    """Return the number of devices along axes, after a check of their names and types."""
    count = 1
    for axis in _named(axes):
        if axis not in mesh.axis_names:
            raise ConfigError(
                f"shardings: {what} is {axes!r}, expected axes of the mesh: "
                f"{', '.join(map(repr, mesh.axis_names))}; or None to leave it whole."
            )
        kind = mesh.axis_types[mesh.axis_names.index(axis)]
        if kind != AxisType.Auto:
            raise ConfigError(
                f"shardings: the axis {axis!r} of the mesh is of type {kind.name}, expected Auto. "
                "Make it with jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto, ...))."
            )
        count *= mesh.shape[axis]
    return count


def dividing(mesh: Mesh, axes: Axes, number: int) -> Axes:
    """Return as many of the first axes as a number of heads divides by."""
    chosen: list[str] = []
    for axis in _named(axes):
        number, rest = divmod(number, mesh.shape[axis])
        if rest:
            break
        chosen.append(axis)
    if len(chosen) == len(_named(axes)):
        return axes
    return tuple(chosen) or None


@dataclass(frozen=True)
class Rules:
    """Where parameters go by their names; ``notes`` collects what is copied."""

    mesh: Mesh
    heads: Axes
    count: int
    split_vocabulary: bool
    notes: list[str]

    def of_model(self, architecture: Architecture) -> Any:
        """Return a `PartitionSpec` for each parameter."""
        tensors = architecture.parameters()
        if isinstance(architecture, EncoderDecoder):
            top = self.top(tensors)
            for name in ("encoder", "decoder"):
                top[name] = self.part(getattr(architecture, name), tensors[name])
            return top
        return self.part(cast(Part, architecture), tensors)

    def of_attention(self, attention: AttendreAttention) -> AttendreAttention:
        """Return specs in the shape of an attention module."""
        self._check("heads", attention.query.shape[1])
        one = PartitionSpec(None, self._kv(attention.key.shape[1]))
        split = PartitionSpec(None, self.heads)
        table = None if attention.table is None else split
        return AttendreAttention(split, one, one, PartitionSpec(self.heads), table, attention.layer)

    def part(self, part: Part, tensors: Params) -> Params:
        """Place embedding, layers and norms of a decoder or an encoder."""
        self._check("heads", part.heads)
        kv = self._kv(part.kv_heads)
        layers = [
            {name: self._layer(name, tensor, kv) for name, tensor in layer.items()}
            for layer in tensors["layers"]
        ]
        return {**self.top(tensors), "layers": layers}

    def top(self, tensors: Params) -> Params:
        """Place what is outside of layers: tables, the output matrix, norms."""
        return {
            name: self._table(name, tensor)
            for name, tensor in tensors.items()
            if isinstance(tensor, Tensor)
        }

    def _table(self, name: str, tensor: Tensor) -> PartitionSpec:
        if name not in _VOCABULARY or not self.split_vocabulary:
            return PartitionSpec()
        rest = (None,) * (len(tensor.shape) - 1)
        rows = tensor.shape[-1 if name == "head_bias" else 0]
        if rows % self.count:
            self.notes.append(f"{name}: {rows} rows do not divide by {self.count}; copied")
            return PartitionSpec()
        return PartitionSpec(*((*rest, self.heads) if name == "head_bias" else (self.heads, *rest)))

    def _layer(self, name: str, tensor: Tensor, kv: Axes) -> PartitionSpec:
        rest = (None,) * (len(tensor.shape) - 1)
        if _OUTWARDS.fullmatch(name):
            return PartitionSpec(None, self.heads)
        if name == "bias_table":  # (buckets, heads)
            return PartitionSpec(None, self.heads)
        if _KEYS_AND_VALUES.fullmatch(name) or (name == "k_norm" and rest):
            return PartitionSpec(kv, *rest)
        if _HIDDEN.fullmatch(name):
            self._check("feed-forward features", tensor.shape[0])
            return PartitionSpec(self.heads, *rest)
        if _QUERIES.fullmatch(name) or (name == "q_norm" and rest):
            return PartitionSpec(self.heads, *rest)
        return PartitionSpec()

    def _kv(self, number: int) -> Axes:
        split = dividing(self.mesh, self.heads, number)
        if split != self.heads:
            copied = [axis for axis in _named(self.heads) if axis not in _named(split)]
            self.notes.append(
                f"keys and values: {number} heads do not divide by {self.count}; copied along "
                f"{', '.join(map(repr, copied))}"
            )
        return split

    def _check(self, what: str, number: int) -> None:
        if number % self.count:
            raise ConfigError(
                f"shardings: the model has {number} {what}, expected a multiple of {self.count}, "
                f"the devices along {self.heads!r}. Use a mesh with fewer devices there."
            )
