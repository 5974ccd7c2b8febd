"""What a model needs of a tokenizer, and how files of tokenizers are distrusted."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from attendre_core.errors import CheckpointError, ConfigError

__all__ = [
    "Encoded",
    "Tokenizer",
    "UnknownTokenizer",
    "checked_file",
    "needed_package",
    "refuse_half_characters",
    "refused_if_broken",
]

_LARGEST_FILE = 256 * 2**20
_SURROGATE = re.compile("[\ud800-\udfff]")

#: Token ids, and for each the characters (start, end) of the text that it stands for.
Encoded = tuple[list[int], list[tuple[int, int]]]


class Tokenizer(Protocol):
    """What a model needs of a tokenizer.

    Laws: ``encode`` adds the special tokens that the model expects around a text, by the
    tokenizer's own rules, unless ``special`` is False: then it returns the same ids without those
    before and behind them. ``decode`` leaves special tokens out, and never fails on ids of the
    vocabulary: bytes that are not (yet) a whole character become U+FFFD.

    ``encode_with_offsets`` returns the ids of ``encode(text, special=False)``, and for each the
    characters of the text that it stands for, whatever a normaliser made of them: (start, end)
    with ``0 <= start <= end <= len(text)``. Starts never decrease. Tokens that spell one character,
    such as its bytes, all have the span of that character; one that stands for nothing in the
    text, such as a space put before it, has an empty span or that of its neighbour.
    """

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return token ids; ``special`` adds those that the model expects around a text."""

    def encode_with_offsets(self, text: str) -> Encoded:
        """Return token ids without special ones, and where each is in the text, in characters."""

    def decode(self, tokens: list[int]) -> str:
        """Return the text, without special tokens."""


class UnknownTokenizer:
    """Stands for a tokenizer that cannot be built; the model still runs on token ids.

    Parameters
    ----------
    reason
        What is wrong, for the message.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Say that it cannot."""
        raise ConfigError(
            f"tokens: {self.reason} Name another tokenizer, with load(..., tokenizer=PATH) in "
            "Python and --tokenizer PATH in a shell. In Python, token ids need none."
        )

    def encode_with_offsets(self, text: str) -> Encoded:
        """Say that it cannot."""
        return self.encode(text), []

    def decode(self, tokens: list[int]) -> str:
        """Say that it cannot."""
        raise ConfigError(f"text: {self.reason} Ask for token ids instead of text.")


def refuse_half_characters(where: str, text: str, start: int = 0) -> None:
    """Refuse lone surrogates, which no tokenizer knows; the text begins at character ``start``."""
    lone = None if text.isascii() else _SURROGATE.search(text)
    if lone is not None:
        raise ConfigError(
            f"{where}: character {start + lone.start()} of the text is half of a character "
            f"({lone[0]!a}), expected whole ones. Decode bytes with "
            "errors='replace'."
        )


def needed_package(name: str, file: str | Path) -> Any:
    """Import a package that reads tokenizers, or say how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"load: {file} needs the package {name}. Install it with: "
            "pip install 'attendre-core[zoo]'."
        ) from error


def checked_file(file: Path) -> Path:
    """Refuse what is no file, and files too small or too large to be a tokenizer."""
    if not file.is_file():
        raise CheckpointError(f"{file}: is not a file, expected a tokenizer.")
    if file.stat().st_size == 0:
        raise CheckpointError(f"{file}: is empty, expected a tokenizer. Download it again.")
    if file.stat().st_size > _LARGEST_FILE:
        raise CheckpointError(
            f"{file}: {file.stat().st_size} bytes are too many for a tokenizer, expected at most "
            f"{_LARGEST_FILE}."
        )
    return file


@contextmanager
def refused_if_broken(file: str | Path) -> Iterator[None]:
    """Turn whatever a library says about a broken file into a `CheckpointError`."""
    try:
        yield
    except (CheckpointError, ConfigError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of compiled code is no Exception
        raise CheckpointError(
            f"{file}: is no tokenizer that can be read ({str(error)[:200]}). Download it again."
        ) from error
