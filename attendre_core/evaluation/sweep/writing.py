"""Summaries as tables for people: Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Callable

from attendre_core.evaluation.benchmarks.benchmark import Metric
from attendre_core.evaluation.intervals import Interval
from attendre_core.evaluation.sweep.summary import Row, Summary

__all__ = ["cells_of_row", "columns_of", "latex", "markdown", "plain"]

_MINUS = "\N{MINUS SIGN}"


def columns_of(summary: Summary) -> list[str]:
    """Return the heads of the columns."""
    first, *more = summary.metrics
    gap = "loss" if first.exponential else first.label
    return [
        "policy", "M", "N", "n", _head(first), f"{gap} {_MINUS} {summary.baseline}",
        *(_head(metric) for metric in more), "admitted", "own chunk there", "MiB",
    ]  # fmt: skip


def cells_of_row(row: Row, summary: Summary) -> list[str]:
    """Return the texts of a row."""
    first, *more = summary.metrics
    size = [str(row.cell.kv), str(row.cell.q)] if row.cell.kv else ["", ""]
    return [
        row.cell.policy, *size, str(row.items), _value(first, row.values[first.name]),
        "" if row.gap is None else _gap(first, row.gap),
        *(_value(metric, row.values[metric.name]) for metric in more),
        _plain(row.admitted), _plain(row.present), f"{row.nbytes / 2**20:.2f}",
    ]  # fmt: skip


def markdown(summary: Summary) -> str:
    """Return a table in Markdown; differences whose interval excludes zero are bold."""
    lines = [_row(columns_of(summary)), _row(["---", *["---:"] * (len(columns_of(summary)) - 1)])]
    for row in summary.rows:
        texts = cells_of_row(row, summary)
        if row.gap is not None and row.gap.excludes_zero:
            texts[5] = f"**{texts[5]}**"
        lines.append(_row([text.replace("|", "\\|") for text in texts]))
    return "\n".join(lines) + "\n"


def plain(summary: Summary) -> str:
    """Return a table for a terminal."""
    rows = [columns_of(summary), *(cells_of_row(row, summary) for row in summary.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = zip(row, widths, strict=True)
        texts = [f"{first[0]:<{first[1]}}", *(f"{text:>{width}}" for text, width in rest)]
        lines.append("  ".join(texts).rstrip())
    return "\n".join(lines) + "\n"


def latex(summary: Summary) -> str:
    """Return a table in LaTeX; it needs the package booktabs."""
    heads = columns_of(summary)
    lines = [
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        "\\toprule",
        _tex_row(heads),
        "\\midrule",
    ]
    for row in summary.rows:
        texts = [_tex(text) for text in cells_of_row(row, summary)]
        if row.gap is not None and row.gap.excludes_zero:
            texts[5] = f"\\textbf{{{texts[5]}}}"
        lines.append(" & ".join(texts) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _head(metric: Metric) -> str:
    return f"{metric.label} %" if metric.share else metric.label


def _value(metric: Metric, interval: Interval) -> str:
    write = _writer(metric)
    if metric.exponential:
        interval = Interval(*(math.exp(x) for x in interval))
    value, low, high = (write(x) for x in interval)
    return f"{value} ({low} to {high})"


def _gap(metric: Metric, interval: Interval) -> str:
    scale, digits = (100, 0) if metric.share else (1, _digits(metric))
    value, low, high = (_signed(scale * x, digits) for x in interval)
    return f"{value} ({low} to {high})"


def _writer(metric: Metric) -> Callable[[float], str]:
    if metric.share:
        return lambda x: f"{100 * x:.0f}"
    return lambda x: f"{x:.{_digits(metric)}f}".replace("-", _MINUS)


def _digits(metric: Metric) -> int:
    return 3 if "cosine" in metric.name else 2


def _signed(x: float, digits: int) -> str:
    text = f"{x:+.{digits}f}".replace("-", _MINUS)
    return text if any(c in "123456789" for c in text) else text[1:]


def _plain(x: float) -> str:
    return "" if math.isnan(x) else f"{x:.2f}"


def _row(texts: list[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _tex_row(texts: list[str]) -> str:
    return " & ".join(_tex(text) for text in texts) + " \\\\"


def _tex(text: str) -> str:
    """Write a text so that LaTeX shows it as it is."""
    for sign in ("&", "%", "_", "#"):
        text = text.replace(sign, "\\" + sign)
    return text.replace(_MINUS, "$-$")
