"""The vocabulary of the synthetic tasks: token ids, and a name for each."""

from __future__ import annotations

__all__ = [
    "ANSWER",
    "BEGIN",
    "CONTEXT",
    "KEYS",
    "NOISE",
    "QUESTIONS",
    "VALUES",
    "VOCABULARY",
    "word",
]

#: Padding, and the token that a decoder starts with.
PADDING = 0
BEGIN, CONTEXT, ANSWER = 1, 2, 3
#: Question word i asks for key i.
QUESTIONS = range(4, 12)
KEYS = range(12, 20)
VALUES = range(20, 52)
NOISE = range(52, 80)
VOCABULARY = 80

_KINDS = (("question", QUESTIONS), ("key", KEYS), ("value", VALUES), ("noise", NOISE))
_SINGLE = {PADDING: "padding", BEGIN: "begin", CONTEXT: "context:", ANSWER: "answer:"}


def word(token: int) -> str:
    """Return a readable name of a token.

    Examples
    --------
    >>> word(KEYS[3]), word(ANSWER)
    ('key3', 'answer:')
    """
    for name, tokens in _KINDS:
        if token in tokens:
            return f"{name}{token - tokens.start}"
    return _SINGLE.get(token, f"unknown{token}")
