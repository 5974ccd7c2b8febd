"""What a stream is fed: texts in pieces become tokens, and it answers in kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attendre_core.zoo.pieces import cut_text
from attendre_core.zoo.saving import SavedArrays
from attendre_core.zoo.tokenizers.around import around
from attendre_core.zoo.tokens import is_single, is_text, rows_of

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["InputKind"]


class InputKind:
    """Whether inputs were texts or token ids, single ones or lists, and which texts are open.

    Parameters
    ----------
    text
        Whether all inputs were texts; None: there was none yet.
    single
        Whether all inputs were single ones, not lists of rows.
    opened
        Rows whose last input was a text, behind which the tokenizer's end has not been put.

    Examples
    --------
    >>> kind = InputKind()
    >>> kind.rows(None, "feed", [[1, 2], [3]], 10, (0, 0))
    [[1, 2], [3]]
    >>> kind.text, kind.single
    (False, False)
    """

    def __init__(
        self, text: bool | None = None, single: bool | None = None, opened: Sequence[int] = ()
    ) -> None:
        self.text, self.single, self._opened = text, single, set(opened)

    def rows(
        self, model: Model, where: str, given: Any, vocabulary: int, lengths: Sequence[int]
    ) -> list[list[int]]:
        """Turn an input into rows of tokens; a row's first text gets what a text begins with.

        Parameters
        ----------
        lengths
            Number of tokens that each row of the stream has already.
        """
        text = is_text(given)
        if text:
            tokenizer = model.require_tokenizer("feed")
            before, _ = around(tokenizer)
            rows = rows_of(where, given, vocabulary, lambda t: tokenizer.encode(t, special=False))
        else:
            rows = rows_of(where, given, vocabulary)
        for number, (row, length) in enumerate(zip(rows, lengths, strict=False)):
            if row:
                (self._opened.add if text else self._opened.discard)(number)
            if row and text and length == 0:
                row[:0] = before
        self.text = text and self.text is not False
        self.single = is_single(given) and self.single is not False
        return rows

    def end(self, model: Model) -> dict[int, list[int]]:
        """Return what ends the texts that are open, by row; they are not open any more."""
        if not self._opened:
            return {}
        _, after = around(model.require_tokenizer("finish"))
        ends = dict.fromkeys(self._opened, after)
        self._opened = set()
        return ends

    def answer(self, model: Model, rows: list[list[int]], stop: Sequence[str]) -> Any:
        """Return generated rows in kind: texts for texts, the only one for a single one."""
        result: list[Any] = rows
        if self.text:
            result = [cut_text(model.text(row), stop) for row in rows]
        return result[0] if self.single else result

    def copy(self) -> InputKind:
        """Return another one that is the same."""
        return InputKind(self.text, self.single, tuple(self._opened))

    def notes(self) -> dict[str, Any]:
        """Return this as JSON can hold it."""
        return {"text": self.text, "single": self.single, "open": sorted(self._opened)}

    @classmethod
    def noted(cls, saved: SavedArrays, batch: int) -> InputKind:
        """Read `notes` of a file; older ones have none, and all that is known is its rows."""
        notes = saved.notes.get("input", {"text": False, "single": False, "open": []})
        good = isinstance(notes, dict) and notes.keys() == {"text", "single", "open"}
        if not good or not all(notes[n] in (True, False, None) for n in ("text", "single")):
            raise saved.refused("has a note input that is not what was fed")
        opened = notes["open"]
        if not isinstance(opened, list) or not all(
            type(row) is int and 0 <= row < batch for row in opened
        ):
            raise saved.refused(f"has a note input that names other rows than {batch}")
        return cls(notes["text"], notes["single"] and batch == 1, opened)
