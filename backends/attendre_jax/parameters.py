"""Parameters of a zoo model for training: initialised at random, flattened, nested again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attendre_core.backend import Array
from attendre_core.tree import tree_leaves, tree_map
from attendre_core.zoo.architectures.base import Architecture, Params, Tensor

__all__ = ["flat_parameters", "nested_parameters", "random_parameters"]


def flat_parameters(architecture: Architecture, params: Params) -> dict[str, Array]:
    """Return parameters by name, shared ones once, for an optimiser.

    In a model's nested parameters, a table that several layers share occurs in each of them, and
    an optimiser would update the copies separately.

    Examples
    --------
    >>> from attendre_core.zoo.config import RawConfig
    >>> from attendre_core.zoo.architectures import architecture_of
    >>> sizes = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "vocab_size": 9,
    ...          "num_hidden_layers": 1, "num_attention_heads": 2, "tie_word_embeddings": True}
    >>> tiny = architecture_of(RawConfig(sizes, "config.json"))
    >>> flat = flat_parameters(tiny, random_parameters(tiny, jax.random.key(0)))
    >>> flat["model.embed_tokens.weight"].shape, len(flat)
    ((9, 8), 11)
    """
    tensors, arrays = tree_leaves(architecture.parameters()), tree_leaves(params)
    return {_name(tensor): array for tensor, array in zip(tensors, arrays, strict=True)}


def nested_parameters(architecture: Architecture, flat: dict[str, Array]) -> Params:
    """Arrange flat parameters as the architecture's functions expect them."""
    nested: Params = tree_map(lambda tensor: flat[_name(tensor)], architecture.parameters())
    return nested


def random_parameters(architecture: Architecture, rng: Array, dtype: Any = jnp.float32) -> Params:
    """Initialise parameters for training from scratch.

    Matrices are normal with a standard deviation of 1/sqrt(width of the input), embeddings and
    tables of positions with 0.02; norms are 1, biases 0.

    Parameters
    ----------
    rng
        A key of `jax.random`.
    """
    sampled: dict[str, Array] = {}
    for tensor in tree_leaves(architecture.parameters()):
        name = _name(tensor)
        if name not in sampled:
            sampled[name] = _sampled(tensor, jax.random.fold_in(rng, len(sampled)), dtype)
    return nested_parameters(architecture, sampled)


def _name(tensor: Tensor) -> str:
    """Return a unique name for each parameter, also for parts of a fused tensor."""
    if tensor.rows is None:
        return tensor.name
    return f"{tensor.name}[{tensor.rows[0]}:{tensor.rows[1]}]"


def _sampled(tensor: Tensor, rng: Array, dtype: Any) -> Array:
    if len(tensor.shape) == 1:
        start = jnp.zeros if tensor.name.endswith("bias") else jnp.ones
        return start(tensor.shape, dtype)
    width = _EMBEDDING if _is_table(tensor.name) else tensor.shape[-1] ** -0.5
    return jax.random.normal(rng, tensor.shape, dtype) * width


_EMBEDDING = 0.02


def _is_table(name: str) -> bool:
    return any(word in name for word in ("embed", "shared", "relative_attention_bias", "wte"))
