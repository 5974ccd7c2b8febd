"""What a terminal can show: colour, characters beyond ASCII, and texts that nobody vouches for."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from typing import Any, TextIO, cast

__all__ = ["Terminal", "harmless_streams", "standard_input"]

_COLOURS = {"green": "32", "red": "31", "bold": "1", "dim": "2"}
#: The characters beyond ASCII that `Terminal.choose` picks from.
_SYMBOLS = "░▒▓█·\N{HORIZONTAL ELLIPSIS}\N{MINUS SIGN}\N{CHECK MARK}\N{BALLOT X}"
#: What a terminal obeys, except newlines and tabs: C0 and C1 controls, and marks that turn the
#: direction of writing. Lone surrogates cannot be written at all.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: Stands for the escape of our own colours in texts that go through a `_Harmless`. It is drawn for
#: each process, so that no text can hold it.
_OWN = f"\ue000{secrets.token_hex(8)}["


class _Harmless:
    """A text stream that writes escapes for what a terminal obeys or the encoding lacks.

    Everything that a command prints goes through it, whoever wrote the names, messages and texts.
    Output that goes to no terminal keeps its characters, unless ``always``.
    """

    def __init__(self, stream: TextIO, *, always: bool) -> None:
        self.stream = stream
        self._always = always or stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text, changed where it has to be."""
        shown = _OBEYED.sub(_escaped, text) if self._always else text
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        try:
            shown.encode(encoding)
        except UnicodeEncodeError:
            shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        self.stream.write(shown.replace(_OWN, "\x1b["))
        return len(text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


@contextmanager
def harmless_streams() -> Iterator[None]:
    r"""Let nothing that is printed in this ``with`` block steer the terminal.

    Examples
    --------
    >>> import sys
    >>> with harmless_streams():
    ...     print("wipe \x1b[2J", file=sys.stderr)
    """
    old = sys.stdout, sys.stderr
    # Messages are for people, wherever they go; what goes into a pipe or file is for programs.
    sys.stdout = cast(TextIO, _Harmless(old[0], always=False))
    sys.stderr = cast(TextIO, _Harmless(old[1], always=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = old


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
        self._escape = _OWN if isinstance(stream, _Harmless) else "\x1b["
        self.encoding = getattr(stream, "encoding", None) or "ascii"
        self.unicode = _can_encode(stream, _SYMBOLS)
        self.columns = shutil.get_terminal_size((100, 24)).columns

    def paint(self, text: str, colour: str) -> str:
        """Return the text in a colour; unchanged if the stream has no colour."""
        escape = self._escape
        return f"{escape}{_COLOURS[colour]}m{text}{escape}0m" if self.colour else text

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


def standard_input() -> TextIO:
    """Return standard input, read as files are: UTF-8, and U+FFFD for what is not."""
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:
        with suppress(UnsupportedOperation):  # somebody has read from it
            reconfigure(encoding="utf-8", errors="replace")
    return sys.stdin
