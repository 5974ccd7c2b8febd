"""Split a text into the pieces that its tokens stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Naming", "one_line", "pieces_of"]

#: Returns the text to show for each token id.
Naming = Callable[[Sequence[int]], list[str]]

_BROKEN = "\N{REPLACEMENT CHARACTER}"
#: The longest character of UTF-8 in bytes; a byte may be a token.
_LONGEST = 4


def pieces_of(decode: Callable[[list[int]], str], tokens: Sequence[int]) -> list[str]:
    """Return the piece of text that each token adds; joined, they are the whole text.

    A token is decoded together with the tokens before it, because on its own it may lose its
    space or be half a character. Tokens without text, such as a begin token, have an empty piece;
    if several tokens form one character, the last one gets it.

    Parameters
    ----------
    decode
        Turns token ids into text.

    Examples
    --------
    >>> def decode(tokens):
    ...     return bytes(tokens).decode(errors="replace")
    >>> pieces_of(decode, "a\N{LATIN SMALL LETTER E WITH ACUTE}b".encode())
    ['a', '', '\N{LATIN SMALL LETTER E WITH ACUTE}', 'b']
    """
    ids, pieces = list(tokens), []
    start = done = 0  # decode from ``start``; the text of ids[:done] is already in ``pieces``
    for i in range(len(ids)):
        before = decode(ids[start:done])
        now = decode(ids[start : i + 1])
        unfinished = now.endswith(_BROKEN) and i + 1 - done < _LONGEST and i + 1 < len(ids)
        if unfinished or len(now) <= len(before):
            pieces.append("")
            if i + 1 - done >= _LONGEST:
                start = done = i + 1
        else:
            pieces.append(now[len(before) :])
            start, done = done, i + 1
    return pieces


def one_line(piece: str) -> str:
    r"""Return a piece of text as it is shown by itself, on one line.

    Examples
    --------
    >>> [one_line(piece) for piece in (" word", "\n\n", "  ", "")]
    ['word', '↵↵', '(space)', '']
    """
    words = " ".join(piece.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}").split())
    return words or ("(space)" if piece else "")
