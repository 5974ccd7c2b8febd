"""What a terminal can show: colour, and characters beyond ASCII."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

__all__ = ["Terminal"]

_COLOURS = {"green": "32", "red": "31", "bold": "1", "dim": "2"}
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = " .:-=+*%#"


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
        self.unicode = _can_encode(stream, _BLOCKS + "·│▼")
        self.columns = shutil.get_terminal_size((100, 24)).columns

    def paint(self, text: str, colour: str) -> str:
        """Return the text in a colour; unchanged if the stream has no colour."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colour else text

    def choose(self, fancy: str, plain: str) -> str:
        """Return ``fancy`` if the stream can show characters beyond ASCII, else ``plain``."""
        return fancy if self.unicode else plain

    def bars(self, shares: Sequence[float]) -> str:
        """Draw numbers from 0 to 1 as a row of bars; anything above 0 is visible."""
        blocks = self.choose(_BLOCKS, _ASCII_BLOCKS)
        top = len(blocks) - 1
        return "".join(blocks[max(round(share * top), 1) if share > 0 else 0] for share in shares)


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
