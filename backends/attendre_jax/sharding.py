"""Where parameters, memories and batches live on a mesh of devices.

Heads, feed-forward features and the vocabulary are split over one axis of the mesh, the rows of a
batch over another::

    weight (out, in)       q, k, v, qkv, gate, up: by rows      out, down: by columns
    embedding, head        by rows of the vocabulary
    memory                 keys, values, waiting queries: by rows of the batch and by heads
    all else               norms whole on every device; tokens, records and counters by rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attendre_core.backend import Array
from attendre_core.errors import ConfigError
from attendre_core.layer.records import LayerState
from attendre_core.memory.queue import DataOnlyState
from attendre_core.memory.state import KeyValueState
from attendre_core.tiers.state import TiersState
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures.base import Architecture
from attendre_core.zoo.architectures.heads import HEAD, Head
from attendre_core.zoo.model import Model
from attendre_jax.attention import AttendreAttention
from attendre_jax.mesh_rules import Axes, Rules, dividing, length_of
from attendre_jax.models import ModelFunctions

__all__ = ["Shardings", "place", "shardings", "state_shardings"]


@dataclass(frozen=True)
class Shardings:
    """Where the parts of one model live; made by `shardings`.

    Attributes
    ----------
    mesh
        The devices.
    heads, batch
        The axes of the mesh over which heads and rows are split, as given.
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
    heads: Axes
    batch: Axes
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
    heads: Axes = "model",
    batch: Axes = "data",
    split_vocabulary: bool = True,
) -> Shardings:
    """Say where the parameters, states and batches of a model live on a mesh.

    Query heads and feed-forward features must divide by the number of devices along ``heads``.
    K/V heads may be fewer (grouped-query attention). Then name two axes, such as
    ``heads=("kv", "group")``: K/V heads are split over as many of the first axes as they divide
    by, and copied along the others. With one axis they would stay whole on every device, and XLA
    would gather them in each step. A vocabulary that does not divide stays whole. ``notes`` of the
    result say what is copied.

    Parameters
    ----------
    model
        An architecture of the zoo, a model, its functions, or one attention module.
    mesh
        Its axes must be of type ``AxisType.Auto``.
    heads
        The axis, or axes, over which each layer is split (tensor parallelism); None leaves layers
        whole.
    batch
        The axis, or axes, over which the rows of a batch are split; None leaves them together.
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
    length_of(mesh, "batch", batch)
    rules = Rules(mesh, heads, length_of(mesh, "heads", heads), split_vocabulary, [])
    if isinstance(model, AttendreAttention):
        specs = rules.of_attention(model)
    else:
        specs = rules.of_model(model if isinstance(model, Architecture) else model.architecture)
        head = getattr(model, "head", None)
        if isinstance(head, Head):
            specs[HEAD] = rules.top(head.parameters())

    def on_mesh(spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(mesh, spec)

    return Shardings(
        mesh=mesh,
        heads=heads,
        batch=batch,
        params=jax.tree.map(on_mesh, specs, is_leaf=lambda x: isinstance(x, PartitionSpec)),
        rows=on_mesh(PartitionSpec(batch)),
        whole=on_mesh(PartitionSpec()),
        notes=tuple(dict.fromkeys(rules.notes)),
    )


def state_shardings(state: Any, mesh: Mesh, *, heads: Axes = "model", batch: Axes = "data") -> Any:
    """Return a sharding for each array of a state, nested like it.

    Keys, values and waiting queries are split by rows and by heads, records and scores by rows
    (with ``per_head=True`` by K/V heads, too). K/V heads are split over as many of the axes
    ``heads``, from the first one on, as they divide by.

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
    length_of(mesh, "heads", heads)
    rows = length_of(mesh, "batch", batch)

    def placed(leaf: Array, lead: int, *rest: Axes) -> NamedSharding:
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
        if isinstance(part, (KeyValueState, TiersState)):
            lead = part.clock.ndim - 1  # layers of a scan, on an axis of their own
            split = dividing(mesh, heads, part.key.shape[lead + 1])
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
        split = dividing(mesh, heads, query.shape[lead + 2])
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
