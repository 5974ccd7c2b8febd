"""Read texts longer than an encoder allows in the ways in use today, and through a memory.

What is in use: cut the text off (``"truncated"``); read pieces on their own and average their
embeddings (``"pieces"``, or ``"overlapping-pieces"`` that share half with the next); or read
overlapping windows, take every token's state from the window that has most around it, and pool
these (``"windows"``, which is late chunking in windows).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.evaluation.controls import System
from attendre_core.zoo.model import Model

__all__ = ["Cut", "Vectors", "cuts_of", "vectors_of"]

Floats = NDArray[np.float64]


class Cut(NamedTuple):
    """A piece of a text, ``start:stop``, and the part of it whose states are kept."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(frozen=True)
class Vectors:
    """What is kept of a text.

    Attributes
    ----------
    one
        (dim,): the embedding of the whole text, of length one.
    spans
        (spans, dim): an embedding for every piece of the text, of length one.
    seconds
        Processor time.
    """

    one: Floats
    spans: Floats
    seconds: float


def cuts_of(reads: str, length: int, room: int) -> list[Cut]:
    """Return the pieces in which a text of ``length`` tokens is read, ``room`` tokens at a time.

    Examples
    --------
    >>> [tuple(cut) for cut in cuts_of("pieces", 10, 4)]
    [(0, 4, 0, 4), (4, 8, 4, 8), (8, 10, 8, 10)]
    >>> [tuple(cut) for cut in cuts_of("windows", 10, 4)]
    [(0, 4, 0, 3), (2, 6, 3, 5), (4, 8, 5, 7), (6, 10, 7, 10)]
    """
    if reads == "first-piece":
        return [Cut(0, min(room, length), 0, min(room, length))]
    step = room if reads == "pieces" else max(room // 2, 1)
    starts = [0, *range(step, max(length - (room - step), 1), step)]
    cuts = [Cut(start, min(start + room, length), start, min(start + room, length))
            for start in starts]  # fmt: skip
    if reads != "windows":
        return cuts
    # Two windows share what they overlap in: each keeps the half that is nearer to its middle.
    edges = [0, *((a.stop + b.start) // 2 for a, b in pairwise(cuts)), length]
    return [
        cut._replace(first=first, last=last)
        for cut, first, last in zip(cuts, edges, edges[1:], strict=False)
    ]


def vectors_of(
    model: Model,
    rows: Sequence[Sequence[int]],
    around: tuple[Sequence[int], Sequence[int]],
    system: System,
    window: int,
    batch: int,
) -> Iterator[Vectors]:
    """Embed texts with a system, by the mean of their hidden states.

    Parameters
    ----------
    rows
        Token ids of texts of the same length, without special tokens.
    around
        The special tokens before and after a text; pieces have them, too.
    window
        Tokens of a piece, with the special ones.
    batch
        Pieces, or texts, that are read side by side.
    """
    before, after = (list(ids) for ids in around)
    room = window - len(before) - len(after)
    spans = cuts_of("pieces", len(rows[0]), room)
    if system.reads == "all":
        memory = None if system.whole else system.memory_for(len(rows[0]), causal=model.causal)
        reading = model.with_memory(memory)
        first, length = len(before), len(before) + len(rows[0]) + len(after)
        wanted = [(0, length), *((first + cut.start, first + cut.stop) for cut in spans)]
        for start in range(0, len(rows), batch):
            some = [[*before, *row, *after] for row in rows[start : start + batch]]
            began = time.process_time()
            found = reading.embed(some, "mean", normalize=True, spans=[wanted] * len(some))
            seconds = (time.process_time() - began) / len(some)
            for vectors in found:
                each = _numpy(model, vectors)
                yield Vectors(each[0], each[1:], seconds)
        return
    cuts = cuts_of(system.reads, len(rows[0]), room)
    whole = model.with_memory(None)
    for row in rows:
        began = time.process_time()
        pieces = [[*before, *row[cut.start : cut.stop], *after] for cut in cuts]
        if system.reads != "windows":
            each = _numpy(model, whole.embed(pieces, "mean", normalize=True, batch_size=batch))
            yield Vectors(unit(each.mean(axis=0)), each, time.process_time() - began)
            continue
        states = []
        for start in range(0, len(cuts), batch):
            states += list(_numpy(model, whole.encode(pieces[start : start + batch])))
        x = np.concatenate([
            state[cut.first - cut.start + len(before) :][: cut.last - cut.first]
            for state, cut in zip(states, cuts, strict=True)
        ])  # fmt: skip
        each = np.stack([x[cut.start : cut.stop].mean(axis=0) for cut in spans])
        yield Vectors(unit(x.mean(axis=0)), unit(each), time.process_time() - began)


def _numpy(model: Model, array: Any) -> Floats:
    return np.asarray(model.backend.to_numpy(array), dtype=np.float64)


def unit(x: Floats) -> Floats:
    """Bring vectors to length one."""
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.asarray(x / np.maximum(lengths, 1e-12), dtype=np.float64)
