"""Read questions with a memory; return what the model writes and how likely the answer is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.evaluation.controls import System
from attendre_core.evaluation.tasks.question import Question
from attendre_core.evaluation.tasks.watched import WatchedStream, memory_bytes
from attendre_core.zoo.generate import log_softmax
from attendre_core.zoo.model import Model
from attendre_core.zoo.stream import Stream
from attendre_core.zoo.tokens import padded
from attendre_core.zoo.writer import Writer

__all__ = ["Answered", "answered", "log_likelihood"]


class Answered(NamedTuple):
    """The result of one question.

    Attributes
    ----------
    text
        The first line that the model wrote; empty if it was not asked to write.
    log_likelihood
        Mean log-probability of the tokens of the right answer, in nats.
    admitted, present
        As in `attendre_core.evaluation.Outcome`.
    nbytes
        Bytes kept for this question.
    """

    text: str
    log_likelihood: float
    admitted: float
    present: float
    nbytes: int


def answered(
    model: Model,
    questions: Sequence[Question],
    system: System,
    *,
    batch: int = 8,
    new_tokens: int = 16,
) -> Iterator[list[Answered]]:
    """Read questions in batches and yield the results of each batch.

    Parameters
    ----------
    batch
        Questions read side by side.
    new_tokens
        Tokens that the model may write; 0 measures only the log-likelihood, which is faster.
    """
    for start in range(0, len(questions), batch):
        some = questions[start : start + batch]
        rows = [system.part_of(question.tokens, question.closed) for question in some]
        lengths = [len(row) for row in rows]
        memory = system.memory_for(max(lengths), causal=model.causal)
        watched = WatchedStream(model, memory, lengths)
        stream = watched.stream
        stream.feed(rows)
        room = max(new_tokens, *(len(question.gold) for question in some))
        likely = log_likelihood(*stream.writer(room), [question.gold for question in some])
        texts = _written(stream, new_tokens)
        admitted, present = watched.admitted, watched.present
        yield [
            Answered(
                texts[i], float(likely[i]), float(admitted[i]), float(present[i]),
                memory_bytes(model, system, lengths[i]),
            )
            for i in range(len(rows))
        ]  # fmt: skip


def log_likelihood(
    writer: Writer, logits: Any, answers: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Return the mean log-probability of the tokens of each answer, (rows,).

    Parameters
    ----------
    writer, logits
        From `Stream.writer`; ``logits``, (batch, vocabulary), predict the first token.
    answers
        Token ids of each row. All tokens but the last are read in one step.
    """
    first = np.asarray([answer[0] for answer in answers])
    rows = np.arange(len(answers))
    logits = writer.model.backend.to_numpy(logits)
    total = log_softmax(np.asarray(logits, dtype=np.float64))[rows, first]
    tokens, valid = padded([list(answer[:-1]) for answer in answers])
    if tokens.shape[1]:
        following = writer.probe(tokens, valid)
        wanted, _ = padded([list(answer[1:]) for answer in answers])
        for step in range(tokens.shape[1]):
            scores = log_softmax(following[:, step].astype(np.float64))[rows, wanted[:, step]]
            total = total + np.where(valid[:, step], scores, 0.0)
    lengths = np.asarray([len(answer) for answer in answers])
    return np.asarray(total / lengths, dtype=np.float64)


def _written(stream: Stream, new_tokens: int) -> list[str]:
    if not new_tokens:
        return [""] * stream.batch
    rows = stream.generate(new_tokens)
    lines = [stream.model.text(row).strip().splitlines() for row in rows]
    return [line[0].strip() if line else "" for line in lines]
