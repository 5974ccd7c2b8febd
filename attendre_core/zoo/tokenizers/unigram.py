"""The likeliest pieces of a text, as SentencePiece's unigram models choose them: T5 in GGUF."""

from __future__ import annotations

from collections.abc import Sequence

from attendre_core.zoo.tokenizers.base import needed_package, refused_if_broken
from attendre_core.zoo.tokenizers.fast import FastTokenizer

__all__ = ["unigram_tokenizer"]

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def unigram_tokenizer(
    where: str,
    pieces: Sequence[str],
    scores: Sequence[float],
    *,
    unknown: int | None,
    special: Sequence[int],
    whole: Sequence[int],
    replacements: bytes,
    before: Sequence[int],
    after: Sequence[int],
) -> FastTokenizer:
    """Build a tokenizer.

    Parameters
    ----------
    pieces, scores
        The vocabulary, with logarithms of probabilities.
    unknown
        Id for what no piece covers.
    special
        Ids that are left out of a text.
    whole
        Ids of texts that are always one token.
    replacements
        Characters and what stands for them, as SentencePiece compiles them; empty for none.
    before, after
        Ids around a text.
    """
    package = needed_package("tokenizers", where)
    with refused_if_broken(where):
        vocabulary = [(p, float(s)) for p, s in zip(pieces, scores, strict=True)]
        inner = package.Tokenizer(package.models.Unigram(vocabulary, unknown, False))
        if replacements:
            inner.normalizer = package.normalizers.Precompiled(replacements)
        kinds = package.pre_tokenizers
        inner.pre_tokenizer = kinds.Sequence(
            [kinds.WhitespaceSplit(), kinds.Metaspace(_SPACE, prepend_scheme="always")]
        )
        inner.decoder = package.decoders.Metaspace(_SPACE, prepend_scheme="always")
        add = package.AddedToken
        inner.add_special_tokens([add(pieces[i], normalized=False, special=True) for i in special])
        inner.add_tokens([add(pieces[i], normalized=False) for i in whole])
        return FastTokenizer(inner, before, after)
