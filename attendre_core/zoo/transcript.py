"""Which tokens of a growing text were read already."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

__all__ = ["Transcript"]


class Transcript:
    """The tokens that were read of a text that grows at its end.

    Texts are tokenised from an anchor on, so that the tokens read in pieces are those of the whole
    text: a token is read only if it stays the same whatever follows. The anchor moves where the
    tokenizer permits it, so that not everything is tokenised again and again.

    Parameters
    ----------
    encode
        Turns a text into tokens.
    length, digest
        Of the text before the anchor, all of which was read.
    tokens
        What was read since the anchor.

    Examples
    --------
    >>> transcript = Transcript(lambda text: list(text.encode()))
    >>> transcript.unread("one two", "one three")
    [111, 110, 101, 32, 116]
    >>> transcript.tokens += [111, 110]
    >>> transcript.unread("one"), transcript.unread("none")
    ([101], None)
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        length: int = 0,
        digest: str = "",
        tokens: Sequence[int] = (),
    ) -> None:
        self._encode = encode
        self.length, self.digest, self.tokens = length, digest, list(tokens)

    def unread(self, text: str, *others: str) -> list[int] | None:
        """Return the tokens of a text that were not read, as far as others begin with them.

        Returns
        -------
        list or None
            None if the text does not begin with what was read.
        """
        rows = []
        for each in (text, *others):
            if len(each) < self.length or _digest(each[: self.length]) != self.digest:
                if each is text:
                    return None
                return []
            rows.append(self._encode(each[self.length :]))
        read, first = len(self.tokens), rows[0]
        if first[:read] != self.tokens:
            return None
        common = len(first)
        for row in rows[1:]:
            common = _shared(first[:common], row)
        return first[read:common]

    def move(self, text: str, *longer: str) -> None:
        """Move the anchor behind a text, if all of it was read and tokens can be cut there.

        Parameters
        ----------
        longer
            Texts that begin with ``text``, by which this is found out.
        """
        if self.unread(text) != []:
            return
        for each in longer:
            rest = self._encode(each[len(text) :]) if each.startswith(text) else None
            if rest is None or self.unread(each) != rest:
                return
        self.length, self.digest, self.tokens = len(text), _digest(text), []

    def copy(self) -> Transcript:
        """Return another one that is the same."""
        return Transcript(self._encode, self.length, self.digest, self.tokens)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest() if text else ""


def _shared(one: list[int], other: list[int]) -> int:
    """Return the length of the longest common beginning."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
