"""Grids as tables in the shape of the paper's: a row for each M and N, a column a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attendre_core.evaluation.grid import Measured, Sigmas

__all__ = ["Table", "tables_of", "with_interval", "with_shares"]

#: What has a table of its own: model, task, answers, and c (None if nothing depends on it).
Heading = tuple[str, str, str, Sigmas | None]


class Table:
    """Outcomes of one model on one task with one c.

    Parameters
    ----------
    heading
        Model, task, answers and c.
    measured
        The cells, those of policies without scores included.
    """

    def __init__(self, heading: Heading, measured: Sequence[Measured]) -> None:
        self.heading, self.measured = heading, list(measured)
        self._by_place = {(m.cell.system, m.cell.kv_size, m.cell.q_size): m for m in measured}

    @property
    def title(self) -> str:
        """The heading in words."""
        model, task, answers, sigmas = self.heading
        words = f"{model}, {task}, {answers}"
        if sigmas is None:
            return words
        return f"{words}, the paper's c" if sigmas == "paper" else f"{words}, c = {sigmas:g}"

    @property
    def systems(self) -> list[str]:
        """The columns: those systems that have a size."""
        return list(dict.fromkeys(m.cell.system for m in self.measured if m.cell.kv_size))

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The rows: without waiting queries first, as in the paper."""
        found = {(m.cell.kv_size, m.cell.q_size) for m in self.measured if m.cell.kv_size}
        return sorted(found, key=lambda size: (size[1] > 0, size))

    @property
    def whole(self) -> list[Measured]:
        """The controls that have no size, in their order."""
        return [m for m in self.measured if not m.cell.kv_size]

    def at(self, system: str, kv_size: int, q_size: int) -> Measured | None:
        """Return a cell; None if it was not measured."""
        return self._by_place.get((system, kv_size, q_size))

    def lines(
        self,
        write: Callable[[Measured], str],
        systems: Sequence[str] | None = None,
        mark: Callable[[str], str] = str,
    ) -> list[str]:
        """Return the table as lines of text.

        Parameters
        ----------
        write
            What a cell shows.
        systems
            Which columns; all by default.
        mark
            Applied to the text of the most accurate cell of a row.
        """
        columns = self.systems if systems is None else list(systems)
        rows = [
            [(m, write(m)) if (m := self.at(name, *size)) else (None, "") for name in columns]
            for size in self.sizes
        ]
        widths = [
            max(len(name), *(len(row[i][1]) for row in rows)) for i, name in enumerate(columns)
        ]
        heads = [f"{name:>{width}}" for name, width in zip(columns, widths, strict=True)]
        lines = [f"{'M':>5} {'N':>4}  " + "  ".join(heads)]
        for (kv, q), row in zip(self.sizes, rows, strict=True):
            top = max((m.accuracy.value for m, _ in row if m is not None), default=0.0)
            cells = []
            for (m, text), width in zip(row, widths, strict=True):
                padding = " " * (width - len(text))
                first = m is not None and m.accuracy.value == top
                cells.append(padding + (mark(text) if first else text))
            lines.append((f"{kv:>5} {q:>4}  " + "  ".join(cells)).rstrip())
        return lines

    def blocks(
        self, write: Callable[[Measured], str], wide: int, mark: Callable[[str], str] = str
    ) -> list[list[str]]:
        """Return the table as blocks of lines, each with as many columns as ``wide`` has room for.

        The controls that have no size stand in a last line. ``write`` and ``mark`` as in `lines`.
        """
        room, names = max((wide - 12) // 12, 1), self.systems
        parts = [names[i : i + room] for i in range(0, len(names), room)]
        found = [self.lines(write, part, mark) for part in parts]
        if self.whole:
            found.append([", ".join(f"{m.cell.system} {write(m)}" for m in self.whole)])
        return found


def tables_of(measured: Iterable[Measured]) -> list[Table]:
    """Sort outcomes into tables; what does not depend on c is in the tables of every c."""
    places: dict[tuple[str, str, str], list[Measured]] = {}
    for m in measured:
        places.setdefault((m.cell.model, m.cell.task, m.cell.answers), []).append(m)
    tables = []
    for place, every in places.items():
        sigmas: list[Sigmas | None] = [m.cell.sigmas for m in every if m.cell.sigmas is not None]
        for c in dict.fromkeys(sigmas or [None]):
            own = [m for m in every if m.cell.sigmas in (c, None)]
            tables.append(Table((*place, c), own))
    return tables


def with_interval(measured: Measured) -> str:
    """Return right answers in % and their interval."""
    value, low, high = (round(100 * x) for x in measured.accuracy)
    return f"{value} ({low}-{high})"


def with_shares(measured: Measured) -> str:
    """Return the share of new entries let in, and that of a chunk's own entries still there."""
    return f"{measured.outcome.admitted.mean():.2f} {measured.outcome.present.mean():.2f}"
