"""A conversation on one bounded stream: facts are told in some turns and asked for in later ones.

::

    user tells a fact ─► small talk, which the model answers ─► ... ─► user asks for a fact
         └──────────────── one stream, in which everything is read ─────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import System
from attendre_core.evaluation.tasks.answering import log_likelihood
from attendre_core.evaluation.tasks.embedding import specials
from attendre_core.evaluation.tasks.filler import ANIMALS, COLOURS, filler_sentences
from attendre_core.evaluation.tasks.normalisation import contains
from attendre_core.evaluation.tasks.repetition import repeated_share
from attendre_core.evaluation.tasks.task import Metric, Scores
from attendre_core.evaluation.tasks.watched import WatchedStream, entries_held, memory_bytes
from attendre_core.zoo.model import Model

__all__ = ["Conversation", "MultiTurn", "Turn"]

_USER, _MODEL = "User: ", "\nAssistant:"
_SENTENCES = 3


class Turn(NamedTuple):
    """One turn of a script.

    Attributes
    ----------
    told
        What is read before the model writes, as tokens.
    gold, answer
        What is asked for, as tokens and as text; empty in small talk.
    """

    told: list[int]
    gold: list[int]
    answer: str


class Conversation(NamedTuple):
    """A script: its name and its turns."""

    name: str
    turns: list[Turn]


@dataclass(frozen=True)
class MultiTurn:
    """Tell facts in a conversation, talk about other things, and ask for the facts later.

    After each fact come turns of small talk, which the model answers itself. In the middle of the
    conversation a fact that was told before is asked for, and at the end all of them are. What
    the model writes is read like everything else, so it takes its share of the memory; with
    ``+inside`` it does so while it is written.

    Parameters
    ----------
    tokens
        Tokens of the script, without what the model writes.
    facts
        How many facts are told.
    new_tokens
        Tokens that the model may write in a turn; its answers end with the line.
    limit
        How many conversations.
    seed
        Seed of the scripts.
    """

    tokens: int = 1024
    facts: int = 4
    new_tokens: int = 24
    limit: int | None = 20
    seed: int = 0

    name: ClassVar[str] = "multi-turn"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("log_likelihood", "log-lik."),
        Metric("right", "right", share=True),
        Metric("repeated", "repeated", share=True, higher=False),
    )
    controls: ClassVar[tuple[str, ...]] = ("full", "closed-book", "first-M", "random", "pinned")
    whole: ClassVar[bool] = False
    pinned: ClassVar[int] = 48
    clamps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.facts < 2 or self.new_tokens < 1:
            raise ConfigError(
                f"eval multi-turn: {self.facts} facts and {self.new_tokens} new tokens, expected "
                "at least 2 and 1."
            )

    def identity(self) -> dict[str, Any]:
        """Return everything that the conversations depend on."""
        names = ("tokens", "facts", "new_tokens", "seed")
        return {name: getattr(self, name) for name in names}

    def items(self, model: Model) -> list[Conversation]:
        """Write the scripts; each depends only on the seed and its number."""
        if model.architecture.kind != "decoder":
            raise ConfigError("eval multi-turn: only a decoder holds a conversation. Give one.")
        count = 20 if self.limit is None else self.limit
        # All scripts have as many turns as the first one has with its tokens.
        talks = self._talks(model)
        return [self._script(model, number, talks) for number in range(count)]

    def longest(self, items: Sequence[Conversation]) -> int:
        """Return the most tokens that a conversation can have."""
        return max(
            sum(len(turn.told) + max(self.new_tokens, len(turn.gold)) for turn in item.turns)
            for item in items
        )

    def measure(
        self, model: Model, items: Sequence[Conversation], system: System, batch: int
    ) -> Iterator[Scores]:
        """Hold conversations side by side, turn by turn."""
        for start in range(0, len(items), batch):
            some = items[start : start + batch]
            yield self._held(model, some, system, self.longest(items))

    # ---------------------------------------------------------------- inside

    def _talks(self, model: Model) -> int:
        """Return how many turns of small talk after each fact fill the script."""
        without, one = (
            sum(len(turn.told) for turn in self._script(model, 0, talks).turns) for talks in (1, 2)
        )
        each = one - without
        if without > self.tokens:
            raise ConfigError(
                f"eval multi-turn: {self.tokens} tokens are too few, the shortest such script has "
                f"{without}. Give more with --context-tokens."
            )
        return 1 + (self.tokens - without) // each

    def _script(self, model: Model, number: int, talks: int) -> Conversation:
        rng = np.random.default_rng((self.seed, number))
        chosen = rng.choice(len(COLOURS) * len(ANIMALS), self.facts, replace=False)
        names = [f"{COLOURS[i // len(ANIMALS)]} {ANIMALS[i % len(ANIMALS)]}" for i in chosen]
        codes = [str(code) for code in rng.choice(9000, self.facts, replace=False) + 1000]
        filler = filler_sentences(rng)

        def tell(i: int) -> str:
            fact = f"Please remember that the code of the {names[i]} is {codes[i]}."
            return f"{_USER}{fact}{_MODEL} I will.\n"

        def ask(i: int) -> Turn:
            asked = f"{_USER}What is the code of the {names[i]}?{_MODEL}"
            told = f"{asked} The code of the {names[i]} is"
            return Turn(_tokens(model, told), _tokens(model, f" {codes[i]}"), codes[i])

        def talk() -> str:
            return f"{_USER}{' '.join(next(filler) for _ in range(_SENTENCES))}{_MODEL}"

        facts = [tell(i) for i in range(self.facts)]
        last = [ask(int(i)) for i in rng.permutation(self.facts)]
        middle = self.facts // 2
        asked = int(rng.integers(middle))
        turns: list[Turn] = []
        for i, fact in enumerate(facts):
            if i == middle:
                turns.append(ask(asked))
            turns += [
                Turn(_tokens(model, (fact if j == 0 else "") + talk()), [], "")
                for j in range(talks)
            ]
        first = turns[0]._replace(told=[*specials(model)[0], *turns[0].told])
        return Conversation(f"talk-{number}", [first, *turns[1:], *last])

    def _held(
        self, model: Model, some: Sequence[Conversation], system: System, longest: int
    ) -> Scores:
        rows = range(len(some))
        memory = system.memory_for(longest, causal=model.causal)
        watched = WatchedStream(model, memory, [longest] * len(some))
        stream = watched.stream
        likely: list[list[float]] = [[] for _ in rows]
        right: list[list[float]] = [[] for _ in rows]
        talk: list[list[int]] = [[] for _ in rows]
        seconds, newline = 0.0, _tokens(model, "\n")
        for number in range(len(some[0].turns)):
            turns = [item.turns[number] for item in some]
            if system.reads == "question":
                if not turns[0].gold:
                    continue
                stream = model.with_memory(memory).stream(len(some))
            began = time.process_time()
            stream.feed([turn.told for turn in turns])
            stream.finish()
            seconds += time.process_time() - began
            if turns[0].gold:
                golds = [turn.gold for turn in turns]
                chances = log_likelihood(*stream.writer(max(map(len, golds))), golds)
            written = stream.generate(self.new_tokens, stop=["\n"])
            lines = [_first_line(model, row) for row in written]
            for row, turn in enumerate(turns):
                if turn.gold:
                    likely[row].append(float(chances[row]))
                    right[row].append(float(contains(model.text(lines[row]), [turn.answer])))
                else:
                    talk[row] += lines[row]
            if system.reads != "question":
                stream.feed([line + newline for line in lines])
        costs = {
            "bytes": float(memory_bytes(model, system, longest)),
            "entries": entries_held(model, system, longest),
            "seconds": seconds / len(some),
        }
        return [
            (
                item.name,
                {
                    "log_likelihood": float(np.mean(likely[row])),
                    "right": float(np.mean(right[row])),
                    "repeated": repeated_share(talk[row]),
                    "admitted": float(watched.admitted[row]),
                    "present": float(watched.present[row]),
                    **costs,
                },
            )
            for row, item in enumerate(some)
        ]


def _tokens(model: Model, text: str) -> list[int]:
    return model.tokens(text, special=False)


def _first_line(model: Model, tokens: list[int]) -> list[int]:
    """Return the tokens up to the first one with a line break in its text."""
    for count in range(len(tokens)):
        if "\n" in model.text(tokens[: count + 1]):
            return tokens[:count]
    return list(tokens)
