"""How close the embeddings of a bidirectional encoder stay to those of full attention."""

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
from attendre_core.zoo.model import Model

__all__ = ["Embedding", "Text"]


class Text(NamedTuple):
    """A piece of the text, to be embedded."""

    name: str
    tokens: list[int]


@dataclass(frozen=True)
class Embedding:
    """Embed pieces of a text with and without a memory.

    An embedding is the mean of the hidden states of a piece. It is compared with that of full
    attention over the same piece, so a piece must not be longer than the model allows.

    Parameters
    ----------
    data
        A text file.
    tokens
        Tokens per piece.
    limit
        How many pieces.
    skip
        Characters to skip at the beginning of the file.
    """

    data: str = ""
    tokens: int = 384
    limit: int | None = 20
    skip: int = 0

    name: ClassVar[str] = "embedding"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("cosine", "cosine", digits=3),
        Metric("token_cosine", "cosine of tokens", digits=3),
    )
    controls: ClassVar[tuple[str, ...]] = ("full", "no-memory", "first-M", "random", "pinned")
    whole: ClassVar[bool] = False
    pinned: ClassVar[int] = 8
    clamps: ClassVar[bool] = False

    def identity(self) -> dict[str, Any]:
        """Return everything that the pieces depend on."""
        return {
            "data": Path(self.data).name,
            "sha256": checksum(self.data),
            "tokens": self.tokens,
            "skip": self.skip,
        }

    def items(self, model: Model) -> list[Text]:
        """Cut the text into pieces."""
        context = model.reading_part.context
        if model.causal:
            raise ConfigError(
                "eval embedding: this model attends only backwards. Give an encoder, or use the "
                "task 'perplexity'."
            )
        if context is not None and self.tokens > context:
            raise ConfigError(
                f"eval embedding: pieces of {self.tokens} tokens, but full attention of this model "
                f"ends at {context}. Give fewer with --context-tokens."
            )
        count = 20 if self.limit is None else self.limit
        before, after = specials(model)
        room = self.tokens - len(before) - len(after)
        if room < 1:
            raise ConfigError(
                f"eval embedding: pieces of {self.tokens} tokens have no room for a text between "
                "the special ones. Give more with --context-tokens."
            )
        wanted = room * count + len(before)
        ids = text_tokens("embedding", model, self.data, wanted, self.skip)[len(before) :]
        pieces = [ids[i * room : (i + 1) * room] for i in range(count)]
        return [Text(f"text-{i}", [*before, *piece, *after]) for i, piece in enumerate(pieces)]

    def longest(self, items: Sequence[Text]) -> int:
        """Return the number of tokens of a piece."""
        return self.tokens

    def measure(
        self, model: Model, items: Sequence[Text], system: System, batch: int
    ) -> Iterator[Scores]:
        """Embed pieces in batches and compare them with full attention."""
        whole = model.with_memory(None)
        for start in range(0, len(items), batch):
            texts = items[start : start + batch]
            rows = [item.tokens for item in texts]
            full = _states(whole, rows)
            states, admitted, present = full, np.ones(len(rows)), np.ones(len(rows))
            if system.reads == "last":
                # Without a memory every chunk is read by itself.
                chunk = system.memory.chunk
                pieces = [
                    [row[i : i + chunk] for row in rows] for i in range(0, len(rows[0]), chunk)
                ]
                states = np.concatenate([_states(whole, piece) for piece in pieces], axis=1)
            elif not system.whole:
                memory = system.memory_for(self.tokens, causal=model.causal)
                watched = WatchedStream(model, memory, [len(row) for row in rows])
                states = _streamed(watched.stream, rows)
                admitted, present = watched.admitted, watched.present
            measured = zip(
                texts, _cosine(states.mean(axis=1), full.mean(axis=1)),
                _cosine(states, full).mean(axis=1), admitted, present, strict=True,
            )  # fmt: skip
            read = system.memory.chunk if system.reads == "last" else self.tokens
            kept = float(memory_bytes(model, system, min(read, self.tokens)))
            yield [
                (
                    item.name,
                    {
                        "cosine": float(cosine),
                        "token_cosine": float(token_cosine),
                        "admitted": float(admitted_share),
                        "present": float(present_share),
                        "bytes": kept,
                    },
                )
                for item, cosine, token_cosine, admitted_share, present_share in measured
            ]


def specials(model: Model) -> tuple[list[int], list[int]]:
    """Return the special tokens that a tokenizer puts before and after every text."""
    one, other = model.tokens("a"), model.tokens("b")
    first = next((i for i in range(len(one)) if one[i] != other[i]), len(one))
    last = next((i for i in range(len(one)) if one[-1 - i] != other[-1 - i]), 0)
    return one[:first], one[len(one) - last :]


def _states(model: Model, rows: list[list[int]]) -> NDArray[np.float64]:
    return np.asarray(model.backend.to_numpy(model.encode(rows)), dtype=np.float64)


def _streamed(stream: Any, rows: list[list[int]]) -> NDArray[np.float64]:
    """Read rows of equal length as streams; return the hidden states in input order."""
    to_numpy = stream.model.backend.to_numpy
    states = np.zeros((len(rows), len(rows[0]), stream.model.reading_part.dim))
    for hidden in [*stream.read(rows), *stream.finish()]:
        position, valid = np.asarray(to_numpy(hidden.position)), np.asarray(to_numpy(hidden.valid))
        x = np.asarray(to_numpy(hidden.x), dtype=np.float64)
        for row in range(len(rows)):
            states[row, position[row][valid[row]]] = x[row][valid[row]]
    return states


def _cosine(one: Any, other: Any) -> Any:
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return (one * other).sum(axis=-1) / np.maximum(lengths, 1e-12)
