"""Compare an answer with the right ones, by the rules of TriviaQA."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

__all__ = ["contains", "exact_match", "f1", "normalised"]

#: Treated as punctuation as well.
_QUOTES = "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}\N{ACUTE ACCENT}"
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation + _QUOTES, " "))
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalised(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and extra spaces.

    As in the official evaluation, punctuation becomes spaces before articles are removed.

    Examples
    --------
    >>> normalised("  The U.S._Navy's  ship ")
    'u s navy s ship'
    """
    words = _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION))
    return " ".join(words.split())


def exact_match(answer: str, aliases: Iterable[str]) -> bool:
    """Whether an answer is one of the right ones, after normalisation.

    Examples
    --------
    >>> exact_match("the Beatles!", ["Beatles", "Fab Four"])
    True
    """
    given = normalised(answer)
    return any(given == normalised(alias) for alias in aliases)


def f1(answer: str, aliases: Iterable[str]) -> float:
    """Return the F1 score of an answer's words against the best matching alias, 0 to 1.

    Examples
    --------
    >>> round(f1("Mark Twain wrote it", ["Twain", "Mark Twain"]), 3)
    0.667
    """
    return max((_overlap(normalised(answer), normalised(alias)) for alias in aliases), default=0.0)


def contains(text: str, aliases: Iterable[str]) -> bool:
    """Whether any alias occurs in a text as whole words, after normalisation.

    Examples
    --------
    >>> contains("It was the Mississippi.", ["Mississippi"]), contains("Romeo", ["Rome"])
    (True, False)
    """
    words = f" {normalised(text)} "
    wanted = (normalised(alias) for alias in aliases)
    return any(alias and f" {alias} " in words for alias in wanted)


def _overlap(answer: str, alias: str) -> float:
    given, wanted = answer.split(), alias.split()
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0
