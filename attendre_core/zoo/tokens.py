"""Token ids as users give them, and as a model reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attendre_core.backend import Array, beside
from attendre_core.errors import ConfigError, DTypeError
from attendre_core.ops.slots import gather_slots

__all__ = ["is_single", "is_text", "last_rows", "padded", "rows_of"]


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
    _refuse_other_shapes(where, tokens)
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


def _refuse_other_shapes(where: str, tokens: Any) -> None:
    """Refuse what was made for another call: messages of a chat, the output of a tokenizer."""
    first = tokens
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, Mapping) and "role" in first:
        raise ConfigError(
            f"{where}: tokens is a list of chat messages, expected a text or token ids. Start a "
            "chat with model.chat(system=...) and send it the user's texts: it applies the "
            "model's chat template."
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


def last_rows(x: Array, place: Any) -> Array:
    """Take one position of each row of (batch, n, dim); ``place`` is NumPy, (batch,)."""
    index = beside(np.asarray(place, dtype=np.int64)[:, None], x)
    return gather_slots(x, index, axis=1)[:, 0, :]
