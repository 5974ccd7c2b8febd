"""Continue a text: what a memory does to what a model writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import System
from attendre_core.evaluation.oracle import FullReads
from attendre_core.evaluation.tasks.repetition import copied_share, repeated_share
from attendre_core.evaluation.tasks.task import Metric, Scores
from attendre_core.evaluation.tasks.text_files import checksum, text_tokens
from attendre_core.evaluation.tasks.watched import WatchedStream, entries_held, memory_bytes
from attendre_core.zoo.model import Model
from attendre_core.zoo.writer import Writer

__all__ = ["Begun", "Continuation", "continued"]


class Begun(NamedTuple):
    """A text to continue: its name, its number, and its tokens."""

    name: str
    number: int
    tokens: list[int]


@dataclass(frozen=True)
class Continuation:
    """Read a text through a memory, and continue it.

    Measured are the share of runs of four tokens that the continuation repeats, and the share that
    it copies from what was read. All continuations have the same length: a model does not end them.

    Parameters
    ----------
    data
        A text file.
    tokens
        Tokens read before writing.
    new_tokens
        Tokens written.
    limit
        How many texts, cut from the file one after another.
    skip
        Characters to skip at the beginning of the file.
    temperature
        0 takes the likeliest token, otherwise tokens are sampled.
    seed
        Of the samples; each text has its own.
    """

    data: str = ""
    tokens: int = 512
    new_tokens: int = 128
    limit: int | None = 20
    skip: int = 0
    temperature: float = 0.0
    seed: int = 0

    name: ClassVar[str] = "continuation"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("repeated", "repeated", share=True, higher=False),
        Metric("copied", "copied", share=True, higher=False),
    )
    controls: ClassVar[tuple[str, ...]] = ("full", "no-memory", "first-M", "random", "pinned")
    whole: ClassVar[bool] = False
    pinned: ClassVar[int] = 48
    clamps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.new_tokens < 4 or self.tokens < 2:
            raise ConfigError(
                f"eval continuation: {self.tokens} tokens are read and {self.new_tokens} written, "
                "expected at least 2 and 4. Give more with --context-tokens and --new-tokens."
            )

    def identity(self) -> dict[str, Any]:
        """Return everything that the continuations depend on."""
        names = ("tokens", "new_tokens", "skip", "temperature", "seed")
        return {
            "data": Path(self.data).name,
            "sha256": checksum(self.data),
            **{name: getattr(self, name) for name in names},
        }

    def items(self, model: Model) -> list[Begun]:
        """Cut the text into pieces to be continued."""
        if model.architecture.kind != "decoder":
            raise ConfigError("eval continuation: only a decoder continues a text. Give one.")
        count = 20 if self.limit is None else self.limit
        ids = text_tokens("continuation", model, self.data, count * self.tokens, self.skip)
        return [
            Begun(f"text-{i}", i, ids[i * self.tokens : (i + 1) * self.tokens])
            for i in range(count)
        ]

    def longest(self, items: Sequence[Begun]) -> int:
        """Return the number of tokens after the last one was written."""
        return self.tokens + self.new_tokens

    def measure(
        self, model: Model, items: Sequence[Begun], system: System, batch: int
    ) -> Iterator[Scores]:
        """Read texts in batches, continue them, and look at what was written."""
        if system.oracle:
            yield from (scores for (scores,) in self.measure_oracles(model, items, [system], batch))
            return
        for start in range(0, len(items), batch):
            yield self._measured(model, items[start : start + batch], system)

    def measure_oracles(
        self, model: Model, items: Sequence[Begun], systems: Sequence[System], batch: int
    ) -> Iterator[list[Scores]]:
        """Continue texts from what several oracles keep of one read with full attention."""
        for start in range(0, len(items), batch):
            some = items[start : start + batch]
            whole = FullReads(model, [item.tokens[:-1] for item in some])
            results = []
            for system in systems:
                kept = whole[system.memory.chunk].kept(system.memory)
                last = [item.tokens[-1:] for item in some]
                written = self._written(kept.following(last, self.new_tokens), some)
                results.append(self._scores(model, some, system, written, kept.seconds))
            yield results

    def _measured(self, model: Model, some: Sequence[Begun], system: System) -> Scores:
        rows = [system.part_of(item.tokens, item.tokens) for item in some]
        memory = system.memory_for(self.tokens + self.new_tokens, causal=model.causal)
        watched = WatchedStream(model, memory, [len(row) for row in rows])
        began = time.process_time()
        watched.stream.feed(rows)
        watched.stream.finish()
        seconds = time.process_time() - began
        written = self._written(watched.stream.writer(self.new_tokens), some)
        scores = self._scores(model, some, system, written, seconds)
        shares = zip(watched.admitted, watched.present, strict=True)
        return [
            (name, {**score, "admitted": float(admitted), "present": float(present)})
            for (name, score), (admitted, present) in zip(scores, shares, strict=True)
        ]

    def _written(self, start: tuple[Writer, Any], some: Sequence[Begun]) -> list[list[int]]:
        seeds = [(self.seed, item.number) for item in some]
        return continued(*start, self.new_tokens, temperature=self.temperature, seeds=seeds)

    def _scores(
        self,
        model: Model,
        some: Sequence[Begun],
        system: System,
        written: list[list[int]],
        seconds: float,
    ) -> Scores:
        costs = {
            "bytes": float(memory_bytes(model, system, self.tokens)),
            "entries": entries_held(model, system, self.tokens),
            "seconds": seconds / len(some),
        }
        return [
            (
                item.name,
                {
                    "repeated": repeated_share(tokens),
                    "copied": copied_share(tokens, item.tokens),
                    **costs,
                },
            )
            for item, tokens in zip(some, written, strict=True)
        ]


def continued(
    writer: Writer,
    logits: Any,
    count: int,
    *,
    temperature: float = 0.0,
    seeds: Sequence[tuple[int, int]] = (),
) -> list[list[int]]:
    """Write ``count`` tokens to every row; no token ends a row.

    Parameters
    ----------
    writer, logits
        From `Stream.writer`.
    temperature
        0 takes the likeliest token.
    seeds
        Of each row, so that a text does not depend on its neighbours.
    """
    model = writer.model
    scores = np.array(model.backend.to_numpy(logits), dtype=np.float64)
    choose = _chooser(temperature, seeds)
    every = np.ones(len(scores), dtype=bool)
    columns = []
    for step in range(count):
        checks.finite_logits("eval continuation", scores)
        scores[:, list(model.end)] = -np.inf
        columns.append(choose(scores))
        if step + 1 < count:
            scores = np.array(writer.write(columns[-1], every), dtype=np.float64)
    return [[int(token) for token in row] for row in np.stack(columns, axis=1)]


def _chooser(temperature: float, seeds: Sequence[tuple[int, int]]) -> Callable[[Any], Any]:
    """Return a function that chooses a token of each row of scores, (rows, vocabulary)."""
    if not temperature:
        return lambda scores: scores.argmax(axis=1)
    generators = [np.random.default_rng(seed) for seed in seeds]

    def choose(scores: Any) -> Any:
        # The largest of scores with Gumbel noise is a sample of their softmax.
        noise = np.stack([generator.gumbel(size=scores.shape[1]) for generator in generators])
        return (scores / temperature + noise).argmax(axis=1)

    return choose
