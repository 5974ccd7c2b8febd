"""Token ids as users give them, and as a model reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attendre_core.backend import Array
from attendre_core.errors import ConfigError, DTypeError
from attendre_core.ops.slots import gather_slots

__all__ = [
    "is_single",
    "is_text",
    "last_rows",
    "padded",
    "refuse_other_shapes",
    "rows_of",
    "typed_rows",
    "types_apart",
]


def rows_of(
    where: str,
    tokens: Any,
    vocabulary: int,
    encode: Callable[[str], list[int]] | None = None,
) -> list[list[int]]:
    """Turn a list of ids, a list of lists of different lengths, or an array, into rows.

    Parameters
    ----------
    vocabulary
        Size of the vocabulary.
    encode
        Turns a text into ids: then ``tokens`` may be a text or a list of texts.

    Examples
    --------
    >>> rows_of("encode", [5, 6], 10), rows_of("encode", [[1], [2, 3]], 10)
    ([[5, 6]], [[1], [2, 3]])
    """
    refuse_other_shapes(where, tokens)
    if encode is not None and is_text(tokens):
        tokens = [encode(text) for text in ([tokens] if isinstance(tokens, str) else tokens)]
    if hasattr(tokens, "tolist"):
        tokens = tokens.tolist()
    if not isinstance(tokens, Sequence) or isinstance(tokens, str):
        raise DTypeError(
            f"{where}: tokens is a {type(tokens).__name__}, expected token ids: a list, a list of "
            "lists, or an integer array."
        )
    nested = bool(tokens) and not isinstance(tokens[0], (int, np.integer))
    rows = [list(row) for row in tokens] if nested else [list(tokens)]
    for number, row in enumerate(rows):
        for place, token in enumerate(row):
            if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
                raise DTypeError(
                    f"{where}: token {place} of row {number} is {token!r}, expected a whole number."
                )
            if not 0 <= token < vocabulary:
                raise ConfigError(
                    f"{where}: token {place} of row {number} is {token}, expected 0 to "
                    f"{vocabulary - 1}. Is this the tokenizer of the model?"
                )
    return [[int(token) for token in row] for row in rows]


def refuse_other_shapes(where: str, tokens: Any) -> None:
    """Refuse bytes, and what was made for another call: chat messages, a tokenizer's output."""
    first = tokens
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, Mapping) and "role" in first:
        raise ConfigError(
            f"{where}: tokens is a list of chat messages, expected a text or token ids. Start a "
            "chat with model.chat(system=...) and send it the user's texts: it applies the "
            "model's chat template."
        )
    if isinstance(first, (bytes, bytearray)):
        raise DTypeError(
            f"{where}: this is a {type(first).__name__}, expected a text or token ids. Decode it: "
            "data.decode()."
        )
    if isinstance(tokens, Mapping) or hasattr(tokens, "input_ids"):
        raise ConfigError(
            f"{where}: tokens is a {type(tokens).__name__}, expected a text or token ids. Write "
            "model.generate(**inputs) for what a tokenizer of transformers returned, or pass its "
            "input_ids."
        )


def is_text(prompt: Any) -> bool:
    """Whether a prompt is a text, or a list that begins with one."""
    if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt:
        prompt = prompt[0]
    return isinstance(prompt, str)


def is_single(prompt: Any) -> bool:
    """Whether a prompt is one text or one row of ids, not a list of them."""
    if isinstance(prompt, str):
        return True
    if hasattr(prompt, "ndim"):
        return bool(prompt.ndim == 1)
    return bool(prompt) and isinstance(prompt[0], (int, np.integer))


def padded(rows: list[list[int]], length: int | None = None) -> tuple[Any, Any]:
    """Pad rows at the end: int32 ids and boolean flags, (rows, length)."""
    longest = max((len(row) for row in rows), default=0) if length is None else length
    tokens = np.zeros((len(rows), longest), dtype=np.int32)
    valid = np.zeros((len(rows), longest), dtype=bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
        valid[number, : len(row)] = True
    return tokens, valid


def typed_rows(where: str, rows: list[list[int]], given: Any, vocabulary: int, types: int) -> Any:
    """Write the type of every token into its id: a token of type t becomes token + t * vocabulary.

    Parameters
    ----------
    given
        A type for all tokens, or one for each row, or a list of types for each row, as long as
        the row; for a single row also just that list. None = 0.
    vocabulary, types
        Numbers of tokens and of types.

    Examples
    --------
    >>> typed_rows("encode", [[5, 6], [7]], [[0, 1], 1], 10, 2)
    [[5, 16], [17]]
    """
    if given is None:
        return rows
    given = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(given, int) or (len(rows) == 1 and _is_row(given) and len(given) != 1):
        given = [given] * len(rows)
    if not isinstance(given, (list, tuple)) or len(given) != len(rows):
        raise ConfigError(
            f"{where}: types is {str(given)[:80]}, expected the type of all tokens, or a list of "
            f"{len(rows)}, one for each row: a type, or as many as the row has tokens."
        )
    typed = []
    for number, (row, own) in enumerate(zip(rows, given, strict=True)):
        own = own.tolist() if hasattr(own, "tolist") else own
        each = [own] * len(row) if isinstance(own, int) else own
        if not _is_row(each) or len(each) != len(row):
            raise ConfigError(
                f"{where}: types of row {number} is {str(own)[:80]}, expected a whole number, or "
                f"{len(row)} of them, one for each token, special ones included."
            )
        odd = next((t for t in each if not 0 <= t < types), None)
        if odd is not None:
            what = f"0 to {types - 1}" if types > 1 else "0: this model has no types of tokens"
            raise ConfigError(f"{where}: row {number} has a token of type {odd}, expected {what}.")
        typed.append([token + int(t) * vocabulary for token, t in zip(row, each, strict=True)])
    return typed


def _is_row(given: Any) -> bool:
    whole = isinstance(given, (list, tuple))
    return whole and all(type(t) is int or isinstance(t, np.integer) for t in given)


def types_apart(tokens: Any, vocabulary: int) -> tuple[Any, Any]:
    """Undo `typed_rows` for an array: ids, and types or, if all are 0, None."""
    types, ids = np.divmod(tokens, np.int32(vocabulary))
    return (ids, types) if types.any() else (tokens, None)


def last_rows(x: Array, place: Array) -> Array:
    """Take one position of each row of (batch, n, dim); ``place`` is an integer (batch,)."""
    return gather_slots(x, place[:, None], axis=1)[:, 0, :]
