"""Read questions with a memory; return what the model writes and how likely the answer is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.evaluation.controls import System
from attendre_core.evaluation.oracle import FullReads
from attendre_core.evaluation.tasks.question import Question
from attendre_core.evaluation.tasks.watched import WatchedStream, entries_held, memory_bytes
from attendre_core.zoo.generate import generate, log_softmax
from attendre_core.zoo.model import Model
from attendre_core.zoo.tokens import padded
from attendre_core.zoo.writer import Writer

__all__ = ["Answered", "answered", "answered_by_oracles", "log_likelihood"]


class Answered(NamedTuple):
    """The result of one question.

    Attributes
    ----------
    text
        The first line that the model wrote; empty if it was not asked to write.
    log_likelihood
        Mean log-probability of the tokens of the right answer, in nats.
    admitted, present
        As in `attendre_core.evaluation.Outcome`; NaN for an oracle.
    nbytes, entries
        Bytes kept for this question, and K/V entries per layer.
    seconds
        CPU seconds of reading: the question's share of its batch.
    """

    text: str
    log_likelihood: float
    admitted: float
    present: float
    nbytes: int
    entries: float
    seconds: float


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
        if system.oracle:
            yield _by_oracles(model, some, [system], new_tokens)[0]
        else:
            yield _by_memory(model, some, system, new_tokens)


def answered_by_oracles(
    model: Model,
    questions: Sequence[Question],
    systems: Sequence[System],
    *,
    batch: int = 8,
    new_tokens: int = 16,
) -> Iterator[list[list[Answered]]]:
    """Read contexts once with full attention, and answer from what each system keeps of them.

    Parameters are those of `answered`. Yields the results of each batch, a list per system.
    """
    for start in range(0, len(questions), batch):
        yield _by_oracles(model, questions[start : start + batch], systems, new_tokens)


def _by_memory(
    model: Model, some: Sequence[Question], system: System, new_tokens: int
) -> list[Answered]:
    rows = [system.part_of(question.tokens, question.closed) for question in some]
    lengths = [len(row) for row in rows]
    memory = system.memory_for(max(lengths), causal=model.causal)
    watched = WatchedStream(model, memory, lengths)
    began = time.process_time()
    watched.stream.feed(rows)
    watched.stream.finish()
    seconds = (time.process_time() - began) / len(rows)
    answers = _answers(model, some, watched.stream.writer, new_tokens)
    admitted, present = watched.admitted, watched.present
    return [
        Answered(
            *answer, float(admitted[i]), float(present[i]), memory_bytes(model, system, lengths[i]),
            entries_held(model, system, lengths[i]), seconds,
        )
        for i, answer in enumerate(answers)
    ]  # fmt: skip


def _by_oracles(
    model: Model, some: Sequence[Question], systems: Sequence[System], new_tokens: int
) -> list[list[Answered]]:
    contexts = [question.tokens[: max(question.context, 1)] for question in some]
    rest = [question.tokens[max(question.context, 1) :] for question in some]
    whole, longest = FullReads(model, contexts), max(len(context) for context in contexts)
    results = []
    for system in systems:
        kept = whole[system.memory.chunk].kept(system.memory)
        answers = _answers(model, some, partial(kept.following, rest), new_tokens)
        size = memory_bytes(model, system, longest)
        held = entries_held(model, system, longest)
        seconds = kept.seconds / len(some)
        results.append(
            [Answered(*answer, math.nan, math.nan, size, held, seconds) for answer in answers]
        )
    return results


def _answers(
    model: Model,
    some: Sequence[Question],
    start: Callable[[int], tuple[Writer, Any]],
    new_tokens: int,
) -> list[tuple[str, float]]:
    """Return the first line that is written for each question, and how likely the answer is."""
    room = max(new_tokens, *(len(question.gold) for question in some))
    likely = log_likelihood(*start(room), [question.gold for question in some])
    lines: list[list[str]] = [[]] * len(some)
    if new_tokens:
        lines = [model.text(row).strip().splitlines() for row in generate(model, start, new_tokens)]
    return [
        (line[0].strip() if line else "", float(value))
        for line, value in zip(lines, likely, strict=True)
    ]


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
