"""Which positions of a stream belong to what: documents, speakers, anything with a name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attendre_core.errors import ConfigError
from attendre_core.zoo.saving import SavedArrays

__all__ = ["Labels"]

Label = str | int
#: A label and its first and last position, exclusive.
Span = tuple[Label, int, int]


class Labels:
    """Labels of the positions of each row, by kind.

    Examples
    --------
    >>> labels = Labels(1)
    >>> labels.add({"document": "a"}, (0,), (3,))
    >>> labels.add({"document": 7}, (3,), (5,))
    >>> list(labels.spans("attention_by", "document", 0))
    [('a', 0, 3), (7, 3, 5)]
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._spans: dict[str, list[list[Span]]] = {}

    def add(self, labels: dict[str, Any], start: Sequence[int], stop: Sequence[int]) -> None:
        """Label the positions from ``start`` to ``stop`` of every row.

        Parameters
        ----------
        labels
            A label, or a list of one for each row, by kind.
        """
        every = {name: self._each(name, given) for name, given in labels.items()}
        for name, each in every.items():
            rows = self._spans.setdefault(name, [[] for _ in range(self._batch)])
            for row, label, first, last in zip(rows, each, start, stop, strict=True):
                if last > first:
                    row.append((label, int(first), int(last)))

    def check(self, labels: dict[str, Any]) -> None:
        """Refuse what is not a label for every row."""
        for name, given in labels.items():
            self._each(name, given)

    def _each(self, name: str, given: Any) -> list[Label]:
        each = list(given) if isinstance(given, (list, tuple)) else [given] * self._batch
        if len(each) != self._batch or not all(type(label) in (str, int) for label in each):
            raise ConfigError(
                f"Stream.feed: {name} is {given!r}, expected a text or a whole number, or a list "
                f"of {self._batch}, one for each row."
            )
        return each

    def spans(self, where: str, name: str, row: int) -> Iterator[Span]:
        """Return the labelled positions of a row."""
        if name not in self._spans:
            known = ", ".join(map(repr, self._spans)) or "none"
            raise ConfigError(
                f"Stream.{where}: nothing was fed with a {name!r}; known: {known}. Label what is "
                f"fed: stream.feed(tokens, {name}=1)."
            )
        return iter(self._spans[name][row])

    def copy(self) -> Labels:
        """Return labels that grow apart from these."""
        twin = Labels(self._batch)
        twin._spans = {name: [list(row) for row in rows] for name, rows in self._spans.items()}
        return twin

    def notes(self) -> dict[str, Any]:
        """Return this as JSON can hold it."""
        return self.copy()._spans

    @classmethod
    def noted(cls, saved: SavedArrays, lengths: Sequence[int]) -> Labels:
        """Read `notes` of a file; older ones have none."""
        labels, notes = cls(len(lengths)), saved.notes.get("labels", {})
        if not isinstance(notes, dict):
            raise saved.refused("has a note labels that names no kinds")
        for name, rows in notes.items():
            if not isinstance(rows, list) or len(rows) != len(lengths):
                raise saved.refused(f"has labels of other rows than {len(lengths)}")
            kept: list[list[Span]] = []
            for row, length in zip(rows, lengths, strict=True):
                if not isinstance(row, list) or not all(_is_span(span, length) for span in row):
                    raise saved.refused("has labels that are not a label and two positions")
                kept.append([(label, first, last) for label, first, last in row])
            labels._spans[name] = kept
        return labels


def _is_span(span: Any, length: int) -> bool:
    if not isinstance(span, list) or len(span) != 3 or type(span[0]) not in (str, int):
        return False
    first, last = span[1:]
    return type(first) is int and type(last) is int and 0 <= first < last <= length
