"""Tokens of a text that arrives in pieces, whatever the pieces are."""

from __future__ import annotations

import re
import unicodedata

from attendre_core.errors import ConfigError, DTypeError
from attendre_core.zoo.tokenizers.base import Encoded, Tokenizer, refuse_half_characters

__all__ = ["IncrementalTokenizer"]

#: A single space between a word, perhaps with its punctuation, and something visible. No tokenizer
#: of a kind that we read joins what is before such a space with what is behind it.
_BETWEEN_WORDS = re.compile(r"(?<=[\w.,;:!?()\"']) (?=[\w!-~])")
#: Where a run without such a place is cut, from the best to the worst: before white space, and
#: between punctuation and a word.
_FORCED = (re.compile(r"(?<=\S)(?=\s)"), re.compile(r"(?<=[^\w\s])(?=\w)"))
#: Stands for the words before a segment that begins with white space.
_BEFORE = "a"


class IncrementalTokenizer:
    """Tokenise a text that arrives in pieces.

    Laws: the tokens and offsets of a text are the same wherever it is cut into pieces, and at most
    ``longest`` characters wait. They are those of `Tokenizer.encode_with_offsets` for the whole
    text, with the exceptions under Notes.

    Parameters
    ----------
    tokenizer
        Of any kind.
    least
        A segment is tokenised as soon as it has so many characters and a word begins behind it.
    longest
        A segment without a space between words is cut after at most so many characters.

    Notes
    -----
    The text is cut into segments between words, by rules that look at nothing but the text; a
    segment is tokenised as what follows a word. That is what the tokenizer would do with the whole
    text, for WordPiece, byte-level BPE, SentencePiece (unigram, BPE, Metaspace), the scores of
    Llama 2 and word lists, except

    - where more than ``longest`` characters have no space between words: at the forced cut a token
      that would have crossed it becomes two, and WordPiece may know parts of a word that it does
      not know as a whole;
    - if a piece or an added token of the vocabulary has a space inside, or an added token swallows
      the white space behind a word;
    - for unigram models of the package sentencepiece, where two ways of cutting a text are equally
      likely up to the rounding of the sum over all of it.

    Examples
    --------
    >>> from attendre_core.zoo.tokenizers.vocabulary import VocabularyTokenizer
    >>> tokenizer = IncrementalTokenizer(VocabularyTokenizer(("up", "and", "down"), ()), least=1)
    >>> tokenizer.feed("up a"), tokenizer.feed("nd down")
    (([0], [(0, 2)]), ([1], [(3, 6)]))
    >>> tokenizer.end()
    ([2], [(7, 11)])
    """

    def __init__(self, tokenizer: Tokenizer, least: int = 48, longest: int = 1024) -> None:
        if not hasattr(tokenizer, "encode_with_offsets"):
            raise ConfigError(
                f"IncrementalTokenizer: the {type(tokenizer).__name__} does not say where its "
                "tokens are in the text, expected a method encode_with_offsets(text) that returns "
                "ids and offsets."
            )
        self._tokenizer, self._least, self._longest = tokenizer, least, longest
        self._text, self._start = "", 0

    def feed(self, text: str) -> Encoded:
        """Take a piece of the text; return the tokens that are certain now, and their offsets."""
        if not isinstance(text, str):
            raise DTypeError(f"feed: the piece is a {type(text).__name__}, expected a text.")
        refuse_half_characters("feed", text, self._start + len(self._text))
        self._text += text
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        at = 0
        while (cut := self._cut(at)) is not None:
            self._encode(self._text[at:cut], self._start + at, ids, offsets)
            at = cut
        self._text, self._start = self._text[at:], self._start + at
        return ids, offsets

    def end(self) -> Encoded:
        """Return the tokens of what waits: the text ends here."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        if self._text:
            self._encode(self._text, self._start, ids, offsets)
        self._text, self._start = "", self._start + len(self._text)
        return ids, offsets

    def _cut(self, at: int) -> int | None:
        """Return where the segment that begins at ``at`` ends; None if it is not certain yet."""
        limit = at + self._longest
        # One character further, because the place lies between two that must both be there.
        between = _BETWEEN_WORDS.search(self._text, at + self._least, limit + 1)
        if between is not None:
            return between.start()
        if len(self._text) <= limit:
            return None
        for rule in _FORCED:
            places = [found.start() for found in rule.finditer(self._text, at + 1, limit)]
            if places and places[-1] > at:
                return places[-1]
        while limit > at + self._longest // 2 and _belongs(self._text[limit]):
            limit -= 1
        return limit

    def _encode(
        self, segment: str, start: int, ids: list[int], offsets: list[tuple[int, int]]
    ) -> None:
        """Tokenise a segment, as what follows a word if white space says so."""
        if start and segment[0].isspace():
            begin = len(_BEFORE)
            found, places = self._tokenizer.encode_with_offsets(_BEFORE + segment)
            first = next((n for n, place in enumerate(places) if place[0] >= begin), len(places))
            if all(end <= begin for _, end in places[:first]):
                ids += found[first:]
                offsets += [(a + start - begin, b + start - begin) for a, b in places[first:]]
                return
        found, places = self._tokenizer.encode_with_offsets(segment)
        ids += found
        offsets += [(a + start, b + start) for a, b in places]


def _belongs(character: str) -> bool:
    """Whether a character belongs to the one before it."""
    return unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf") or character == "\n"
