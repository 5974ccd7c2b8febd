"""What a tokenizer puts before and behind a text, for texts that arrive in pieces."""

from __future__ import annotations

from attendre_core.zoo.tokenizers.base import Tokenizer

__all__ = ["around"]

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
