"""A model for one task, from texts to answers: the entry that users of transformers know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from attendre_core import checks
from attendre_core.backend import Backend
from attendre_core.errors import ConfigError
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.loading import load
from attendre_core.zoo.model import Model
from attendre_core.zoo.spans import Aggregation
from attendre_core.zoo.tagger import Tagger

__all__ = ["Classification", "Classifier", "Embedder", "pipeline"]


#: Texts that are read side by side.
_BATCH = 8


class Classification(NamedTuple):
    """The likeliest label of a text, and its probability."""

    label: str
    score: float


class Classifier:
    """Labels whole texts; `pipeline` makes one.

    Parameters
    ----------
    model
        With a head for sequence classification, and a tokenizer.

    Notes
    -----
    Probabilities are the softmax of the logits; with a single label, the sigmoid.
    """

    def __init__(self, model: Model) -> None:
        if model.head is None or model.head.kind != "sequence":
            found = "no head" if model.head is None else f"a head of kind {model.head.kind!r}"
            raise ConfigError(
                f"Classifier: the model has {found}, expected one for sequence classification. "
                "Load a checkpoint whose config.json names such a class, for example "
                "BertForSequenceClassification."
            )
        model.require_tokenizer("classify")
        self.model, self.labels = model, model.head.labels

    def __repr__(self) -> str:
        return f"Classifier({self.model!r})"

    @overload
    def __call__(self, texts: str) -> Classification: ...
    @overload
    def __call__(self, texts: list[str] | tuple[str, ...]) -> list[Classification]: ...

    def __call__(self, texts: Any) -> Any:
        """Return the label of a text, or of each text of a list."""
        if isinstance(texts, str):
            return self([texts])[0]
        if not texts:
            return []
        model, batches = self.model, range(0, len(texts), _BATCH)
        logits = [model.classify(list(texts[start : start + _BATCH])) for start in batches]
        rows = np.concatenate([np.asarray(model.backend.to_numpy(part)) for part in logits])
        rows = rows.astype(np.float64)
        checks.finite_logits("Classifier", rows)
        if rows.shape[1] == 1:
            rows = np.concatenate([rows, np.zeros_like(rows)], axis=1)
        share = np.exp(rows - rows.max(axis=1, keepdims=True))
        share = (share / share.sum(axis=1, keepdims=True))[:, : len(self.labels)]
        best = share.argmax(axis=1).tolist()
        return [
            Classification(self.labels[label], float(row[label]))
            for label, row in zip(best, share, strict=True)
        ]


class Embedder:
    """Makes a vector of each text; `pipeline` makes one.

    Parameters
    ----------
    model
        With a tokenizer.
    """

    def __init__(self, model: Model) -> None:
        model.require_tokenizer("embed")
        self.model = model

    def __repr__(self) -> str:
        return f"Embedder({self.model!r})"

    def __call__(self, texts: str | Sequence[str], **options: Any) -> Any:
        """Return what `Model.embed` returns, with its options."""
        return self.model.embed(texts, **options)


#: Names of tasks, with those that transformers uses as well.
_TASKS = {
    "token-classification": "token-classification",
    "ner": "token-classification",
    "text-classification": "text-classification",
    "sentiment-analysis": "text-classification",
    "feature-extraction": "feature-extraction",
}


@overload
def pipeline(
    task: Literal["token-classification", "ner"],
    model: str | Path | Model,
    memory: MemoryConfig | str | int | None = None,
    backend: str | Backend | None = None,
    *,
    aggregation: Aggregation = "first",
    **options: Any,
) -> Tagger: ...
@overload
def pipeline(
    task: Literal["text-classification", "sentiment-analysis"],
    model: str | Path | Model,
    memory: MemoryConfig | str | int | None = None,
    backend: str | Backend | None = None,
    **options: Any,
) -> Classifier: ...
@overload
def pipeline(
    task: Literal["feature-extraction"],
    model: str | Path | Model,
    memory: MemoryConfig | str | int | None = None,
    backend: str | Backend | None = None,
    **options: Any,
) -> Embedder: ...
@overload
def pipeline(task: str, model: str | Path | Model, *given: Any, **options: Any) -> Any: ...


def pipeline(
    task: str,
    model: str | Path | Model,
    memory: MemoryConfig | str | int | None = None,
    backend: str | Backend | None = None,
    *,
    aggregation: Aggregation | None = None,
    **options: Any,
) -> Any:
    """Make a model ready for a task.

    Parameters
    ----------
    task
        ``"token-classification"`` or ``"ner"``: a `Tagger`, which finds spans such as names, also
        in streams. ``"text-classification"`` or ``"sentiment-analysis"``: a `Classifier`.
        ``"feature-extraction"``: an `Embedder`, which calls `Model.embed`.
    model
        A checkpoint, as in `load`, or a `Model`.
    memory
        As in `load`: ``512`` or ``"attendre:512"`` for texts without end; None: full attention, as
        transformers has it.
    backend
        ``"numpy"`` by default, ``"torch"``, ``"jax"`` or another one.
    aggregation
        For token classification: how tokens become words, ``"first"`` or ``"simple"``; see
        `Tagger`.
    options
        More of `load`: ``device``, ``dtype``, ``tokenizer``, ``progress``.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.pipeline("fill-mask", "path/to/checkpoint")
    Traceback (most recent call last):
        ...
    attendre_core.errors.ConfigError: pipeline: the task 'fill-mask' is not known, expected one \
of token-classification, ner, text-classification, sentiment-analysis, \
feature-extraction.
    """
    found = _TASKS.get(task)
    if found is None:
        raise ConfigError(
            f"pipeline: the task {task!r} is not known, expected one of {', '.join(_TASKS)}."
        )
    if aggregation is not None and found != "token-classification":
        raise ConfigError(
            f"pipeline: aggregation is for token classification, but the task is {task!r}. Leave "
            "it out."
        )
    if backend is not None:
        options["backend"] = backend
    if not isinstance(model, Model):
        model = load(model, memory=memory, **options)
    elif options:
        raise ConfigError(
            f"pipeline: {', '.join(options)} is for a checkpoint, but the model is loaded already. "
            "Give it to load."
        )
    elif memory is not None:
        model = model.with_memory(memory)
    if found == "token-classification":
        return Tagger(model, aggregation or "first")
    return Classifier(model) if found == "text-classification" else Embedder(model)
