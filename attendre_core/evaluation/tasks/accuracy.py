"""Accuracy of a model with a memory on synthetic documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import System
from attendre_core.evaluation.tasks.document import Document
from attendre_core.evaluation.tasks.watched import WatchedStream
from attendre_core.zoo.model import Model

__all__ = ["Outcome", "measure"]


class Outcome(NamedTuple):
    """Results of a system on documents, in their order.

    Attributes
    ----------
    right
        Boolean, (documents,): whether the likeliest token is the answer.
    admitted
        (documents,): the share of new entries that a full memory admitted; mean over the layers.
    present
        (documents,): the share of a chunk's own keys and values that were still in memory when
        its queries attended; mean over all layers and positions.
    """

    right: NDArray[np.bool_]
    admitted: NDArray[np.float64]
    present: NDArray[np.float64]


def measure(
    model: Model, documents: Sequence[Document], system: System, *, batch: int = 32
) -> Outcome:
    """Read documents with a memory and check the model's answers.

    Parameters
    ----------
    model
        The model; its own memory setting is ignored.
    system
        From `attendre_core.evaluation.system`.
    batch
        Documents read side by side; changes the speed, not the results.

    Examples
    --------
    >>> from attendre_core.evaluation import load_tiny, measure, system
    >>> from attendre_core.evaluation.tasks import LookAhead
    >>> documents = list(LookAhead().documents(seed=0, count=4, chunks=(4, 6)))
    >>> measure(load_tiny("prefix-lm"), documents, system("full", 32)).right.tolist()
    [True, True, True, True]
    """
    if not documents:
        raise ConfigError("measure: no documents, expected at least one.")
    rows = [system.part_of(d.tokens, d.closed_book).tolist() for d in documents]
    answers = np.asarray([document.answer for document in documents])
    right = np.zeros(len(rows), dtype=bool)
    admitted, present = np.ones(len(rows)), np.ones(len(rows))
    # Rows of similar length share a batch, so that little of it is padding.
    order = np.argsort([len(row) for row in rows], kind="stable")
    for start in range(0, len(rows), batch):
        chosen = order[start : start + batch]
        read = [rows[i] for i in chosen]
        lengths = [len(row) for row in read]
        memory = system.memory_for(max(lengths), causal=model.causal)
        watched = WatchedStream(model, memory, lengths)
        watched.stream.feed(read)
        _, logits = watched.stream.writer(1)
        logits = model.backend.to_numpy(logits)
        checks.finite_logits("measure", logits)
        right[chosen] = logits.argmax(axis=-1) == answers[chosen]
        admitted[chosen], present[chosen] = watched.admitted, watched.present
    return Outcome(right, admitted, present)
