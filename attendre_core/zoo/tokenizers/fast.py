"""A ``tokenizer.json``, or anything else that the package tokenizers can run."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attendre_core.zoo.tokenizers.base import (
    Encoded,
    checked_file,
    in_use,
    needed_package,
    refused_if_broken,
)
from attendre_core.zoo.tokenizers.growth import check_growth

__all__ = ["FastTokenizer"]


class FastTokenizer:
    """A tokenizer of the package tokenizers.

    Parameters
    ----------
    inner
        A ``tokenizers.Tokenizer``. Limits on the length that it came with are taken off: a
        stream has no length.
    before, after
        Ids to put around a text, beside what the tokenizer's own template adds.
    """

    def __init__(self, inner: Any, before: Sequence[int] = (), after: Sequence[int] = ()) -> None:
        inner.no_truncation()
        inner.no_padding()
        check_growth(inner)
        self._inner, self._before, self._after = inner, list(before), list(after)

    @classmethod
    def from_file(cls, file: Path) -> FastTokenizer:
        """Read a ``tokenizer.json``."""
        tokenizers = needed_package("tokenizers", file)
        with refused_if_broken(file):
            return cls(tokenizers.Tokenizer.from_file(str(checked_file(file))))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return token ids; ``special`` adds those that the model expects around a text."""
        with in_use(text):
            ids: list[int] = self._inner.encode(text, add_special_tokens=special).ids
        return [*self._before, *ids, *self._after] if special else ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return token ids and types of two texts, as the tokenizer's template joins them.

        Without a template, as BERT does: ``[CLS] first [SEP] second [SEP]``.
        """
        if self._before or self._after:
            head = [*self._before, *self.encode(first, special=False), *self._after]
            tail = [*self.encode(second, special=False), *self._after]
            return head + tail, [0] * len(head) + [1] * len(tail)
        with in_use(first + second):
            found = self._inner.encode(first, second)
        return found.ids, found.type_ids

    def encode_with_offsets(self, text: str) -> Encoded:
        """Return token ids without special ones, and where each is in the text, in characters."""
        with in_use(text):
            found = self._inner.encode(text, add_special_tokens=False)
        offsets: list[tuple[int, int]] = found.offsets
        if not text.isascii():
            offsets = _with_marks(text, offsets)
        return found.ids, offsets

    def decode(self, tokens: list[int]) -> str:
        """Return the text, without special tokens."""
        with in_use():
            return str(self._inner.decode(tokens, skip_special_tokens=True))


def _with_marks(text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Let spans cover the combining marks behind them, which a normaliser may have eaten."""
    whole = []
    for number, (start, end) in enumerate(offsets):
        behind = offsets[number + 1][0] if number + 1 < len(offsets) else len(text)
        while start < end < behind and unicodedata.combining(text[end]):
            end += 1
        whole.append((start, end))
    return whole
