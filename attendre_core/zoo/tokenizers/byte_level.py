"""Byte-pair encoding of bytes, as GPT-2 does it, from its vocabulary and merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attendre_core.errors import CheckpointError
from attendre_core.zoo.tokenizers.base import needed_package, refused_if_broken
from attendre_core.zoo.tokenizers.fast import FastTokenizer

__all__ = ["PRE_TOKENIZERS", "byte_level_tokenizer"]

_CONTROL, _USER_DEFINED = 3, 4
#: How Llama 3 and Qwen2 cut a text into words; they differ in how many digits stay together.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: ``tokenizer.ggml.pre`` to the way of cutting.
PRE_TOKENIZERS = {
    "default": "gpt-2",
    "gpt-2": "gpt-2",
    "modern-bert": "gpt-2",
    "smollm": "smollm",
    "command-r": "smollm",
    "falcon": "falcon",
    "qwen2": "qwen2",
    "deepseek-r1-qwen": "qwen2",
    "llama-bpe": "llama-bpe",
    "llama-v3": "llama-bpe",
    "llama3": "llama-bpe",
}


def byte_level_tokenizer(
    where: str,
    tokens: Sequence[str],
    merges: Sequence[str],
    kinds: Sequence[int],
    way: str,
    before: Sequence[int],
    after: Sequence[int],
) -> FastTokenizer:
    """Build a tokenizer.

    Parameters
    ----------
    tokens, kinds
        Pieces in the alphabet of GPT-2, where every byte is a visible character, and their
        kinds in the numbering of GGUF.
    merges
        Pairs with a space between them, the first ones first.
    way
        A value of `PRE_TOKENIZERS`; or ``"gpt-2-prefixed"``, by which every text begins with a
        space.
    before, after
        Ids around a text.
    """
    package = needed_package("tokenizers", where)
    ids: dict[str, int] = {}
    for number, token in enumerate(tokens):
        ids.setdefault(token, number)
    with refused_if_broken(where):
        inner = package.Tokenizer(
            package.models.BPE(
                vocab=ids,
                merges=[_pair(where, merge, ids) for merge in merges],
                # Llama 3 takes a whole word that is a token, however it would be put together.
                ignore_merges=way == "llama-bpe",
            )
        )
        inner.pre_tokenizer = _pre_tokenizer(package, way)
        if way == "qwen2":
            inner.normalizer = package.normalizers.NFC()
        inner.decoder = package.decoders.ByteLevel()
        for kind, add in (
            (_CONTROL, inner.add_special_tokens),
            (_USER_DEFINED, inner.add_tokens),
        ):
            add(
                [
                    package.AddedToken(token, normalized=False, special=kind == _CONTROL)
                    for token, own in zip(tokens, kinds, strict=True)
                    if own == kind and token
                ]
            )
        return FastTokenizer(inner, before, after)


def _pair(where: str, merge: str, ids: Mapping[str, int]) -> tuple[str, str]:
    left, space, right = merge[:1], "", ""
    if merge:
        first, space, right = merge[1:].partition(" ")
        left += first
    if not space or left not in ids or right not in ids or left + right not in ids:
        raise CheckpointError(
            f"{where}: the merges hold {merge[:80]!r}, expected two tokens of the "
            "vocabulary that make a third. It is damaged."
        )
    return left, right


def _pre_tokenizer(package: Any, way: str) -> Any:
    kinds = package.pre_tokenizers
    if way in ("gpt-2", "gpt-2-prefixed"):
        return kinds.ByteLevel(add_prefix_space=way != "gpt-2")
    if way == "smollm":
        return kinds.Sequence(
            [kinds.Digits(individual_digits=True), kinds.ByteLevel(add_prefix_space=False)]
        )
    if way == "falcon":
        return kinds.Sequence(
            [
                kinds.Punctuation("contiguous"),
                kinds.ByteLevel(add_prefix_space=False),
                kinds.Split(package.Regex("[0-9][0-9][0-9]"), behavior="isolated"),
            ]
        )
    words = _WORDS.format(digits=r"\p{N}" if way == "qwen2" else r"\p{N}{1,3}")
    return kinds.Sequence(
        [
            kinds.Split(package.Regex(words), behavior="isolated"),
            kinds.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
