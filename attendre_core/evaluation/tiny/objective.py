"""The training objective: the answer and, at first, two auxiliary targets for the first layer.

Training depends on the auxiliary targets. In the first layer every value has to find its key, and
every token of the context the question; only then can the second layer find the value asked for.
Two auxiliary heads train the first layer to do that.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from attendre_core.backend import Array, backend_of
from attendre_core.evaluation.tasks import LookAhead, PastOnly
from attendre_core.evaluation.tasks.synthetic_words import KEYS
from attendre_core.evaluation.tiny.cut import layer_params, layers_of
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures.base import Architecture, EncoderDecoder, Part, Tensor
from attendre_core.zoo.full_attention import full_pass

__all__ = ["Batch", "answer_logits", "draw_batch", "nested", "objective", "parameter_shapes"]

#: A model learns all of these tasks.
_TASKS = (LookAhead("repeat"), PastOnly("repeat"), LookAhead("single"), PastOnly("single"))

Flat = dict[str, Array]


class Batch(NamedTuple):
    """Inputs of equal length and their targets, one-hot and float32.

    Attributes
    ----------
    tokens, valid
        (rows, length).
    answer
        (rows, vocabulary).
    owner
        (rows, length, keys): the key of each value; zeros at all other tokens.
    question
        (rows, length, keys): the key asked for, at each token of the context.
    """

    tokens: Any
    valid: Any
    answer: Any
    owner: Any
    question: Any


def draw_batch(rng: np.random.Generator, rows: int, length: int, vocabulary: int) -> Batch:
    """Sample documents of all tasks, in turn."""
    documents = [_TASKS[i % len(_TASKS)].document(rng, length) for i in range(rows)]
    owner = np.zeros((rows, length, len(KEYS)), dtype=np.float32)
    question = np.zeros((rows, length, len(KEYS)), dtype=np.float32)
    answer = np.zeros((rows, vocabulary), dtype=np.float32)
    for row, document in enumerate(documents):
        owner[row, document.values, document.owners] = 1.0
        question[row, document.context + 1 :, document.question] = 1.0
        answer[row, document.answer] = 1.0
    tokens = np.stack([document.tokens for document in documents])
    return Batch(tokens, np.ones(tokens.shape, dtype=bool), answer, owner, question)


def parameter_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor by its name in a checkpoint; shared tensors occur once."""
    shapes: dict[str, tuple[int, ...]] = {}

    def note(tensor: Tensor) -> None:
        shapes[tensor.name] = tensor.shape

    tree_map(note, architecture.parameters())
    return shapes


def nested(architecture: Architecture, flat: Flat) -> Any:
    """Arrange named tensors as the functions of the architecture expect them."""
    return tree_map(lambda tensor: flat[tensor.name], architecture.parameters())


def answer_logits(
    architecture: Architecture, flat: Flat, tokens: Array, valid: Array, library: str
) -> tuple[Array, Array]:
    """Read inputs of equal length with full attention in both directions.

    Returns
    -------
    logits
        (rows, vocabulary): logits of the answer.
    first
        (rows, length, dim): the output of the first layer.
    """
    xp = backend_of(tokens).xp
    params = nested(architecture, flat)
    if isinstance(architecture, EncoderDecoder):
        part, part_params = architecture.encoder, params["encoder"]
    else:
        part, part_params = cast(Part, architecture), params
    first = None
    for start, stop in ((0, 1), (1, part.layers)):
        hidden, _ = full_pass(
            layers_of(part, start, stop), layer_params(part_params, start, stop, first), tokens,
            valid, causal=False, library=library,
        )  # fmt: skip
        first = hidden if first is None else first
    if isinstance(architecture, EncoderDecoder):
        decoder, layers = architecture.decoder, params["decoder"]["layers"]
        hidden, _ = full_pass(
            decoder, params["decoder"], xp.full_like(tokens[:, :1], architecture.start),
            valid[:, :1], causal=True, library=library,
            crosses=[(*decoder.cross_project(layer, hidden), valid) for layer in layers],
        )  # fmt: skip
    return architecture.logits(params, hidden[:, -1:, :])[:, 0, :], first


def objective(
    architecture: Architecture,
    flat: Flat,
    hints: Flat,
    batch: Batch,
    weight: Array,
    library: str,
) -> tuple[Array, Array]:
    """Return the loss to minimise, and how many answers are right.

    Parameters
    ----------
    hints
        Matrices of the auxiliary heads ``"owner"`` and ``"question"``, (dim, keys).
    weight
        Weight of the auxiliary losses; that of the answer is 1.
    """
    xp = backend_of(batch.tokens).xp
    logits, first = answer_logits(architecture, flat, batch.tokens, batch.valid, library)
    loss = _cross_entropy(logits, batch.answer)
    for name in ("owner", "question"):
        hinted = _cross_entropy(xp.matmul(first, hints[name]), getattr(batch, name))
        loss = loss + weight * hinted
    best = xp.max(logits, axis=-1, keepdims=True)
    right = xp.sum(xp.astype(logits >= best, batch.answer.dtype) * batch.answer)
    return loss, right


def _cross_entropy(logits: Array, target: Array) -> Array:
    """Return the mean over the positions that have a (one-hot) target."""
    xp = backend_of(logits).xp
    top = xp.max(logits, axis=-1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(logits - top), axis=-1, keepdims=True)) + top
    return xp.sum((total - logits) * target) / xp.sum(target)
