"""Sentences that say nothing: what needles are hidden in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from attendre_core.errors import ConfigError
from attendre_core.paths import user_path

__all__ = ["ANIMALS", "COLOURS", "NOUNS", "filler_sentences", "hidden_among", "sentences_of"]

COLOURS = ("amber", "black", "blue", "brown", "green", "grey", "pink", "red", "white", "yellow")
ANIMALS = (
    "badger", "crane", "dolphin", "falcon", "hare", "lynx", "otter", "raven", "seal", "tiger",
    "toad", "wolf",
)  # fmt: skip
#: Common words of one or two syllables, none of which is a colour or an animal.
NOUNS = (
    "apple", "arrow", "basket", "beach", "bottle", "branch", "bread", "brick", "bridge", "button",
    "candle", "castle", "chair", "cheese", "circle", "cloud", "coffee", "corner", "cotton",
    "country", "desert", "doctor", "dollar", "dream", "engine", "farmer", "finger", "flower",
    "forest", "garden", "glass", "grass", "guitar", "hammer", "harbor", "honey", "island", "jacket",
    "kitchen", "ladder", "lamp", "leather", "letter", "lemon", "machine", "market", "mirror",
    "money", "morning", "mountain", "music", "needle", "ocean", "office", "orange", "painter",
    "paper", "pencil", "pepper", "pilot", "planet", "pocket", "potato", "queen", "rain", "river",
    "road", "rocket", "salt", "school", "shadow", "shirt", "silver", "singer", "sister", "snow",
    "soldier", "spoon", "spring", "station", "stone", "storm", "street", "sugar", "summer",
    "table", "teacher", "ticket", "tower", "train", "valley", "village", "violin", "wagon",
    "water", "weather", "window", "winter", "wood", "writer",
)  # fmt: skip
_WHO = (
    "The baker", "A neighbour", "The old teacher", "My sister", "A sailor", "The gardener",
    "Their uncle", "A tall student", "The postman", "Our doctor", "A quiet child", "The pianist",
)  # fmt: skip
_DOES = (
    "talks about", "dreams of", "writes about", "likes", "remembers", "paints", "never forgets",
    "asks for", "reads about", "waits for", "laughs about", "is tired of",
)  # fmt: skip
_WHAT = (
    "the harbour", "warm bread", "a long winter", "the empty bridge", "quiet mornings", "the train",
    "a small garden", "old letters", "the market square", "cold water", "an open window", "the sea",
)  # fmt: skip
_WHEN = (
    "today", "every evening", "in the spring", "after dinner", "on most days", "once a year",
    "before sunrise", "at the weekend", "when it rains", "all the time",
)  # fmt: skip


def filler_sentences(rng: np.random.Generator) -> Iterator[str]:
    """Yield sentences of small talk without digits, endlessly.

    Examples
    --------
    >>> next(filler_sentences(np.random.default_rng(0)))
    'A quiet child asks for a small garden in the spring.'
    """
    while True:
        who, does, what, when = (
            words[int(rng.integers(len(words)))] for words in (_WHO, _DOES, _WHAT, _WHEN)
        )
        yield f"{who} {does} {what} {when}."


def sentences_of(path: str, rng: np.random.Generator) -> Iterator[str]:
    """Yield the sentences of a text file from a sampled place on, again and again."""
    file = user_path(path)
    if not file.is_file():
        raise ConfigError(f"filler: there is no file {file}. Give a text with --data, or nothing.")
    text = " ".join(file.read_text(encoding="utf-8", errors="replace").split())
    sentences = [s for s in re.split(r"(?<=[.!?])\s+", text) if s]
    if not sentences:
        raise ConfigError(f"filler: {file} has no text, expected sentences.")
    place = int(rng.integers(len(sentences)))
    while True:
        yield sentences[place % len(sentences)]
        place += 1


def hidden_among(
    needles: Sequence[str],
    filler: Iterator[str],
    room: int,
    length: Callable[[str], int],
    rng: np.random.Generator,
    depth: float | None = None,
) -> str:
    """Return a text of filler with needles in it, in their order.

    Parameters
    ----------
    needles
        Sentences to hide.
    filler
        Other sentences; as many are taken as fit.
    room
        Tokens of the whole text.
    length
        Returns the number of tokens of a sentence.
    depth
        Where the needles are, 0 (start) to 1 (end); None samples a place for each of them.
    """
    room -= sum(length(needle) for needle in needles)
    if room < 0:
        raise ConfigError(
            f"filler: the sentences to hide have {-room} tokens too many for the context. Give it "
            "more with --context-tokens."
        )
    around: list[str] = []
    for sentence in filler:
        room -= length(sentence)
        if room < 0:
            break
        around.append(sentence)
    places = rng.random(len(needles)) if depth is None else np.full(len(needles), depth)
    slots = np.sort(np.rint(places * len(around)).astype(int))
    texts: list[str] = []
    for slot in range(len(around) + 1):
        texts += [n for n, at in zip(needles, slots, strict=True) if at == slot]
        texts += around[slot : slot + 1]
    return " ".join(texts)
