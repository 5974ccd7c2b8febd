"""Sentences about the results of a sweep over the synthetic tasks; every number is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from attendre_core.evaluation.controls import CONTROLS
from attendre_core.evaluation.intervals import Interval
from attendre_core.evaluation.sweep.cells import Cell
from attendre_core.evaluation.sweep.store import Measured
from attendre_core.evaluation.sweep.summary import paired
from attendre_core.evaluation.tasks.synthetic_words import VALUES

__all__ = ["best", "findings", "main_findings"]

#: Systems that rank entries by attention, as the paper proposes.
_ATTENTIVE = ("LRA-", "LFA-")
#: A full memory that admits less than this share of the new entries is called frozen.
_FROZEN = 0.5


def best(measured: Sequence[Measured]) -> Measured | None:
    """Return the LRA or LFA policy with the most right answers; in a tie, the first."""
    attentive = [m for m in measured if m.cell.policy.startswith(_ATTENTIVE)]
    return max(attentive, key=lambda m: sum(m.column("right").values()), default=None)


def findings(measured: Sequence[Measured], chunk: int) -> list[str]:
    """Return sentences about the results of one model on one synthetic task.

    Parameters
    ----------
    measured
        The cells; sentences that need other cells are left out.
    chunk
        S, the unit in which sizes are chosen.
    """
    cells = {m.cell: m for m in measured}
    sizes = _by_size(measured)
    return [
        *_choice(sizes, cells, chunk),
        *_against_size(sizes, cells, chunk),
        *_waiting(sizes),
        *_ours(sizes, cells),
        *_initial_score(cells, chunk),
        *_frozen(measured),
        *_controls(cells),
    ]


def main_findings(measured: Sequence[Measured], chunk: int) -> list[str]:
    """Return the sentences of `findings` to read first: those about the smallest sizes."""
    cells = {m.cell: m for m in measured}
    sizes = _by_size(measured)
    return [
        *islice(_choice(sizes, cells, chunk), 1),
        *_against_size(sizes, cells, chunk),
        *islice(_ours(sizes, cells), 1),
        *_frozen(measured),
        *_controls(cells),
    ]


def _by_size(measured: Sequence[Measured]) -> dict[tuple[int, int], list[Measured]]:
    sizes: dict[tuple[int, int], list[Measured]] = {}
    for m in measured:
        sizes.setdefault((m.cell.kv, m.cell.q), []).append(m)
    return sizes


def _choice(
    sizes: dict[tuple[int, int], list[Measured]], cells: dict[Cell, Measured], chunk: int
) -> Iterator[str]:
    for kv, q in sorted(sizes):
        plain, sinks, top = cells.get(Cell("MT", kv, q)), cells.get(Cell("AS", kv, q)), None
        if q == 0 and chunk < kv <= 4 * chunk:
            top = best(sizes[kv, q])
        if plain and sinks and top:
            yield (
                f"With room for {kv} tokens ({kv // chunk} chunks), FIFO (MT) answers "
                f"{_percent(plain)}, four attention sinks (AS) {_percent(sinks)}, and the best "
                f"policy that ranks by attention, {top.cell.policy}, {_percent(top)}: "
                f"{_points(top, sinks)} against sinks."
            )


def _against_size(
    sizes: dict[tuple[int, int], list[Measured]], cells: dict[Cell, Measured], chunk: int
) -> Iterator[str]:
    top, plain = best(sizes.get((2 * chunk, 0), [])), cells.get(Cell("MT", 16 * chunk, 0))
    if top and plain:
        yield (
            f"Choice against size: {top.cell.policy} with {2 * chunk} entries answers "
            f"{_percent(top)}, FIFO with {16 * chunk} entries {_percent(plain)}: "
            f"{_points(top, plain)}."
        )


def _waiting(sizes: dict[tuple[int, int], list[Measured]]) -> Iterator[str]:
    for (kv, q), row in sorted(sizes.items()):
        late, early = best(row), best(sizes.get((kv, 0), []))
        if q and late and early:
            yield (
                f"Letting queries wait for N = {q} positions (M = {kv}) takes the best such policy "
                f"from {_percent(early)} ({early.cell.policy}) to {_percent(late)} "
                f"({late.cell.policy}): {_points(late, early)}; when they attend, "
                f"{100 * late.mean('present'):.0f} % of their own chunk is still there."
            )


def _ours(
    sizes: dict[tuple[int, int], list[Measured]], cells: dict[Cell, Measured]
) -> Iterator[str]:
    for (kv, q), row in sorted(sizes.items()):
        ours, top = cells.get(Cell("attendre", kv, q)), best(row)
        if q and ours and top:
            yield (
                f"What we recommend, attendre, answers {_percent(ours)} at M = {kv} and N = {q}: "
                f"{_points(ours, top)} against {top.cell.policy}; "
                f"{100 * ours.mean('present'):.0f} % of a chunk is there when it attends."
            )


def _initial_score(cells: dict[Cell, Measured], chunk: int) -> Iterator[str]:
    for cell, plain in cells.items():
        lower = cells.get(cell._replace(policy=f"{cell.policy}+c=0"))
        if lower is not None and (cell.kv, cell.q) == (2 * chunk, 0):
            yield (
                f"With new entries that start at the mean score (+c=0; the paper's c is 1), "
                f"{cell.policy} answers {_percent(lower)} instead of {_percent(plain)} at "
                f"M = {cell.kv}, {_points(lower, plain)}: {100 * lower.mean('admitted'):.0f} % of "
                f"the new entries get in instead of {100 * plain.mean('admitted'):.0f} %."
            )


def _frozen(measured: Sequence[Measured]) -> Iterator[str]:
    lowest: dict[str, float] = {}
    for m in measured:
        if m.cell.kv and m.cell.policy not in CONTROLS:
            share = m.mean("admitted")
            lowest[m.cell.policy] = min(share, lowest.get(m.cell.policy, 1.0))
    frozen = [f"{name} ({100 * share:.0f} %)" for name, share in lowest.items() if share < _FROZEN]
    if frozen:
        yield (
            f"Frozen at some size, because few new entries get in: {', '.join(frozen)}. Such a "
            "memory keeps the beginning of its input."
        )
    elif lowest:
        name = min(lowest, key=lambda name: lowest[name])
        yield (
            f"No memory froze: the lowest share of new entries let in is {name}'s, "
            f"{100 * lowest[name]:.0f} %."
        )


def _controls(cells: dict[Cell, Measured]) -> Iterator[str]:
    parts = []
    for name, words in (
        ("full", "full attention answers {}"),
        ("no-memory", "the last chunk alone {}"),
        ("closed-book", "the question alone {}"),
    ):
        control = cells.get(Cell(name, 0, 0))
        if control is not None:
            parts.append(words.format(_percent(control)))
    if parts:
        guess = 100 / len(VALUES)
        yield f"Controls: {', '.join(parts)}; a guess is right in {guess:.0f} % of cases."


def _percent(m: Measured) -> str:
    return f"{100 * m.mean('right'):.0f} %"


def _points(one: Measured, other: Measured) -> str:
    """Write a difference in percentage points, and whether it may be chance."""
    gap = paired(one, other, "right") or Interval(0.0, 0.0, 0.0)
    sure = "" if gap.excludes_zero else " (may be chance)"
    return f"{100 * gap.value:+.0f} points [{100 * gap.low:+.0f}, {100 * gap.high:+.0f}]{sure}"
