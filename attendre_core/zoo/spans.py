"""Labels of tokens become spans of text, as soon as no later token can change them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple

__all__ = ["Aggregation", "Span", "SpanDecoder", "Tag", "tags_of"]

Aggregation = Literal["first", "simple"]

_BEGIN_OR_INSIDE = re.compile(r"([BI])-(.+)", re.DOTALL)
_END_OR_SINGLE = re.compile(r"([LEUS])-(.+)", re.DOTALL)
#: Longest span, in characters: without a limit a label that never ends would be kept forever.
_LONGEST = 2**16


class Span(NamedTuple):
    """A part of a text with a label.

    Attributes
    ----------
    label
        Its type, such as ``PER``, without the prefix of a token's label.
    text
        The characters from ``start`` to ``end``.
    start, end
        Its first character and the one behind its last, counted from the beginning of the stream.
    score
        Mean probability of the labels that it was made of.
    """

    label: str
    text: str
    start: int
    end: int
    score: float


class Tag(NamedTuple):
    """What a label says about a token.

    Attributes
    ----------
    label
        The type of the span that it belongs to; None = it is outside of all spans.
    begins, ends
        Whether a span begins with it, and whether one ends with it, whatever its neighbours are.
    """

    label: str | None
    begins: bool = False
    ends: bool = False


def tags_of(labels: Sequence[str]) -> tuple[Tag, ...]:
    """Read labels in the schemes BIO (also called IOB2), IOB1, BILOU, BIOES, or without prefixes.

    ``L-``, ``E-``, ``U-`` and ``S-`` are prefixes only if ``B-`` or ``I-`` of the same type is
    among the labels, so ``E-mail`` can be a type. ``O`` is outside.

    Examples
    --------
    >>> tags_of(["O", "B-PER", "L-PER", "E-mail"])[1:]
    (Tag(label='PER', begins=True, ends=False), Tag(label='PER', begins=False, ends=True), \
Tag(label='E-mail', begins=False, ends=False))
    """
    types = {found[2] for found in map(_BEGIN_OR_INSIDE.fullmatch, labels) if found}

    def read(label: str) -> Tag:
        if label == "O":
            return Tag(None)
        if found := _BEGIN_OR_INSIDE.fullmatch(label):
            return Tag(found[2], begins=found[1] == "B")
        found = _END_OR_SINGLE.fullmatch(label)
        if found and found[2] in types:
            return Tag(found[2], begins=found[1] in "US", ends=True)
        return Tag(label)

    return tuple(map(read, labels))


class SpanDecoder:
    """Join tokens to words and words to spans.

    Laws: spans come in the order of their starts and do not overlap; what comes out depends on
    the tokens alone. A span comes out with the first token behind it, or at `end`.

    Parameters
    ----------
    labels
        What the label numbers mean; see `tags_of`.
    aggregation
        ``"first"``: a word has the label and the score of its first token. ``"simple"``: each token
        counts by itself. Tokens of one character count as one in either case.

    Examples
    --------
    >>> decoder = SpanDecoder(["O", "B-PER", "I-PER"])
    >>> decoder.feed("Ada Lovelace wrote")
    >>> tokens = [(0, 3, 1, 0.9), (4, 8, 2, 0.7), (8, 12, 0, 0.6), (13, 18, 0, 1.0)]
    >>> [span.text for token in tokens for span in decoder.add(*token)]
    ['Ada Lovelace']
    """

    def __init__(self, labels: Sequence[str], aggregation: Aggregation = "first") -> None:
        self._tags = tags_of(labels)
        self._by_word = aggregation == "first"
        self._text, self._begin = "", 0
        #: The token before: its first character and the one behind it.
        self._last: tuple[int, int] | None = None
        self._tag = Tag(None)
        #: The open span: where it is, and the scores of its words.
        self._start = self._end = 0
        self._scores: tuple[float, int] = (0.0, 0)

    @property
    def open_from(self) -> int | None:
        """The first character of the span that is not certain yet; None = there is none."""
        return None if self._tag.label is None else self._start

    def feed(self, text: str) -> None:
        """Take the next piece of the text; tokens follow, when they have labels."""
        self._text += text

    def add(self, start: int, end: int, label: int, score: float) -> list[Span]:
        """Take the next token: where it is in the text, its label and the label's probability."""
        inside = self._tag.label is not None
        full = inside and end - self._start > _LONGEST
        joins = self._last is not None and self._joins(*self._last, start, end)
        self._last = start, end
        if joins and not full:
            self._end = max(self._end, end)
            return []
        tag = self._tags[label]
        if inside and tag.label == self._tag.label and not (tag.begins or self._tag.ends or full):
            total, count = self._scores
            self._end, self._scores = end, (total + score, count + 1)
            self._tag = tag
            return []
        closed = self.end()
        self._tag, self._start, self._end, self._scores = tag, start, end, (score, 1)
        self._forget(start)
        return closed

    def end(self) -> list[Span]:
        """Return the span that is open: the text ends here."""
        tag, self._tag = self._tag, Tag(None)
        if tag.label is None:
            return []
        text = self._text[self._start - self._begin : self._end - self._begin]
        start = self._start + len(text) - len(text.lstrip())
        text = text.strip()
        total, count = self._scores
        return [Span(tag.label, text, start, start + len(text), total / count)] if text else []

    def _forget(self, before: int) -> None:
        """Drop the text that no span can need; the character before a token is still looked at."""
        if before - self._begin > len(self._text) // 2 + 1:
            self._text = self._text[before - 1 - self._begin :]
            self._begin = before - 1

    def _joins(self, begin: int, end: int, start: int, stop: int) -> bool:
        """Whether a token goes on with what the one before it, from begin to end, began."""
        if start < end:
            return True
        if not self._by_word or start > end or start == stop:
            return False
        place = end - self._begin
        after = self._text[place : place + 1]
        if not self._text[begin - self._begin : place].strip():
            return not after.isspace()  # the space before a word, as a token of its own
        return _in_word(self._text[place - 1 : place]) and _in_word(after)


def _in_word(character: str) -> bool:
    """Whether a character is joined to others in words: no space, punctuation or Han.

    These are the words that BERT cuts into pieces.
    """
    if character.isalnum():
        return not _is_han(character)
    if character.isascii() or character.isspace():
        return False
    return unicodedata.category(character)[0] not in "PCZ"


def _is_han(character: str) -> bool:
    code = ord(character)
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0xF900 <= code <= 0xFAFF
        or 0x20000 <= code <= 0x2FA1F
    )
