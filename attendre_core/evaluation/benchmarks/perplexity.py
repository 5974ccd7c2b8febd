"""How well a decoder predicts a long text that it reads as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError
from attendre_core.evaluation.benchmarks.benchmark import (
    Metric,
    Scores,
    memory_bytes,
    memory_of,
)
from attendre_core.evaluation.benchmarks.trivia import checksum
from attendre_core.evaluation.observer import Presence
from attendre_core.evaluation.systems import System
from attendre_core.zoo.generate import log_softmax
from attendre_core.zoo.model import Model

__all__ = ["Perplexity", "StreamPiece", "text_tokens"]


class StreamPiece(NamedTuple):
    """Some tokens of a stream, which count together: an item of the benchmark.

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

    The intervals draw pieces of the text again. Neighbouring pieces are alike, so the intervals
    are a little too narrow; those of differences between systems suffer least.

    Parameters
    ----------
    data
        A text file.
    tokens
        Tokens of a stream.
    streams
        How many streams, cut from the file one after the other and read side by side.
    skip
        Characters at the beginning of the file that are left out, such as a licence.
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
            losses, more = stream_losses(
                model, [rows[number] for number in some], system, self.pinned
            )
            for item in items:
                if item.stream in some:
                    row = some.index(item.stream)
                    loss = float(losses[row, item.start : item.stop].mean())
                    shares = {name: values[row] for name, values in more.items()}
                    found.append((item.name, {"loss": loss, **shares}))
        yield found


def stream_losses(
    model: Model, rows: list[list[int]], system: System, pinned: int
) -> tuple[NDArray[np.float64], dict[str, list[float]]]:
    """Return the loss of each token, (rows, length), and the diagnostics of each row."""
    length = len(rows[0])
    alone = system.reads == "last"
    # Without a memory every chunk is read for itself: FIFO with room for one chunk.
    memory = system.memory if alone else memory_of(model, system, length, pinned)
    chunk = memory.chunk
    presence = Presence([length] * len(rows), chunk)
    stream = model.with_memory(memory).stream(len(rows), observer=presence)
    wanted = np.asarray(rows)
    losses = np.zeros((len(rows), length))
    for start in range(0, length, chunk):
        for hidden in stream.read([row[start : start + chunk] for row in rows]):
            _note(model, hidden, wanted, losses)
    for hidden in stream.finish():
        _note(model, hidden, wanted, losses)
    admitted = np.mean([r.admitted_share for r in stream.reports()], axis=0).tolist()
    present = presence.shares.tolist()
    kept = [float(memory_bytes(model, system, chunk if alone else length))] * len(rows)
    return losses, {"admitted": admitted, "present": present, "bytes": kept}


def _note(model: Model, hidden: Any, wanted: Any, losses: Any) -> None:
    """Enter the losses of the tokens behind those that came out."""
    to_numpy = model.backend.to_numpy
    logits = to_numpy(model.architecture.logits(model.params, hidden.x))
    scores = log_softmax(np.asarray(logits, dtype=np.float64))
    position, valid = np.asarray(to_numpy(hidden.position)), np.asarray(to_numpy(hidden.valid))
    for row in range(len(wanted)):
        real = valid[row] & (position[row] + 1 < wanted.shape[1])
        following = position[row][real] + 1
        losses[row, following] = -scores[row][real, wanted[row, following]]


def text_tokens(where: str, model: Model, path: str, count: int, skip: int) -> list[int]:
    """Read the first ``count`` tokens of a text file behind ``skip`` characters."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"eval {where}: there is no file {file}. Give a text with --data.")
    # A token has rarely more than a dozen characters; no need to cut up a whole book.
    with file.open(encoding="utf-8", errors="replace") as opened:
        text = opened.read(skip + 24 * count + 1000)[skip:]
    ids = model.tokens(text)
    if len(ids) < count:
        raise ConfigError(
            f"eval {where}: {file} has {len(ids)} tokens, expected at least {count}. Give a longer "
            "text, or ask for fewer with --context-tokens or --streams."
        )
    return ids[:count]
