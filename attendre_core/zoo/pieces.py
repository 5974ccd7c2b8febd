"""The text of generated tokens, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Pieces", "cut_text", "stop_strings"]

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


def stop_strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Return the strings that end a text, of which one alone needs no list."""
    return (stop,) if isinstance(stop, str) else tuple(stop)


def cut_text(text: str, stop: str | Sequence[str]) -> str:
    """Cut a text before the first of the strings that end it.

    Examples
    --------
    >>> cut_text("one. two. three", [".", "two"])
    'one'
    """
    places = [text.find(word) for word in stop_strings(stop) if word in text]
    return text[: min(places)] if places else text


class Pieces:
    """Turns tokens into pieces of text, which joined are the text, cut before ``stop``.

    Held back until it is certain: the last bytes if they may be the beginning of a character, and
    the last characters if they may be the beginning of a string that ends the text.

    Parameters
    ----------
    decode
        Turns token ids into text; None: there is no text.
    stop
        Strings that end the text.

    Attributes
    ----------
    tokens
        The tokens so far.
    stopped
        Whether the text contains one of the strings that end it.

    Examples
    --------
    >>> pieces = Pieces(lambda tokens: bytes(tokens).decode(errors="replace"), stop=["END"])
    >>> [pieces.add(token) for token in "é!EN".encode()]
    ['', 'é', '!', '', '']
    >>> pieces.rest()
    'EN'
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str] | None, stop: Sequence[str] = ()
    ) -> None:
        self.tokens: list[int] = []
        self.stopped = False
        self._decode, self._stop = decode, stop_strings(stop)
        self._text, self._given = "", 0

    def add(self, token: int) -> str:
        """Add a token; return the text that is certain now and was not returned before."""
        self.tokens.append(token)
        if self._decode is None:
            return ""
        text = self._decode(self.tokens)
        self.stopped = any(word in text for word in self._stop)
        self._text = cut_text(text, self._stop)
        if self.stopped:
            return self.rest()
        certain = self._text.rstrip(_INCOMPLETE)
        return self._hand_out(certain[: len(certain) - self._beginning(certain)])

    def rest(self) -> str:
        """Return what was held back; the text ends here."""
        return self._hand_out(self._text)

    def _hand_out(self, text: str) -> str:
        piece = text[self._given :]
        self._given = max(self._given, len(text))
        return piece

    def _beginning(self, text: str) -> int:
        """Return how many of the last characters may begin a string that ends the text."""
        return max(
            (n for word in self._stop for n in range(1, len(word)) if text.endswith(word[:n])),
            default=0,
        )
