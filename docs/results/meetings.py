"""How our preset does against every other system: wins, ties, losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from claims import sizes_of
from compact import Place
from study_results import SCORED, Study
from tables import SIZED_CONTROLS, gap_text, percent_text

from attendre_core.evaluation.intervals import Interval
from attendre_core.evaluation.sweep import Cell, Measured, Table
from attendre_core.presets import OTHER_PRESETS, PAPER_PRESETS

#: How our preset meets another: words, and the size of ours for a size of the other.
MEETINGS: dict[str, Callable[[int, int], tuple[int, int] | None]] = {
    "same M, same N > 0": lambda kv, q: (kv, q) if q else None,
    "half of M, half of N": lambda kv, q: (kv // 2, q // 2) if q else None,
    "it waits, the other does not": lambda kv, q: None if q else (kv, kv // 2),
    "neither waits": lambda kv, q: None if q else (kv, q),
}
OPPONENTS = (*PAPER_PRESETS, *OTHER_PRESETS, *SIZED_CONTROLS)


def _pairs(
    found: Study, own: str, name: str, meeting: str
) -> Iterator[tuple[Place, Measured, Measured]]:
    """Yield cells of ``own`` and of another system, at its best c, that are compared."""
    for place, table in found.tables.items():
        for kv, q in sizes_of(table):
            size = MEETINGS[meeting](kv, q)
            if size is not None:
                ours, other = table.get(Cell(own, *size)), found.at(place, name, kv, q)
                if ours is not None and other is not None:
                    yield place, ours, other


def _gaps(found: Study, own: str, names: Sequence[str], meeting: str) -> list[Interval]:
    """Return the differences of ``own`` from some systems, by pairs of cells."""
    return [
        found.gap(ours, other)
        for name in names
        for _, ours, other in _pairs(found, own, name, meeting)
    ]


def comparisons(found: Study, own: str, names: Sequence[str], meeting: str) -> tuple[int, int, int]:
    """Count wins, ties and losses of ``own`` against some systems."""
    gaps = _gaps(found, own, names, meeting)
    won, lost = sum(gap.low > 0 for gap in gaps), sum(gap.high < 0 for gap in gaps)
    return won, len(gaps) - won - lost, lost


def wins(found: Study, own: str = "attendre") -> str:
    """Return wins, ties and losses of our preset, and its lowest difference."""
    rows = []
    every = {
        "the paper's, together": PAPER_PRESETS,
        **{f"`{name}`" + (", best c" if name in SCORED else ""): (name,) for name in OPPONENTS},
    }
    for words, names in every.items():
        row = [words]
        for meeting in MEETINGS:
            gaps = _gaps(found, own, names, meeting)
            won, tied, lost = comparisons(found, own, names, meeting)
            low = f"{100 * min(gap.value for gap in gaps):+.0f}" if gaps else ""
            row.append(f"{won} / {tied} / {lost} ({low})" if gaps else "")
        rows.append(row)
    return Table(["against", *MEETINGS], rows).markdown()


def losses(found: Study, own: str = "attendre") -> str:
    """Return every comparison that our preset lost, with its interval."""
    lines = []
    for meeting in MEETINGS:
        for name in OPPONENTS:
            for place, ours, other in _pairs(found, own, name, meeting):
                gap = found.gap(ours, other)
                if gap.high < 0:
                    lines.append(
                        f"- {', '.join(place)}: {percent_text(ours)} at "
                        f"{ours.cell.kv}/{ours.cell.q} "
                        f"against {percent_text(other)} of `{other.cell.policy}` at "
                        f"{other.cell.kv}/{other.cell.q}, {gap_text(gap)} points"
                    )
    return "\n".join(lines) or "None."
