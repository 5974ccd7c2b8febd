"""What a grid shows, in sentences; every figure in them is computed from the outcomes."""

from __future__ import annotations

from collections.abc import Sequence

from attendre_core.evaluation.grid import Cell, Measured
from attendre_core.evaluation.intervals import Interval, difference
from attendre_core.evaluation.tasks.vocabulary import VALUES

__all__ = ["admission", "best", "sentences"]

#: Systems that rank entries by attention: what the paper proposes.
_ATTENTIVE = ("LRA-", "LFA-")


def best(measured: Sequence[Measured]) -> Measured | None:
    """Return the LRA or LFA policy with the most right answers; the first of equals."""
    found = [m for m in measured if m.cell.system.startswith(_ATTENTIVE)]
    return max(found, key=lambda m: int(m.outcome.right.sum()), default=None)


def sentences(measured: Sequence[Measured], chunk: int) -> list[str]:
    """Say what one table shows: one model, one task, one c.

    Parameters
    ----------
    measured
        The cells of the table.
    chunk
        S, in which sizes are expressed.
    """
    by_size: dict[tuple[int, int], list[Measured]] = {}
    for m in measured:
        by_size.setdefault((m.cell.kv_size, m.cell.q_size), []).append(m)
    found = []
    for kv, q in sorted(by_size):
        if q == 0 and chunk < kv <= 4 * chunk:
            found += _ordering(by_size[kv, q], chunk)
    found += _against_size(by_size, chunk)
    found += _waiting(by_size)
    found += _own(by_size)
    found += _controls(measured)
    return found


def admission(measured: Sequence[Measured]) -> str | None:
    """Say which LRA or LFA policy lets the fewest new entries in; None if there is none."""
    scored = [m for m in measured if m.cell.system.startswith(_ATTENTIVE)]
    if not scored:
        return None
    low = min(scored, key=lambda m: float(m.outcome.admitted.mean()))
    share = float(low.outcome.admitted.mean())
    verdict = (
        "such a memory freezes into the beginning of its input; a lower c lets more in"
        if share < 0.5
        else "no memory here froze"
    )
    return (
        f"Fewest new entries were let in by {_named(low.cell)}: {100 * share:.0f} % of those that "
        f"met a full memory; {verdict}."
    )


def _ordering(row: Sequence[Measured], chunk: int) -> list[str]:
    plain, sinks, top = _of(row, "MT"), _of(row, "AS"), best(row)
    if plain is None or sinks is None or top is None:
        return []
    gap = difference(top.outcome.right, sinks.outcome.right)
    kv = plain.cell.kv_size
    return [
        f"With room for {kv} of the tokens read ({kv // chunk} chunks), first-in-first-out answers "
        f"{_percent(plain)}, four sinks {_percent(sinks)}, and the best policy that looks at "
        f"attention, {top.cell.system}, {_percent(top)}; against sinks {_points(gap)}."
    ]


def _against_size(by_size: dict[tuple[int, int], list[Measured]], chunk: int) -> list[str]:
    small, large = by_size.get((2 * chunk, 0)), by_size.get((16 * chunk, 0))
    top = best(small or [])
    plain = _of(large or [], "MT")
    if top is None or plain is None:
        return []
    gap = difference(top.outcome.right, plain.outcome.right)
    return [
        f"Choice against size: {top.cell.system} with {2 * chunk} entries answers "
        f"{_percent(top)}, first-in-first-out with {16 * chunk} entries {_percent(plain)}; "
        f"{_points(gap)}."
    ]


def _waiting(by_size: dict[tuple[int, int], list[Measured]]) -> list[str]:
    found = []
    for (kv, q), row in sorted(by_size.items()):
        before = by_size.get((kv, 0))
        if q == 0 or before is None:
            continue
        late, early = best(row), best(before)
        if late is None or early is None:
            continue
        gap = difference(late.outcome.right, early.outcome.right)
        found.append(
            f"Letting queries wait for {q} positions (M = {kv}) takes the best policy from "
            f"{_percent(early)} to {_percent(late)}, {_points(gap)}; when they attend, "
            f"{100 * float(late.outcome.present.mean()):.0f} % of their own chunk is still there."
        )
    return found


def _own(by_size: dict[tuple[int, int], list[Measured]]) -> list[str]:
    found = []
    for (kv, q), row in sorted(by_size.items()):
        own, top = _of(row, "attendre"), best(row)
        if q == 0 or own is None or top is None:
            continue
        gap = difference(own.outcome.right, top.outcome.right)
        found.append(
            f"Our preset, attendre, answers {_percent(own)} with M = {kv} and N = {q}: "
            f"against {top.cell.system} {_points(gap)}; "
            f"{100 * float(own.outcome.present.mean()):.0f} % of the own chunk is still there."
        )
    return found


def _controls(measured: Sequence[Measured]) -> list[str]:
    parts = []
    for name, words in (
        ("full", "attention to everything answers {}"),
        ("no-memory", "reading only the last chunk {}"),
        ("closed-book", "the question alone {}"),
    ):
        found = _of(measured, name)
        if found is not None:
            parts.append(words.format(_percent(found)))
    if not parts:
        return []
    guess = 100 / len(VALUES)
    return [f"Controls: {', '.join(parts)}; a guess is right in {guess:.0f} % of cases."]


def _of(measured: Sequence[Measured], name: str) -> Measured | None:
    return next((m for m in measured if m.cell.system == name), None)


def _named(cell: Cell) -> str:
    return f"{cell.system} (M = {cell.kv_size}, N = {cell.q_size})"


def _percent(measured: Measured) -> str:
    return f"{100 * measured.accuracy.value:.0f} %"


def _points(gap: Interval) -> str:
    """Write a difference in points, and whether it may be chance."""
    sure = "" if gap.excludes_zero else ", which may be chance"
    return f"{100 * gap.value:+.0f} points [{100 * gap.low:+.0f}, {100 * gap.high:+.0f}]{sure}"
