"""Which tokenizer a folder holds."""

from __future__ import annotations

from pathlib import Path

from attendre_core.errors import CheckpointError
from attendre_core.paths import user_path
from attendre_core.zoo.tokenizers.base import Tokenizer
from attendre_core.zoo.tokenizers.byte_pairs import byte_pair_tokenizer
from attendre_core.zoo.tokenizers.fast import FastTokenizer
from attendre_core.zoo.tokenizers.pieces import MarianTokenizer, PieceTokenizer
from attendre_core.zoo.tokenizers.shifted import shifted_tokenizer
from attendre_core.zoo.tokenizers.wordpiece import wordpiece_tokenizer

__all__ = ["FILES", "tokenizer_at", "tokenizer_of"]

#: The files in which a tokenizer is looked for.
FILES = (
    "tokenizer.json", "vocab.txt", "merges.txt", "source.spm", "sentencepiece.bpe.model",
    "spm.model", "spiece.model", "tokenizer.model",
)  # fmt: skip


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """Find the tokenizer of a folder; None if there is none."""
    if (folder / "tokenizer.json").exists():
        return FastTokenizer.from_file(folder / "tokenizer.json")
    if (folder / "vocab.txt").exists():
        return wordpiece_tokenizer(folder / "vocab.txt")
    if (folder / "source.spm").exists():
        return MarianTokenizer(folder)
    if (folder / "merges.txt").exists() and (folder / "vocab.json").exists():
        return byte_pair_tokenizer(folder)
    for name in ("sentencepiece.bpe.model", "spm.model"):
        if (folder / name).exists():
            return shifted_tokenizer(folder / name)
    for name in ("spiece.model", "tokenizer.model"):
        if (folder / name).exists():
            return PieceTokenizer(folder / name)
    return None


def tokenizer_at(path: str | Path) -> Tokenizer:
    """Return the tokenizer at a path: one of `FILES`, a folder with one, or a GGUF file."""
    place = user_path(path)
    if place.suffix == ".gguf" and place.is_file():
        from attendre_core.zoo.loading.gguf_file import GGUFCheckpoint
        from attendre_core.zoo.tokenizers.from_gguf import tokenizer_of_gguf

        found = tokenizer_of_gguf(str(place), GGUFCheckpoint(place).metadata)
    elif place.is_dir():
        found = tokenizer_of(place)
    else:
        found = _tokenizer_file(place)
    if found is None:
        raise CheckpointError(
            f"{place}: there is no tokenizer, expected a folder with {', '.join(FILES[:-1])} or "
            f"{FILES[-1]}, one of these files, or a .gguf file."
        )
    return found


def _tokenizer_file(file: Path) -> Tokenizer | None:
    if not file.is_file():
        return None
    if file.suffix == ".json":
        return FastTokenizer.from_file(file)
    if file.name in ("sentencepiece.bpe.model", "spm.model"):
        return shifted_tokenizer(file)
    if file.name == "merges.txt":
        return byte_pair_tokenizer(file.parent)
    if file.suffix == ".model":
        return PieceTokenizer(file)
    return wordpiece_tokenizer(file) if file.suffix == ".txt" else None
