"""Tables for terminals, Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from attendre_core.evaluation.intervals import ENOUGH, Interval
from attendre_core.evaluation.sweep.cells import Cell
from attendre_core.evaluation.sweep.summary import Row, Summary
from attendre_core.evaluation.tasks.task import Metric

__all__ = ["Table", "cell_table", "gap_text", "percent", "shares", "size_table", "sizeless_line"]

_MINUS = "\N{MINUS SIGN}"


class Table(NamedTuple):
    """A table of texts.

    Attributes
    ----------
    head
        Titles of the columns; the first column holds names, all others numbers.
    rows
        The texts of each row, one per column.
    strong
        (row, column) of the texts to emphasise.

    Examples
    --------
    >>> print(Table(["policy", "right %"], [["MT", "5"], ["AS", "12"]]).plain())
    policy  right %
    MT            5
    AS           12
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: frozenset[tuple[int, int]] = frozenset()

    def plain(self, emphasise: Callable[[str], str] = str) -> str:
        """Return the table for a terminal; ``emphasise`` is applied to the strong texts."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        aligned = []
        for number, line in enumerate(lines):
            texts = []
            for i, (text, width) in enumerate(zip(line, widths, strict=True)):
                shown = emphasise(text) if (number - 1, i) in self.strong else text
                padding = " " * (width - len(text))
                texts.append(padding + shown if i else shown + padding)
            aligned.append("  ".join(texts).rstrip())
        return "\n".join(aligned)

    def starred(self) -> Table:
        """Return the table with a star before what is emphasised, for where there is no colour.

        Examples
        --------
        >>> Table(["policy", "%"], [["MT", "5"], ["AS", "12"]], frozenset({(1, 1)})).starred().rows
        [['MT', '5'], ['AS', '*12']]
        """
        rows = [
            ["*" * ((i, j) in self.strong) + text for j, text in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        return self._replace(rows=rows)

    def select(self, columns: Sequence[int]) -> Table:
        """Return the names, and only some columns of figures.

        Parameters
        ----------
        columns
            Their numbers, from 1.

        Examples
        --------
        >>> Table(["name", "a", "b"], [["MT", "5", "17"]], frozenset({(0, 2)})).select([2])
        Table(head=['name', 'b'], rows=[['MT', '17']], strong=frozenset({(0, 1)}))
        """
        head, *rows = ([line[0], *(line[j] for j in columns)] for line in (self.head, *self.rows))
        strong = {(i, columns.index(j) + 1) for i, j in self.strong if j in columns}
        return Table(head, rows, frozenset(strong))

    def pieces(self, wide: int) -> list[Table]:
        """Return tables for a narrow terminal, each with the names and as many columns as fit.

        Parameters
        ----------
        wide
            How many letters fit on a line.

        Examples
        --------
        >>> table = Table(["name", "a", "b"], [["MT", "5", "17"]])
        >>> [piece.head for piece in table.pieces(9)]
        [['name', 'a'], ['name', 'b']]
        """
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        groups: list[list[int]] = []
        room = -1
        for j, width in enumerate(widths[1:], 1):
            room -= width + 2
            if room < 0:
                groups.append([])
                room = wide - widths[0] - width - 2
            groups[-1].append(j)
        return [self.select(group) for group in groups]

    def markdown(self, *, figures: bool = True) -> str:
        """Return the table in Markdown; with ``figures``, all columns but the first align right."""
        rule = ["---", *["---:" if figures else "---"] * (len(self.head) - 1)]
        rows = [
            [f"**{text}**" if (i, j) in self.strong else text for j, text in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        lines = [self.head, rule, *([text.replace("|", "\\|") for text in row] for row in rows)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def latex(self) -> str:
        """Return the table in LaTeX, for the package booktabs."""
        rows = [
            [
                f"\\textbf{{{_tex(text)}}}" if (i, j) in self.strong else _tex(text)
                for j, text in enumerate(row)
            ]
            for i, row in enumerate(self.rows)
        ]
        head, *lines = (
            " & ".join(line) + " \\\\" for line in [[_tex(text) for text in self.head], *rows]
        )
        begin = f"\\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}"
        return "\n".join(
            [begin, "\\toprule", head, "\\midrule", *lines, "\\bottomrule", "\\end{tabular}"]
        )


def cell_table(summary: Summary) -> Table:
    """Return a row per cell with all metrics.

    Differences that exclude zero are emphasised if there are 20 items or more. Columns of what was
    not measured are left out: the entries held per layer, and the CPU time of reading against the
    baseline's.
    """
    first, *more = summary.metrics
    held = any(not math.isnan(row.entries) for row in summary.rows)
    timed = any(not math.isnan(row.cost) for row in summary.rows)
    gap = "loss" if first.exponential else first.label
    head = [
        "policy", "M", "N", "n", _head(first), f"{gap} {_MINUS} {summary.baseline}",
        *(_head(metric) for metric in more), "admitted", "own chunk there",
        *["entries"] * held, "MiB", *["cost"] * timed,
    ]  # fmt: skip
    rows = []
    for row in summary.rows:
        size = [str(row.cell.kv), str(row.cell.q)] if row.cell.kv else ["", ""]
        rows.append([
            row.cell.policy, *size, str(row.items), _value(first, row.values[first.name]),
            "" if row.gap is None else gap_text(first, row.gap),
            *(_value(metric, row.values[metric.name]) for metric in more),
            _plain(row.admitted), _plain(row.present),
            *[_plain(row.entries, 0)] * held, f"{row.nbytes / 2**20:.2f}",
            *[_plain(row.cost)] * timed,
        ])  # fmt: skip
    strong = {(i, 5) for i, row in enumerate(summary.rows) if row.is_sure}
    return Table(head, rows, frozenset(strong))


def size_table(summary: Summary, write: Callable[[Row], str]) -> Table:
    """Return a row per system and a column per size M/N; the best of all cells is emphasised.

    Controls without a size are left out, and nothing is emphasised if a cell has fewer than 20
    items.

    Parameters
    ----------
    write
        Returns the text of a cell, such as `percent` or `shares`.
    """
    sized = {row.cell: row for row in summary.rows if row.cell.kv}
    systems = list(dict.fromkeys(cell.policy for cell in sized))
    # Sizes without waiting queries come first, as in the paper.
    sizes = sorted({(cell.kv, cell.q) for cell in sized}, key=lambda size: (size[1] > 0, size))
    metric = summary.metrics[0]
    value = {
        c: (1 if metric.higher else -1) * r.values[metric.name].value for c, r in sized.items()
    }
    enough = min((row.items for row in sized.values()), default=0) >= ENOUGH
    top = max(value.values()) if enough else None
    rows, strong = [], set()
    for i, name in enumerate(systems):
        cells = [Cell(name, kv, q) for kv, q in sizes]
        rows.append([name, *(write(sized[cell]) if cell in sized else "" for cell in cells)])
        strong |= {(i, j) for j, cell in enumerate(cells, 1) if top == value.get(cell, math.nan)}
    return Table(["M/N", *(f"{m}/{n}" for m, n in sizes)], rows, frozenset(strong))


def sizeless_line(summary: Summary, write: Callable[[Row], str]) -> str:
    """Return a line with the controls without a size; empty if there are none."""
    rows = [row for row in summary.rows if not row.cell.kv]
    return ", ".join(f"{row.cell.policy} {write(row)}" for row in rows)


def percent(row: Row) -> str:
    """Return the first metric, which must be a share, in percent with its interval."""
    value, low, high = (round(100 * x) for x in next(iter(row.values.values())))
    return f"{value} ({low}-{high})"


def shares(row: Row) -> str:
    """Return the share of new entries admitted, and of a chunk's own entries still there."""
    return f"{row.admitted:.2f} {row.present:.2f}"


def _head(metric: Metric) -> str:
    return f"{metric.label} %" if metric.share else metric.label


def _value(metric: Metric, interval: Interval) -> str:
    if metric.exponential:
        interval = Interval(*(math.exp(x) for x in interval))
    digits, scale = (0, 100) if metric.share else (metric.digits, 1)
    value, low, high = (f"{scale * x:.{digits}f}".replace("-", _MINUS) for x in interval)
    return f"{value} ({low} to {high})"


def gap_text(metric: Metric, interval: Interval) -> str:
    """Return a difference of a metric with its interval, all with their signs."""
    digits, scale = (0, 100) if metric.share else (metric.digits, 1)
    value, low, high = (_signed(scale * x, digits) for x in interval)
    return f"{value} ({low} to {high})"


def _signed(x: float, digits: int) -> str:
    text = f"{x:+.{digits}f}".replace("-", _MINUS)
    return text if any(c in "123456789" for c in text) else text[1:]


def _plain(x: float, digits: int = 2) -> str:
    return "" if math.isnan(x) else f"{x:.{digits}f}"


def _tex(text: str) -> str:
    """Escape the characters of a text that are special in LaTeX."""
    for sign in ("&", "%", "_", "#"):
        text = text.replace(sign, "\\" + sign)
    return text.replace(_MINUS, "$-$")
