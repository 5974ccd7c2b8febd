"""Which words occur most often? The answer is nowhere in the text; it has to be gathered.

After the aggregation tasks of RULER (arXiv 2404.06654), with lists of our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.filler import NOUNS
from attendre_core.evaluation.tasks.haystack import Hidden, asked, token_counter
from attendre_core.evaluation.tasks.question import Question
from attendre_core.evaluation.tasks.question_answering import QuestionTask
from attendre_core.zoo.model import Model

__all__ = ["CommonWords", "FrequentWords"]

_BEGIN, _END = ("k", "d", "m", "t", "b", "p", "s", "l", "v", "g"), ("a", "o", "u", "i", "e")
#: Frequencies fall with the rank to this power.
_ALPHA = 2.0


@dataclass(frozen=True)
class _Counting(QuestionTask):
    """Base of the two tasks.

    Parameters
    ----------
    tokens
        Length of a list.
    question
        ``"last"``: after the list; ``"first"``: before it.
    seed
        Seed of the lists.
    """

    limit: int | None = 20
    tokens: int = 512
    question: Literal["first", "last"] = "last"
    seed: int = 0

    pinned: ClassVar[int] = 32
    #: How many words are asked for.
    wanted: ClassVar[int] = 3
    _asks: ClassVar[str] = ""
    _lead: ClassVar[str] = "The three most frequent words are"

    def words(self, rng: np.random.Generator, count: int) -> tuple[list[str], list[str]]:
        """Return a list of at most ``count`` words, and the most frequent ones."""
        raise NotImplementedError

    def written(self, words: list[str]) -> str:
        """Return the text of the list."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return everything that the questions depend on."""
        return {
            "context_tokens": self.tokens,
            "question": self.question,
            "seed": self.seed,
            "new_tokens": self.new_tokens,
        }

    def questions(self, model: Model) -> Iterator[Question]:
        """Yield the questions; each depends only on the seed and its number."""
        length = token_counter(model)
        for number in range(20 if self.limit is None else self.limit):
            # The longest list that fits; the numbers of the list make its length hard to predict.
            low, high = 8, self.tokens
            while low < high:
                middle = (low + high + 1) // 2
                words, _ = self.words(np.random.default_rng((self.seed, number)), middle)
                fits = length(self.written(words)) <= self.tokens
                low, high = (middle, high) if fits else (low, middle - 1)
            words, answers = self.words(np.random.default_rng((self.seed, number)), low)
            text = self.written(words)
            if length(text) > self.tokens:
                raise ConfigError(
                    f"eval {self.name}: {self.tokens} tokens are too few for a list of words. Give "
                    "more with --context-tokens."
                )
            hidden = Hidden([], self._asks, self._lead, answers)
            yield asked(model, f"{self.name}-{number}", hidden, text, self.question)


@dataclass(frozen=True)
class CommonWords(_Counting):
    """Three words of a numbered list occur often, all others at most twice."""

    name: ClassVar[str] = "common-words"
    _asks: ClassVar[str] = "Which three words occur most often in the list?"

    def words(self, rng: np.random.Generator, count: int) -> tuple[list[str], list[str]]:
        """Give the common words half of the list."""
        pool = [NOUNS[i] for i in rng.permutation(len(NOUNS))]
        common, rare = pool[: self.wanted], pool[self.wanted :]
        often = max(count // (2 * self.wanted), 3)
        words = [word for word in common for _ in range(often)]
        words += (2 * rare)[: max(count - len(words), 0)]
        mixed = [words[i] for i in rng.permutation(len(words))]
        return mixed, sorted(common, key=mixed.index)

    def written(self, words: list[str]) -> str:
        """Return the words with their numbers."""
        return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


@dataclass(frozen=True)
class FrequentWords(_Counting):
    """Made-up words, the frequency of which falls with their rank: 1, 1/4, 1/9, ..."""

    name: ClassVar[str] = "frequent-words"
    _asks: ClassVar[str] = (
        "Which three words occur most often in the text, the most frequent first?"
    )

    def words(self, rng: np.random.Generator, count: int) -> tuple[list[str], list[str]]:
        """Sample words from a Zipf distribution; the first three keep their order."""
        syllables = [begin + end for begin in _BEGIN for end in _END]
        pool = rng.choice(len(syllables) ** 2, 40, replace=False)
        names = [syllables[i // len(syllables)] + syllables[i % len(syllables)] for i in pool]
        share = np.arange(1, len(names) + 1) ** -_ALPHA
        often = np.floor(count * share / share.sum()).astype(int)
        # The three that are asked for differ from each other and from the next.
        often[: self.wanted + 1] = np.maximum(often[: self.wanted + 1], [4, 3, 2, 1])
        often[self.wanted :] = np.minimum(often[self.wanted :], often[self.wanted - 1] - 1)
        words = [name for name, times in zip(names, often, strict=True) for _ in range(times)]
        return [words[i] for i in rng.permutation(len(words))], names[: self.wanted]

    def written(self, words: list[str]) -> str:
        """Return the words, one after another."""
        return " ".join(words)
