"""A tokenizer of two text files: one token per line, for what is read and for what is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["VocabularyTokenizer"]

#: Tokens that stand for no text.
_SPECIAL = frozenset({"<blank>", "<s>", "</s>", "<unk>", "<pad>"})


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
        places = {token: number for number, token in enumerate(self.source)}
        unknown = places.get("<unk>", len(self.source))
        pieces = list(text) if _characters(self.source) else text.split()
        # A text that spells the name of a special token means the text.
        found = [unknown if p in _SPECIAL else places.get(p, unknown) for p in pieces]
        return [*self.before, *found, *self.after] if special else found

    def decode(self, tokens: list[int]) -> str:
        """Return the text, without special tokens."""
        inside = [self.target[t] for t in tokens if 0 <= t < len(self.target)]
        words = [token for token in inside if token not in _SPECIAL]
        return ("" if _characters(self.target) else " ").join(words)


def _characters(tokens: Sequence[str]) -> bool:
    return all(len(token) == 1 for token in tokens if token not in _SPECIAL)
