"""A tokenizer of two text files: one token per line, for what is read and for what is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attendre_core.zoo.tokenizers.base import Encoded, check_text

__all__ = ["VocabularyTokenizer"]

#: Tokens that stand for no text.
_SPECIAL = frozenset({"<blank>", "<s>", "</s>", "<unk>", "<pad>"})
_CHARACTER, _WORD = re.compile(".", re.DOTALL), re.compile(r"\S+")


@dataclass(frozen=True)
class VocabularyTokenizer:
    """Characters, or words between blanks, looked up in a list.

    Parameters
    ----------
    source, target
        Tokens in the order of their ids. Where all of them are single characters, texts are cut
        into characters, otherwise at white space.
    before, after
        Ids that every input begins and ends with.

    Notes
    -----
    What is not in the list gets the id of ``<unk>``, or the first id behind the list: that is
    where OpenNMT keeps it.

    Examples
    --------
    >>> tokenizer = VocabularyTokenizer(("<s>", "a", "b"), ("<s>", "x", "y"), after=(0,))
    >>> tokenizer.encode("ab?"), tokenizer.decode([1, 2, 0])
    ([1, 2, 3, 0], 'xy')
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return token ids; ``special`` adds those that the model expects around a text."""
        found, _ = self.encode_with_offsets(text)
        return [*self.before, *found, *self.after] if special else found

    def encode_with_offsets(self, text: str) -> Encoded:
        """Return token ids without special ones, and where each is in the text, in characters."""
        check_text("tokens", text)
        places = {token: number for number, token in enumerate(self.source)}
        unknown = places.get("<unk>", len(self.source))
        kind = _CHARACTER if _characters(self.source) else _WORD
        pieces = list(kind.finditer(text))
        # A text that spells the name of a special token means the text.
        ids = [unknown if p[0] in _SPECIAL else places.get(p[0], unknown) for p in pieces]
        return ids, [piece.span() for piece in pieces]

    def decode(self, tokens: list[int]) -> str:
        """Return the text, without special tokens."""
        inside = [self.target[t] for t in tokens if 0 <= t < len(self.target)]
        words = [token for token in inside if token not in _SPECIAL]
        return ("" if _characters(self.target) else " ").join(words)


def _characters(tokens: Sequence[str]) -> bool:
    return all(len(token) == 1 for token in tokens if token not in _SPECIAL)
