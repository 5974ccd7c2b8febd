"""How well a decoder predicts a long text that it reads as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import System
from attendre_core.evaluation.tasks.task import Metric, Scores
from attendre_core.evaluation.tasks.text_files import checksum, text_tokens
from attendre_core.evaluation.tasks.watched import WatchedStream, memory_bytes
from attendre_core.zoo.generate import log_softmax
from attendre_core.zoo.model import Model

__all__ = ["Perplexity", "StreamPiece"]


class StreamPiece(NamedTuple):
    """Some tokens of a stream that count together: an item of the task.

    Attributes
    ----------
    name
        Which stream, and where in it.
    stream, start, stop
        The tokens ``start:stop`` of that stream are predicted.
    tokens
        The whole stream; all its pieces share it.
    """

    name: str
    stream: int
    start: int
    stop: int
    tokens: list[int]


@dataclass(frozen=True)
class Perplexity:
    """Predict every token of a text from what the memory has kept of the tokens before.

    The intervals resample pieces of the text. Neighbouring pieces are alike, so the intervals are
    a little too narrow; those of differences between systems suffer least.

    Parameters
    ----------
    data
        A text file.
    tokens
        Tokens of a stream.
    streams
        How many streams, cut from the file one after another and read side by side.
    skip
        Characters to skip at the beginning of the file, such as a licence.
    piece
        Tokens that count together.
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
        """Return what the text depends on."""
        names = ("tokens", "streams", "skip", "piece")
        return {
            "data": Path(self.data).name,
            "sha256": checksum(self.data),
            **{name: getattr(self, name) for name in names},
        }

    def items(self, model: Model) -> list[StreamPiece]:
        """Cut the text into streams, and these into pieces."""
        if model.architecture.kind != "decoder" or not model.causal:
            raise ConfigError(
                "eval perplexity: only a causal decoder predicts the next token of a stream. Give "
                "one, or leave --attention prefix out."
            )
        ids = text_tokens("perplexity", model, self.data, self.tokens * self.streams, self.skip)
        found = []
        for number in range(self.streams):
            row = ids[number * self.tokens : (number + 1) * self.tokens]
            # The first token is never predicted.
            for start in range(1, self.tokens, self.piece):
                stop = min(start + self.piece, self.tokens)
                found.append(StreamPiece(f"{number}:{start}", number, start, stop, row))
        return found

    def longest(self, items: Sequence[StreamPiece]) -> int:
        """Return the tokens of a stream."""
        return self.tokens

    def measure(
        self, model: Model, items: Sequence[StreamPiece], system: System, batch: int
    ) -> Iterator[Scores]:
        """Read all streams, ``batch`` at a time; everything comes at the end."""
        rows = {item.stream: item.tokens for item in items}
        numbers = list(rows)
        found: Scores = []
        for start in range(0, len(numbers), batch):
            some = numbers[start : start + batch]
            losses, more = stream_losses(model, [rows[number] for number in some], system)
            for item in items:
                if item.stream in some:
                    row = some.index(item.stream)
                    loss = float(losses[row, item.start : item.stop].mean())
                    shares = {name: values[row] for name, values in more.items()}
                    found.append((item.name, {"loss": loss, **shares}))
        yield found


def stream_losses(
    model: Model, rows: list[list[int]], system: System
) -> tuple[NDArray[np.float64], dict[str, list[float]]]:
    """Return the loss of each token, (rows, length), and the diagnostics of each row."""
    length = len(rows[0])
    alone = system.reads == "last"
    # Without a memory every chunk is read by itself: FIFO with room for one chunk.
    memory = system.memory if alone else system.memory_for(length, causal=model.causal)
    chunk = memory.chunk
    watched = WatchedStream(model, memory, [length] * len(rows))
    stream = watched.stream
    wanted = np.asarray(rows)
    losses = np.zeros((len(rows), length))
    for start in range(0, length, chunk):
        for hidden in stream.read([row[start : start + chunk] for row in rows]):
            _note(model, hidden, wanted, losses)
    for hidden in stream.finish():
        _note(model, hidden, wanted, losses)
    admitted, present = watched.admitted.tolist(), watched.present.tolist()
    kept = [float(memory_bytes(model, system, chunk if alone else length))] * len(rows)
    return losses, {"admitted": admitted, "present": present, "bytes": kept}


def _note(model: Model, hidden: Any, wanted: Any, losses: Any) -> None:
    """Enter the losses of the tokens that follow those that came out."""
    to_numpy = model.backend.to_numpy
    logits = to_numpy(model.architecture.logits(model.params, hidden.x))
    scores = log_softmax(np.asarray(logits, dtype=np.float64))
    position, valid = np.asarray(to_numpy(hidden.position)), np.asarray(to_numpy(hidden.valid))
    for row in range(len(wanted)):
        real = valid[row] & (position[row] + 1 < wanted.shape[1])
        following = position[row][real] + 1
        losses[row, following] = -scores[row][real, wanted[row, following]]
