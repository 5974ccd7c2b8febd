"""Text to token ids and back, with the tokenizer that came with a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from attendre_core.errors import CheckpointError, ConfigError

__all__ = ["FastTokenizer", "Tokenizer", "tokenizer_of"]


class Tokenizer(Protocol):
    """What a model needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return token ids, with the special ones that the model expects."""

    def decode(self, tokens: list[int]) -> str:
        """Return the text, without special tokens."""


class FastTokenizer:
    """A ``tokenizer.json``, read by the package tokenizers."""

    def __init__(self, file: Path) -> None:
        try:
            import tokenizers
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"load: {file} needs the package tokenizers. Install it with: "
                "pip install 'attendre-core[zoo]'."
            ) from error
        try:
            self._inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:
            raise CheckpointError(
                f"{file}: is no tokenizer ({error}). Download it again."
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return token ids, with the special ones that the model expects."""
        return list(self._inner.encode(text).ids)

    def decode(self, tokens: list[int]) -> str:
        """Return the text, without special tokens."""
        return str(self._inner.decode(tokens, skip_special_tokens=True))


def tokenizer_of(folder: Path) -> Tokenizer | None:
    """Find the tokenizer of a folder; None if there is none."""
    if (folder / "tokenizer.json").is_file():
        return FastTokenizer(folder / "tokenizer.json")
    return None
