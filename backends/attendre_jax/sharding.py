"""Where parameters, memories and batches live on a mesh of devices.

Heads, feed-forward features and the vocabulary are split over one axis of the mesh, the rows of a
batch over another::

    weight (out, in)       q, k, v, qkv, gate, up: by rows      out, down: by columns
    embedding, head        by rows of the vocabulary
    memory                 keys, values, waiting queries: by rows of the batch and by heads
    all else               norms whole on every device; tokens, records and counters by rows
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from attendre_core.backend import Array
from attendre_core.errors import ConfigError
from attendre_core.layer.records import LayerState
from attendre_core.memory.queue import DataOnlyState
from attendre_core.memory.state import KeyValueState
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures.base import Architecture, EncoderDecoder, Params, Part, Tensor
from attendre_core.zoo.model import Model
from attendre_jax.attention import AttendreAttention
from attendre_jax.models import ModelFunctions

__all__ = ["Shardings", "place", "shardings", "state_shardings"]

#: Names of a layer's parameters in every architecture of the zoo. Weights are (out, in).
_QUERIES = re.compile(r"(cross_)?q(_bias)?$")
_KEYS_AND_VALUES = re.compile(r"(cross_)?(k|v|qkv)(_bias)?$")
_HIDDEN = re.compile(r"(gate|up)(_bias)?$")
_OUT = re.compile(r"(cross_)?out$")
_DOWN = re.compile(r"down$")
_VOCABULARY = ("embedding", "head", "head_bias")


@dataclass(frozen=True)
class Shardings:
    """Where the parts of one model live; made by `shardings`.

    Attributes
    ----------
    mesh
        The devices.
    heads, batch
        The axes of the mesh over which heads and rows are split, or None.
    params
        A sharding for each parameter, nested like the parameters.
    rows
        For tokens, flags and everything else with the batch on its first axis.
    whole
        For what every device holds completely.
    notes
        What is not split although ``heads`` is given, and why, in words.
    """

    mesh: Mesh
    heads: str | None
    batch: str | None
    params: Any
    rows: NamedSharding
    whole: NamedSharding
    notes: tuple[str, ...]

    def state(self, state: Any) -> Any:
        """Return a sharding for each array of a state, as `state_shardings` does."""
        return state_shardings(state, self.mesh, heads=self.heads, batch=self.batch)


def shardings(
    model: Architecture | Model | ModelFunctions | AttendreAttention,
    mesh: Mesh,
    *,
    heads: str | None = "model",
    batch: str | None = "data",
    split_vocabulary: bool = True,
) -> Shardings:
    """Say where the parameters, states and batches of a model live on a mesh.

    Query heads and feed-forward features must divide by the number of devices along ``heads``.
    K/V heads that do not, because there are fewer of them (grouped-query attention) or because
    they are fused with queries, stay whole on every device, and so does a vocabulary that does not
    divide; ``notes`` of the result say so.

    Parameters
    ----------
    model
        An architecture of the zoo, a model, its functions, or one attention module.
    mesh
        Its axes must be of type ``AxisType.Auto``.
    heads
        The axis over which each layer is split (tensor parallelism); None leaves layers whole.
    batch
        The axis over which the rows of a batch are split; None leaves them together.
    split_vocabulary
        Split the embedding and the output matrix over ``heads``, too.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import attendre_core as at
    >>> from attendre_core.zoo.architectures.llama import Llama
    >>> from attendre_jax import ModelFunctions, random_parameters
    >>> llama = Llama(layers=2, dim=16, heads=4, kv_heads=2, head_dim=4, vocabulary=8,
    ...               context=64, hidden=32, rope=at.RoPE())
    >>> auto = (jax.sharding.AxisType.Auto,) * 2
    >>> mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=auto)
    >>> where = shardings(llama, mesh)
    >>> first = where.params["layers"][0]
    >>> tuple(first["q"].spec), tuple(first["out"].spec)
    (('model', None), (None, 'model'))
    >>> params = place(random_parameters(llama, jax.random.key(0)), where.params)
    >>> tokens = place(jnp.ones((2, 10), dtype=jnp.int32), where.rows)
    >>> functions = ModelFunctions(llama, memory=at.preset("LFA-0", kv_size=8, chunk=4))
    >>> jax.jit(functions.logits)(params, tokens).shape
    (2, 10, 8)
    """
    count = _length_of(mesh, "heads", heads)
    _length_of(mesh, "batch", batch)
    notes: list[str] = []
    if isinstance(model, AttendreAttention):
        specs = _of_attention(model, heads, count, notes)
    else:
        architecture = model if isinstance(model, Architecture) else model.architecture
        specs = _of_model(architecture, heads, count, split_vocabulary, notes)

    def on_mesh(spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(mesh, spec)

    return Shardings(
        mesh=mesh,
        heads=heads,
        batch=batch,
        params=jax.tree.map(on_mesh, specs, is_leaf=lambda x: isinstance(x, PartitionSpec)),
        rows=on_mesh(PartitionSpec(batch)),
        whole=on_mesh(PartitionSpec()),
        notes=tuple(dict.fromkeys(notes)),
    )


def state_shardings(
    state: Any, mesh: Mesh, *, heads: str | None = "model", batch: str | None = "data"
) -> Any:
    """Return a sharding for each array of a state, nested like it.

    Keys, values and waiting queries are split by rows and by heads, records and scores by rows
    (with ``per_head=True`` by K/V heads, too). K/V heads that do not divide by the number of
    devices stay whole on each of them.

    Parameters
    ----------
    state
        The state of a layer, of a stack or of `ModelFunctions.start`, a list of these, or their
        shapes from `jax.eval_shape`.
    mesh, heads, batch
        As in `shardings`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import attendre_core as at
    >>> layer = at.AttendreLayer(at.KeyValueMemory(8, at.LFA()), at.DataOnlyMemory(4))
    >>> state = layer.init(batch=2, heads=4, head_dim=8, xp=jnp)
    >>> auto = (jax.sharding.AxisType.Auto,) * 2
    >>> mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=auto)
    >>> where = state_shardings(state, mesh)
    >>> tuple(where.kv.key.spec), tuple(where.queue.data[0].spec), tuple(where.kv.score.spec)
    (('data', 'model'), ('data', None, 'model'), ('data',))
    """
    count, rows = _length_of(mesh, "heads", heads), _length_of(mesh, "batch", batch)

    def placed(leaf: Array, lead: int, *rest: str | None) -> NamedSharding:
        if leaf.shape[lead] % rows:
            raise ConfigError(
                f"state_shardings: the batch has {leaf.shape[lead]} rows, expected a multiple of "
                f"{rows}, the devices along {batch!r}. Pad the batch."
            )
        return NamedSharding(mesh, PartitionSpec(*(None,) * lead, batch, *rest))

    def of(part: Any) -> Any:
        if isinstance(part, LayerState):
            queue = None if part.queue is None else waiting(part.queue)
            return LayerState(of(part.kv), queue)
        if isinstance(part, KeyValueState):
            lead = part.clock.ndim - 1  # layers of a scan, on an axis of their own
            split = heads if part.key.shape[lead + 1] % count == 0 else None
            axes = (split,) if part.valid.ndim == lead + 3 else ()
            records = {
                name: tree_map(lambda leaf: placed(leaf, lead, *axes), getattr(part, name))
                for name in ("position", "valid", "score", "arrival", "pinned", "observed", "aux")
            }
            both = {name: placed(getattr(part, name), lead, split) for name in ("key", "value")}
            plain = tree_map(lambda leaf: placed(leaf, lead), part)
            return plain._replace(**records, **both)
        if isinstance(part, DataOnlyState):
            return tree_map(lambda leaf: placed(leaf, part.clock.ndim - 1), part)
        if isinstance(part, (list, tuple)) and not hasattr(part, "_fields"):
            return type(part)(of(one) for one in part)
        raise ConfigError(
            f"state_shardings: state is a {type(part).__name__}, expected the state of a memory, "
            "a layer or a model, or a list of these."
        )

    def waiting(queue: DataOnlyState) -> DataOnlyState:
        """Split the queries, which are the first of the data, by heads."""
        lead = queue.clock.ndim - 1
        query = queue.data[0]
        split = heads if query.shape[lead + 2] % count == 0 else None
        plain: DataOnlyState = of(queue)
        return plain._replace(data=(placed(query, lead, None, split), *plain.data[1:]))

    return of(state)


def place(tree: Any, where: Any) -> Any:
    """Put nested arrays where shardings say, in one process or in several.

    Each process reads only the parts that its own devices hold, so arrays of NumPy may be mapped
    from a file that is larger than its memory.

    Parameters
    ----------
    tree
        Nested arrays of NumPy or JAX, the same in every process.
    where
        Shardings nested in the same way, or one for all.
    """

    def put(array: Array, sharding: NamedSharding) -> Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    if isinstance(where, NamedSharding):
        return jax.tree.map(lambda array: put(array, where), tree)
    return jax.tree.map(put, tree, where)


# ---------------------------------------------------------------- inside


def _length_of(mesh: Mesh, what: str, axis: str | None) -> int:
    """Return the number of devices along an axis."""
    if axis is None:
        return 1
    if axis not in mesh.axis_names:
        raise ConfigError(
            f"shardings: {what} is {axis!r}, expected an axis of the mesh: "
            f"{', '.join(map(repr, mesh.axis_names))}; or None to leave it whole."
        )
    kind = mesh.axis_types[mesh.axis_names.index(axis)]
    if kind != AxisType.Auto:
        raise ConfigError(
            f"shardings: the axis {axis!r} of the mesh is of type {kind.name}, expected Auto. "
            "Make it with jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto, ...))."
        )
    return int(mesh.shape[axis])


def _divided(what: str, number: int, count: int, axis: str | None) -> None:
    if number % count:
        raise ConfigError(
            f"shardings: the model has {number} {what}, expected a multiple of {count}, the "
            f"devices along {axis!r}. Use a mesh with fewer devices along this axis."
        )


def _of_model(
    architecture: Architecture,
    heads: str | None,
    count: int,
    split_vocabulary: bool,
    notes: list[str],
) -> Any:
    tensors = architecture.parameters()
    vocabulary = heads if split_vocabulary else None
    if isinstance(architecture, EncoderDecoder):
        top = _of_top(tensors, vocabulary, count, notes)
        for name in ("encoder", "decoder"):
            own = getattr(architecture, name)
            top[name] = _of_part(own, tensors[name], heads, vocabulary, count, notes)
        return top
    part: Any = architecture
    return _of_part(part, tensors, heads, vocabulary, count, notes)


def _of_part(
    part: Part, tensors: Params, heads: str | None, vocabulary: str | None, count: int, notes: Any
) -> Params:
    _divided("heads", part.heads, count, heads)
    together = part.kv_heads % count == 0
    if not together:
        notes.append(
            f"{part.kv_heads} K/V heads do not divide by {count}: they stay whole on each device"
        )
    top = _of_top(tensors, vocabulary, count, notes)

    def spec(name: str, tensor: Tensor) -> PartitionSpec:
        split = heads
        if _KEYS_AND_VALUES.match(name) or name == "k_norm":
            split = heads if together else None
        if name in ("q_norm", "k_norm"):  # of each head, or one for all
            return PartitionSpec(split, None) if len(tensor.shape) == 2 else PartitionSpec()
        if name == "bias_table":  # (buckets, heads)
            return PartitionSpec(None, heads)
        if _HIDDEN.match(name):
            _divided("feed-forward features", tensor.shape[0], count, heads)
        elif not (_QUERIES.match(name) or _KEYS_AND_VALUES.match(name)):
            columns = _OUT.match(name) or _DOWN.match(name)
            return PartitionSpec(None, heads) if columns else PartitionSpec()
        return PartitionSpec(split, *(None,) * (len(tensor.shape) - 1))

    top["layers"] = [
        {name: spec(name, tensor) for name, tensor in layer.items()} for layer in tensors["layers"]
    ]
    return top


def _of_top(tensors: Params, vocabulary: str | None, count: int, notes: list[str]) -> Params:
    """Place what is outside of layers: tables, the output matrix, norms."""

    def spec(name: str, tensor: Tensor) -> PartitionSpec:
        if name not in _VOCABULARY or vocabulary is None:
            return PartitionSpec()
        rows = tensor.shape[-1 if name == "head_bias" else 0]
        if rows % count:
            notes.append(f"{rows} rows of {name} do not divide by {count}: they stay whole")
            return PartitionSpec()
        lead = (None,) * (len(tensor.shape) - 1)
        return (
            PartitionSpec(*lead, vocabulary)
            if name == "head_bias"
            else PartitionSpec(vocabulary, *lead)
        )

    return {name: spec(name, one) for name, one in tensors.items() if isinstance(one, Tensor)}


def _of_attention(
    attention: AttendreAttention, heads: str | None, count: int, notes: list[str]
) -> AttendreAttention:
    _, number, _ = attention.query.shape
    _divided("heads", number, count, heads)
    kv_heads = attention.key.shape[1]
    if kv_heads % count:
        notes.append(f"{kv_heads} K/V heads do not divide by {count}: they stay whole")
    one = PartitionSpec(None, heads if kv_heads % count == 0 else None)
    table = None if attention.table is None else PartitionSpec(None, heads)
    split = PartitionSpec(None, heads)
    return AttendreAttention(split, one, one, PartitionSpec(heads), table, attention.layer)
