"""Exact match of the answer: a model, a memory, and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError
from attendre_core.evaluation.observer import Presence
from attendre_core.evaluation.systems import System
from attendre_core.evaluation.tasks import Document
from attendre_core.zoo.model import Model

__all__ = ["Outcome", "measure"]


class Outcome(NamedTuple):
    """How a system did on some documents, in their order.

    Attributes
    ----------
    right
        Boolean, (documents,): the likeliest token is the answer.
    admitted
        (documents,): of the new entries that met a full memory, the share that got in; mean of
        the layers.
    present
        (documents,): when the queries of a chunk attended, the share of the chunk's own keys
        and values that were still there; mean of all layers and positions.
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
    rows = [system.tokens(document).tolist() for document in documents]
    answers = np.asarray([document.answer for document in documents])
    right = np.zeros(len(rows), dtype=bool)
    admitted, present = np.ones(len(rows)), np.ones(len(rows))
    # Rows of about the same length wait for each other least.
    order = np.argsort([len(row) for row in rows], kind="stable")
    for start in range(0, len(rows), batch):
        some = order[start : start + batch]
        logits, admitted[some], present[some] = _read(model, [rows[i] for i in some], system)
        right[some] = logits.argmax(axis=-1) == answers[some]
    return Outcome(right, admitted, present)


def _read(model: Model, rows: list[list[int]], system: System) -> tuple[Any, Any, Any]:
    """Read rows: logits of the answer, (rows, vocabulary), and both shares of each row."""
    longest = max(len(row) for row in rows)
    memory = system.memory_for(longest)
    # Everything that an encoder says is kept for its decoder, and no room for more.
    memory = replace(memory, encoder_outputs=longest)
    presence = Presence([len(row) for row in rows], memory.chunk)
    stream = model.with_memory(memory).stream(len(rows), observer=presence)
    stream.feed(rows)
    _, logits = stream.writer(1)
    shares = [report.admitted_share for report in stream.reports()]
    return logits, np.mean(shares, axis=0), presence.shares
