"""A synthetic document: a question, a long context of records, and one token as the answer.

::

    begin noise* QUESTION noise* context: record record record ... noise* answer:  ->  value

The question comes first and only once, as in the paper's template, so a model that reads in chunks
has to remember it. Each record binds a value to a key.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Document", "Tokens"]

Tokens = NDArray[np.int32]


class Document(NamedTuple):
    """One document, its answer, and where its parts are.

    Attributes
    ----------
    tokens
        int32, (length,): the whole input.
    answer
        The right next token.
    question
        Number of the key that is asked for.
    context
        Position of the token ``context:``; records start after it.
    values, owners
        int32, (records,): positions of the values, and the number of the key of each.
    name
        Unique among the documents of a task.
    words
        The text of each token, if the document is text to read; joined, they are the text.
    """

    tokens: Tokens
    answer: int
    question: int
    context: int
    values: Tokens
    owners: Tokens
    name: str = ""
    words: tuple[str, ...] = ()

    @property
    def closed_book(self) -> Tokens:
        """The question without the context."""
        return np.append(self.tokens[: self.context + 1], self.tokens[-1])
