"""Train a tiny model with PyTorch or JAX, through the same functions that the zoo runs it with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attendre_core.backend import backend
from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.synthetic_words import KEYS
from attendre_core.evaluation.tiny.objective import (
    Batch,
    Flat,
    draw_batch,
    objective,
    parameter_shapes,
)
from attendre_core.evaluation.tiny.optimizer import Moments, adamw, no_moments
from attendre_core.evaluation.tiny.recipe import Recipe
from attendre_core.zoo.architectures.base import Architecture, EncoderDecoder, Part

__all__ = ["FRAMEWORKS", "initial_parameters", "train"]

#: Called after each step with its number, its loss and its share of right answers.
OnStep = Callable[[int, float, float], None]
_EMBEDDING = 0.5


def initial_parameters(
    architecture: Architecture, rng: np.random.Generator
) -> dict[str, np.ndarray[Any, Any]]:
    """Return initial parameters: norms 1, position biases 0, all others normal.

    Embeddings have the standard deviation 0.5, matrices one that fits the width of their input.

    Examples
    --------
    >>> from attendre_core.evaluation.tiny.recipe import architecture
    >>> drawn = initial_parameters(architecture("prefix-lm"), np.random.default_rng(0))
    >>> drawn["model.norm.weight"].shape, drawn["lm_head.weight"].shape
    ((64,), (80, 64))
    """
    arrays = {}
    for name, shape in parameter_shapes(architecture).items():
        noise = rng.standard_normal(shape)
        if len(shape) == 1:
            array = np.ones(shape)
        elif "relative_attention_bias" in name:
            array = np.zeros(shape)
        elif "embed" in name or "shared" in name:
            array = noise * _EMBEDDING
        else:
            array = noise * shape[1] ** -0.5
            if name.endswith("Attention.q.weight"):
                # T5 does not scale its logits by the width of a head.
                array = array * (shape[0] // 4) ** -0.5
        arrays[name] = array.astype(np.float32)
    return arrays


def train(
    architecture: Architecture,
    recipe: Recipe,
    *,
    seed: int,
    framework: str,
    on_step: OnStep,
) -> dict[str, np.ndarray[Any, Any]]:
    """Train a model from scratch; a seed gives the same batches with both frameworks.

    Parameters
    ----------
    framework
        ``"torch"`` or ``"jax"``.
    on_step
        Called after each step with its number, its loss and its share of right answers.

    Returns
    -------
    dict
        Parameters by their names in a checkpoint, float32.
    """
    if framework not in FRAMEWORKS:
        raise ConfigError(f"train: framework is {framework!r}, expected {' or '.join(FRAMEWORKS)}.")
    library = backend(framework)
    part: Any = architecture
    reading: Part = part.encoder if isinstance(architecture, EncoderDecoder) else part
    rng = np.random.default_rng(seed)
    arrays = initial_parameters(architecture, rng)
    hints = {
        name: (rng.standard_normal((reading.dim, len(KEYS))) * 0.02).astype(np.float32)
        for name in ("owner", "question")
    }
    flat = {name: library.from_numpy(array) for name, array in (arrays | hints).items()}
    moments = no_moments(flat)
    advance = FRAMEWORKS[framework](architecture, recipe)
    for step in range(recipe.steps):
        length = 16 * int(rng.integers(2, recipe.longest_at(step) // 16 + 1))
        rows = recipe.tokens // length
        drawn = draw_batch(rng, rows, length, reading.vocabulary)
        batch = Batch(*(library.from_numpy(array) for array in drawn))
        numbers = (float(step + 1), recipe.rate_at(step), recipe.auxiliary_at(step))
        flat, moments, loss, right = advance(flat, moments, batch, numbers)
        on_step(step, float(loss), float(right) / rows)
    return {name: np.array(library.to_numpy(flat[name])) for name in arrays}


def _loss(
    architecture: Architecture, library: str, flat: Flat, batch: Batch, weight: Any
) -> tuple[Any, Any]:
    return objective(architecture, flat, flat, batch, weight, library)


def _with_torch(architecture: Architecture, recipe: Recipe) -> Callable[..., Any]:
    import torch

    def advance(
        flat: Flat, moments: Moments, batch: Batch, numbers: tuple[float, float, float]
    ) -> tuple[Flat, Moments, Any, Any]:
        step, rate, weight = numbers
        leaves = {name: array.detach().requires_grad_() for name, array in flat.items()}
        loss, right = _loss(architecture, "torch", leaves, batch, weight)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        with torch.no_grad():
            flat, moments = adamw(
                flat, dict(zip(leaves, gradients, strict=True)), moments,
                step=step, rate=rate, decay=recipe.decay,
            )  # fmt: skip
        return flat, moments, loss.detach(), right.detach()

    return advance


def _with_jax(architecture: Architecture, recipe: Recipe) -> Callable[..., Any]:
    import jax

    graded = jax.value_and_grad(partial(_loss, architecture, "jax"), has_aux=True)

    def advance(flat: Flat, moments: Moments, batch: Batch, numbers: Any) -> Any:
        step, rate, weight = numbers
        (loss, right), gradients = graded(flat, batch, weight)
        flat, moments = adamw(flat, gradients, moments, step=step, rate=rate, decay=recipe.decay)
        return flat, moments, loss, right

    compiled: Callable[..., Any] = jax.jit(advance)
    return compiled


#: Makes the function that runs one training step, by framework.
FRAMEWORKS: dict[str, Callable[[Architecture, Recipe], Callable[..., Any]]] = {
    "torch": _with_torch,
    "jax": _with_jax,
}
