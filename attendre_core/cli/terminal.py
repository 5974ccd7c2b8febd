"""What a terminal can show: colour, characters beyond ASCII, and texts that nobody vouches for."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

__all__ = ["Terminal"]

_COLOURS = {"green": "32", "red": "31", "bold": "1", "dim": "2"}
#: The characters beyond ASCII that `Terminal.choose` picks from.
_SYMBOLS = "░▒▓█·\N{MINUS SIGN}\N{CHECK MARK}\N{BALLOT X}"


class Terminal:
    """Colour and characters that fit an output stream.

    Parameters
    ----------
    stream
        Where the text goes; stdout by default. Colour is used only on a terminal, and not if
        ``NO_COLOR`` is set or ``TERM`` is ``dumb``; characters beyond ASCII only if the stream's
        encoding has them.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = sys.stdout if stream is None else stream
        self.colour = (
            stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )
        self.encoding = getattr(stream, "encoding", None) or "ascii"
        self.unicode = _can_encode(stream, _SYMBOLS)
        self.columns = shutil.get_terminal_size((100, 24)).columns

    def paint(self, text: str, colour: str) -> str:
        """Return the text in a colour; unchanged if the stream has no colour."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colour else text

    def harmless(self, text: str) -> str:
        r"""Return a text on one line, with escapes for what a terminal obeys or cannot show.

        Examples
        --------
        >>> print(Terminal().harmless("red \x1b[31m, \u202e backwards, a new\nline"))
        red \x1b[31m, \u202e backwards, a new\nline
        """
        shown = text
        if not text.isprintable():
            shown = "".join(
                c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
            )
        return shown.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def choose(self, fancy: str, plain: str) -> str:
        """Return ``fancy`` if the stream can show characters beyond ASCII, else ``plain``."""
        return fancy if self.unicode else plain


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
