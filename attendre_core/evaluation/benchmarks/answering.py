"""Let a model read questions with a memory: what it writes, and how likely it finds the truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.evaluation.benchmarks.benchmark import memory_bytes, memory_of
from attendre_core.evaluation.benchmarks.question import Question
from attendre_core.evaluation.observer import Presence
from attendre_core.evaluation.systems import System
from attendre_core.zoo.generate import log_softmax
from attendre_core.zoo.model import Model
from attendre_core.zoo.stream import Stream
from attendre_core.zoo.tokens import padded
from attendre_core.zoo.writer import Writer

__all__ = ["Answered", "answered", "log_likelihood"]


class Answered(NamedTuple):
    """What became of one question.

    Attributes
    ----------
    text
        What the model wrote, up to the end of the first line; empty if it was not asked to.
    log_likelihood
        Of the right answer, the mean of its tokens, in nats.
    admitted, present
        As in `attendre_core.evaluation.Outcome`; 1 without a memory.
    nbytes
        Bytes of the memory of this question.
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
    pinned: int = 48,
) -> Iterator[list[Answered]]:
    """Read questions side by side, a batch at a time.

    Parameters
    ----------
    new_tokens
        Tokens that the model writes; 0 measures only the log-likelihood, in less time.
    pinned
        Positions that the control "pinned" never gives up.
    """
    for start in range(0, len(questions), batch):
        some = questions[start : start + batch]
        rows = [_read(question, system) for question in some]
        longest = max(len(row) for row in rows)
        memory = memory_of(model, system, longest, pinned)
        presence = Presence([len(row) for row in rows], memory.chunk)
        stream = model.with_memory(memory).stream(len(rows), observer=presence)
        stream.feed(rows)
        room = max(new_tokens, *(len(question.gold) for question in some))
        likely = log_likelihood(*stream.writer(room), [question.gold for question in some])
        texts = _written(stream, new_tokens)
        admitted = np.mean([r.admitted_share for r in stream.reports()], axis=0)
        present = presence.shares
        yield [
            Answered(
                texts[i], float(likely[i]), float(admitted[i]), float(present[i]),
                memory_bytes(model, system, len(rows[i])),
            )
            for i in range(len(rows))
        ]  # fmt: skip


def log_likelihood(
    writer: Writer, logits: Any, answers: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Return the mean log-probability of the tokens of an answer, (rows,).

    Parameters
    ----------
    writer, logits
        From `Stream.writer`; the logits are those of the first token.
    answers
        Token ids of each row. All tokens but the last are written at once.
    """
    first = np.asarray([answer[0] for answer in answers])
    everyone = np.arange(len(answers))
    total = log_softmax(np.asarray(logits, dtype=np.float64))[everyone, first]
    tokens, valid = padded([list(answer[:-1]) for answer in answers])
    if tokens.shape[1]:
        following = writer.probe(tokens, valid)
        wanted, _ = padded([list(answer[1:]) for answer in answers])
        for step in range(tokens.shape[1]):
            scores = log_softmax(following[:, step].astype(np.float64))[everyone, wanted[:, step]]
            total = total + np.where(valid[:, step], scores, 0.0)
    lengths = np.asarray([len(answer) for answer in answers])
    return np.asarray(total / lengths, dtype=np.float64)


def _read(question: Question, system: System) -> list[int]:
    if system.reads == "question":
        return question.closed
    return question.tokens[-system.memory.chunk :] if system.reads == "last" else question.tokens


def _written(stream: Stream, new_tokens: int) -> list[str]:
    if not new_tokens:
        return [""] * stream.batch
    rows = stream.generate(new_tokens)
    lines = [stream.model.text(row).strip().splitlines() for row in rows]
    return [line[0].strip() if line else "" for line in lines]
