"""Right answers of all systems as bars in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attendre_core.cli.terminal import Terminal

if TYPE_CHECKING:
    from attendre_core.evaluation.sweep import Summary

__all__ = ["CHUNK", "bars"]

#: Chunk S of the tiny models.
CHUNK = 16


def bars(summary: Summary, terminal: Terminal, wide: int) -> list[str]:
    """Draw right answers of all systems at the size that most sentences are about.

    On the left queries attend at once, on the right they wait. A star is at the best of all.
    """
    from attendre_core.evaluation.intervals import ENOUGH
    from attendre_core.evaluation.sweep import Cell

    sizes = ((2 * CHUNK, 0), (2 * CHUNK, CHUNK))
    found = {row.cell: row for row in summary.rows if row.cell[1:] in sizes}
    if not found:
        return []
    names = list(dict.fromkeys(cell.policy for cell in found))
    column = min(max(map(len, names)), wide - 46)
    long = (wide - column - 2) // 2 - 16
    name = summary.metrics[0].name
    top = max(row.values[name].value for row in found.values())
    marked = min(row.items for row in found.values()) >= ENOUGH
    block = terminal.choose("█", "#")
    heads = ("queries attend at once", f"queries wait for {CHUNK} tokens")
    lines = [
        terminal.paint(f"Right answers in %, memories of {2 * CHUNK} entries", "bold"),
        f"{'':{column}}  {heads[0]:{long + 16}}{heads[1]}".rstrip(),
    ]
    for policy in names:
        line = f"{policy[:column]:{column}}  "
        for size in sizes:
            row = found.get(Cell(policy, *size))
            if row is None:
                line += " " * (long + 16)
                continue
            value, low, high = row.values[name]
            best = marked and value == top
            share = f"{'*' if best else ' '}{100 * value:3.0f} ({100 * low:.0f}-{100 * high:.0f})"
            text = f"{block * round(long * value):{long}}{share:15} "
            line += terminal.paint(text, "green") if best else text
        lines.append(line.rstrip())
    lines.append(f"({'* the best of all systems; ' if marked else ''}in brackets: 95 % intervals)")
    return lines
