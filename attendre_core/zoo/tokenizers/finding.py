"""Which tokenizer a folder holds."""

from __future__ import annotations

from pathlib import Path

from attendre_core.zoo.tokenizers.base import Tokenizer
from attendre_core.zoo.tokenizers.fast import FastTokenizer
from attendre_core.zoo.tokenizers.pieces import MarianTokenizer, PieceTokenizer
from attendre_core.zoo.tokenizers.wordpiece import wordpiece_tokenizer

__all__ = ["tokenizer_of"]


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """Find the tokenizer of a folder; None if there is none."""
    if (folder / "tokenizer.json").exists():
        return FastTokenizer.from_file(folder / "tokenizer.json")
    if (folder / "vocab.txt").exists():
        return wordpiece_tokenizer(folder / "vocab.txt")
    if (folder / "source.spm").exists():
        return MarianTokenizer(folder)
    for name in ("spiece.model", "tokenizer.model"):
        if (folder / name).exists():
            return PieceTokenizer(folder / name)
    return None
