"""Patterns of tokenizers: which may take a time that nobody waits for.

The library that runs them tries all ways in which a pattern could match, from each letter on. A
repeat inside of a repeat, as in ``(a+)+``, has twice as many ways with every letter; three repeats
in a row have as many as the cube of the letters. Patterns of published tokenizers have no such
places. Two repeats in a row they do have: a file that was made to harm can still take the cube of
the longest run of one kind of letters, some seconds for a thousand of them.
"""

from __future__ import annotations

import re

from attendre_core.errors import CheckpointError

__all__ = ["check_pattern"]

#: A part of a pattern: a comment, the beginning of a group, or one character as written.
_PART = re.compile(
    r"(?P<comment>\(\?#[^)]*\))"
    r"|(?P<flags>\(\?[a-zA-Z-]*\))"
    r"|(?P<look>\(\?(?:<?[=!]))"
    r"|(?P<open>\((?:\?(?:[a-zA-Z-]*:|>|~|<\w+>|'\w+'))?)"
    r"|(?P<close>\))|(?P<bar>\|)|(?P<class>\[)"
    r"|(?P<call>\\g[<'])"
    r"|(?P<escape>\\[pPxok]\{[^}]*\}|\\k<\w+>|\\.)"
    r"|(?P<one>.)",
    re.DOTALL,
)
_REPEAT = re.compile(r"([*+?]|\{(\d*)(,?)(\d*)\})[?+]?")
#: More often than this, and what is repeated must have one length and one way to match.
_FEW = 3
#: Repeats in a row, as in ``[A-Z]*[a-z]+``.
_ROW = 2
_DEEPEST = 50
_ENDLESS = float("inf")


def check_pattern(pattern: str) -> None:
    r"""Refuse a pattern that can take endless time.

    Examples
    --------
    >>> check_pattern(r"[^\r\n\p{L}]?\p{L}+|\s+(?!\S)|\d{1,3}(?=(?:\d{3})*\b)")
    >>> check_pattern("(a+)+$")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    attendre_core.errors.CheckpointError: a pattern of the tokenizer repeats what can match in ...
    """
    _Branches(pattern).read()


class _Branches:
    """Reads a pattern from its beginning to its end."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def read(self, depth: int = 0) -> tuple[bool, int]:
        """Read a group up to its end.

        Returns
        -------
        bool, int
            Whether it can match in several ways, and how many endless repeats it has in a row.
        """
        if depth > _DEEPEST:
            raise self._refused(f"nests groups more than {_DEEPEST} deep")
        varies, row, longest = False, 0, 0
        while self.at < len(self.pattern):
            part = _PART.match(self.pattern, self.at)
            kind, inner = part.lastgroup if part else "one", (False, 0)
            self.at = part.end() if part else self.at + 1
            if kind == "close":
                break
            if kind in ("comment", "flags"):
                continue
            if kind == "call":
                raise self._refused("calls a part of itself")
            if kind == "bar":
                varies, row = True, 0
                continue
            if kind == "class":
                self._class()
            elif kind in ("open", "look"):
                inner = self.read(depth + 1)
                if kind == "look":
                    inner = (False, 0)
            least, most = self._repeat()
            if inner[0] and most > _FEW:
                raise self._refused("repeats what can match in several ways")
            varies = varies or inner[0] or least != most
            row += inner[1] + (most > _FEW and least != most)
            longest = max(longest, row)
            if row > _ROW:
                raise self._refused(f"has more than {_ROW} repeats in a row")
        return varies, longest

    def _class(self) -> None:
        """Go behind a class of characters, which may hold others."""
        depth, first = 1, True
        while depth and self.at < len(self.pattern):
            if first and self.pattern.startswith("^", self.at):
                self.at += 1
            letter = self.pattern[self.at : self.at + 1]  # none, where the class has no end
            self.at += 2 if letter == "\\" else 1
            if letter == "[":
                depth, first = depth + 1, True
                continue
            if letter == "]" and not first:
                depth -= 1
            first = False

    def _repeat(self) -> tuple[float, float]:
        """Return how often what was read is repeated, at least and at most."""
        least, most = 1.0, 1.0
        while found := _REPEAT.match(self.pattern, self.at):
            sign, low, comma, high = found.groups()
            if sign == "{}" or sign == "{,}":
                break
            self.at = found.end()
            some = {"*": (0.0, _ENDLESS), "+": (1.0, _ENDLESS), "?": (0.0, 1.0)}.get(sign) or (
                float(low or 0),
                float(high) if high else _ENDLESS if comma else float(low or 0),
            )
            least, most = least * some[0], most * some[1]
        return least, most

    def _refused(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"a pattern of the tokenizer {what}, which can take endless time: "
            f"{self.pattern[:80]!r}. Use another tokenizer."
        )
