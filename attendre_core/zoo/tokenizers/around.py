"""What a tokenizer puts before and behind a text, for texts that arrive in pieces."""

from __future__ import annotations

from typing import NamedTuple

from attendre_core.zoo.tokenizers.base import Tokenizer

__all__ = ["PairFrame", "around", "around_pair"]

#: Short texts, of which every tokenizer has a token for one.
_SAMPLES = ("a", "A", "1", ".", "the", "\u0430", "\u0627", "\u4e00")


def around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the special tokens before and behind every text: BOS, or ``[CLS]`` and ``[SEP]``.

    Examples
    --------
    >>> from attendre_core.zoo.tokenizers.vocabulary import VocabularyTokenizer
    >>> around(VocabularyTokenizer(("<s>", "a"), ("a",), before=(0,), after=(0, 0)))
    ([0], [0, 0])
    """
    for sample in _SAMPLES:
        whole, plain = tokenizer.encode(sample), tokenizer.encode(sample, special=False)
        for start in range(len(whole) - len(plain) + 1 if plain else 0):
            stop = start + len(plain)
            if whole[start:stop] == plain:
                return whole[:start], whole[stop:]
    return [], []


class PairFrame(NamedTuple):
    """What a tokenizer puts before, between and behind two texts, and the type of the second."""

    before: list[int]
    between: list[int]
    after: list[int]
    second: int


def around_pair(tokenizer: Tokenizer) -> PairFrame | None:
    """Return what a tokenizer puts around a pair of texts; None if it does not know pairs.

    Examples
    --------
    >>> from attendre_core.zoo.tokenizers.vocabulary import VocabularyTokenizer
    >>> around_pair(VocabularyTokenizer(("<s>", "a"), ("a",), before=(0,), after=(0, 0)))
    """
    encode_pair = getattr(tokenizer, "encode_pair", None)
    if encode_pair is None:
        return None
    for sample in _SAMPLES:
        (ids, types), plain = encode_pair(sample, sample), tokenizer.encode(sample, special=False)
        n = len(plain)
        places = [i for i in range(len(ids) - n + 1) if plain and ids[i : i + n] == plain]
        if len(places) == 2:
            first, second = places
            between = ids[first + n : second]
            return PairFrame(ids[:first], between, ids[second + n :], types[second])
    return None
