"""Exact match of the answer: a model, a memory, and synthetic documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import System
from attendre_core.evaluation.tasks.document import Document
from attendre_core.evaluation.tasks.watched import WatchedStream
from attendre_core.zoo.model import Model

__all__ = ["Outcome", "measure"]


class Outcome(NamedTuple):
    """How a system did on some documents, in their order.

    Attributes
    ----------
    right
        Boolean, (documents,): the likeliest token is the answer.
    admitted
        (documents,): of the new entries that met a full memory, the share that got in; mean over
        the layers.
    present
        (documents,): when the queries of a chunk attended, the share of the chunk's own keys and
        values that were still there; mean over all layers and positions.
    """

    right: NDArray[np.bool_]
    admitted: NDArray[np.float64]
    present: NDArray[np.float64]


def measure(
    model: Model, documents: Sequence[Document], system: System, *, batch: int = 32
) -> Outcome:
    """Let a model with a memory read documents and answer.

    Parameters
    ----------
    model
        Its own memory does not matter.
    system
        From `attendre_core.evaluation.system`.
    batch
        Documents read side by side; it changes the speed, never the result.

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
    # Rows of similar length wait for each other least.
    order = np.argsort([len(row) for row in rows], kind="stable")
    for start in range(0, len(rows), batch):
        some = order[start : start + batch]
        read = [rows[i] for i in some]
        lengths = [len(row) for row in read]
        memory = system.memory_for(max(lengths), causal=model.causal)
        watched = WatchedStream(model, memory, lengths)
        watched.stream.feed(read)
        _, logits = watched.stream.writer(1)
        right[some] = logits.argmax(axis=-1) == answers[some]
        admitted[some], present[some] = watched.admitted, watched.present
    return Outcome(right, admitted, present)
