"""The perplexity of a decoder on a long text that it reads as a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import System
from attendre_core.evaluation.oracle import FullReads
from attendre_core.evaluation.tasks.task import Metric, Scores
from attendre_core.evaluation.tasks.text_files import checksum, text_tokens
from attendre_core.evaluation.tasks.watched import WatchedStream, entries_held, memory_bytes
from attendre_core.zoo.generate import log_softmax
from attendre_core.zoo.model import Model

__all__ = ["Perplexity", "StreamPiece"]


class StreamPiece(NamedTuple):
    """A piece of a stream: an item of the task, scored by the mean loss of its tokens.

    Attributes
    ----------
    name
        Number of the stream and first token of the piece, as in ``"0:129"``.
    stream, start, stop
        The piece is the tokens ``start:stop`` of this stream.
    tokens
        The whole stream, shared by all its pieces.
    """

    name: str
    stream: int
    start: int
    stop: int
    tokens: list[int]


@dataclass(frozen=True)
class Perplexity:
    """Predict every token of a text from what the memory has kept of the tokens before it.

    The intervals resample pieces of the text. Neighbouring pieces are similar, so the intervals
    are a little too narrow; those of differences between systems are affected least.

    Parameters
    ----------
    data
        A text file.
    tokens
        Tokens per stream.
    streams
        How many streams, cut from the file one after another and read side by side.
    skip
        Characters to skip at the beginning of the file, such as a licence.
    piece
        Tokens per item.
    """

    data: str = ""
    tokens: int = 4096
    streams: int = 1
    skip: int = 0
    piece: int = 128

    name: ClassVar[str] = "perplexity"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "perplexity", higher=False, exponential=True),
    )
    controls: ClassVar[tuple[str, ...]] = ("full", "no-memory", "first-M", "random", "pinned")
    whole: ClassVar[bool] = True
    pinned: ClassVar[int] = 48
    clamps: ClassVar[bool] = False

    def identity(self) -> dict[str, Any]:
        """Return everything that the pieces depend on."""
        names = ("tokens", "streams", "skip", "piece")
        return {
            "data": Path(self.data).name,
            "sha256": checksum(self.data),
            **{name: getattr(self, name) for name in names},
        }

    def items(self, model: Model) -> list[StreamPiece]:
        """Cut the text into streams, and the streams into pieces."""
        if model.architecture.kind != "decoder" or not model.causal:
            raise ConfigError(
                "eval perplexity: only a causal decoder predicts the next token of a stream. Give "
                "one, or leave --attention prefix out."
            )
        ids = text_tokens("perplexity", model, self.data, self.tokens * self.streams, self.skip)
        pieces = []
        for number in range(self.streams):
            row = ids[number * self.tokens : (number + 1) * self.tokens]
            # The first token is never predicted.
            for start in range(1, self.tokens, self.piece):
                stop = min(start + self.piece, self.tokens)
                pieces.append(StreamPiece(f"{number}:{start}", number, start, stop, row))
        return pieces

    def longest(self, items: Sequence[StreamPiece]) -> int:
        """Return the number of tokens of a stream."""
        return self.tokens

    def measure(
        self, model: Model, items: Sequence[StreamPiece], system: System, batch: int
    ) -> Iterator[Scores]:
        """Read all streams, ``batch`` at a time; all scores are yielded at the end."""
        rows = {item.stream: item.tokens for item in items}
        numbers = list(rows)
        scores: Scores = []
        for start in range(0, len(numbers), batch):
            chosen = numbers[start : start + batch]
            losses, more = stream_losses(model, [rows[number] for number in chosen], system)
            scores += self._scores(items, chosen, losses, more)
        yield scores

    def measure_oracles(
        self, model: Model, items: Sequence[StreamPiece], systems: Sequence[System], batch: int
    ) -> Iterator[list[Scores]]:
        """Predict each piece from what is kept of a read with full attention of all before it."""
        rows = {item.stream: item.tokens for item in items}
        numbers = list(rows)
        scores: list[Scores] = [[] for _ in systems]
        for start in range(0, len(numbers), batch):
            chosen = numbers[start : start + batch]
            read = [rows[number] for number in chosen]
            found = oracle_losses(model, read, systems, self.piece)
            for each, (losses, more) in zip(scores, found, strict=True):
                each += self._scores(items, chosen, losses, more)
        yield scores

    def _scores(
        self,
        items: Sequence[StreamPiece],
        chosen: list[int],
        losses: NDArray[np.float64],
        more: dict[str, list[float]],
    ) -> Scores:
        """Return the scores of the pieces of some streams."""
        some = [item for item in items if item.stream in chosen]
        scores: Scores = []
        for item in some:
            row = chosen.index(item.stream)
            loss = float(losses[row, item.start : item.stop].mean())
            diagnostics = {name: values[row] for name, values in more.items()}
            diagnostics["seconds"] = more["seconds"][row] / (len(some) / len(chosen))
            scores.append((item.name, {"loss": loss, **diagnostics}))
        return scores


def stream_losses(
    model: Model, rows: list[list[int]], system: System
) -> tuple[NDArray[np.float64], dict[str, list[float]]]:
    """Return the loss of each token, (rows, length), and the diagnostics of each row."""
    length = len(rows[0])
    alone = system.reads == "last"
    memory = system.memory_for(length, causal=model.causal)
    if alone:
        # Without a memory, every chunk is read by itself: a FIFO with room for one chunk, also in
        # layers with a sliding window.
        every = dict.fromkeys(range(model.reading_part.layers), system.memory.policy)
        memory = system.memory.with_layer_policies(every)
    chunk = memory.chunk
    watched = WatchedStream(model, memory, [length] * len(rows))
    stream = watched.stream
    wanted = np.asarray(rows)
    losses = np.zeros((len(rows), length))
    seconds = 0.0
    for start in range(0, length, chunk):
        began = time.process_time()
        read = list(stream.read([row[start : start + chunk] for row in rows]))
        seconds += time.process_time() - began
        for hidden in read:
            _note(model, hidden, wanted, losses)
    for hidden in stream.finish():
        _note(model, hidden, wanted, losses)
    admitted, present = watched.admitted.tolist(), watched.present.tolist()
    more = {"admitted": admitted, "present": present}
    return losses, {**more, **_costs(model, system, chunk if alone else length, len(rows), seconds)}


def oracle_losses(
    model: Model, rows: list[list[int]], systems: Sequence[System], piece: int
) -> list[tuple[NDArray[np.float64], dict[str, list[float]]]]:
    """Return for each oracle what `stream_losses` returns; what was kept changes every piece.

    A piece is predicted from its own tokens and M entries of everything before them.
    """
    length = len(rows[0])
    starts = range(0, length - 1, piece)
    whole = FullReads(model, [row[: max(starts[-1], 1)] for row in rows])
    wanted = np.asarray(rows)
    results = []
    for system in systems:
        losses, chunk = np.zeros((len(rows), length)), system.memory.chunk
        if piece % chunk:
            raise ConfigError(
                f"eval perplexity: --chunk is {chunk}, but oracles choose anew every {piece} "
                f"tokens. Use a chunk that divides {piece}."
            )
        cuts = whole[chunk].kept_at(system.memory, [start // chunk for start in starts])
        for start, kept in zip(starts, cuts, strict=True):
            logits = kept.probe([row[start : start + piece] for row in rows])
            for row, scores in enumerate(log_softmax(np.asarray(logits, dtype=np.float64))):
                following = wanted[row, start + 1 : start + 1 + piece]
                places = np.arange(len(following))
                losses[row, start + 1 : start + 1 + piece] = -scores[places, following]
        results.append((losses, _costs(model, system, length, len(rows), cuts[0].seconds)))
    return results


def _costs(
    model: Model, system: System, length: int, rows: int, seconds: float
) -> dict[str, list[float]]:
    """Return what is held and the CPU seconds of reading, of each row."""
    costs = {
        "bytes": float(memory_bytes(model, system, length)),
        "entries": entries_held(model, system, length),
        "seconds": seconds / rows,
    }
    return {name: [value] * rows for name, value in costs.items()}


def _note(model: Model, hidden: Any, wanted: Any, losses: Any) -> None:
    """Write the losses of the tokens that the hidden states predict into ``losses``."""
    to_numpy = model.backend.to_numpy
    logits = to_numpy(model.architecture.logits(model.params, hidden.x))
    scores = log_softmax(np.asarray(logits, dtype=np.float64))
    position, valid = np.asarray(to_numpy(hidden.position)), np.asarray(to_numpy(hidden.valid))
    for row in range(len(wanted)):
        real = valid[row] & (position[row] + 1 < wanted.shape[1])
        following = position[row][real] + 1
        losses[row, following] = -scores[row][real, wanted[row, following]]
