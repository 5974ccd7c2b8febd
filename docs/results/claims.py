"""What the paper says, compared with measurements that had no part in choosing a policy.

"The best policy" is chosen on one set of documents and compared on another, so that the choice
itself cannot make it look good.
"""

from __future__ import annotations

from typing import NamedTuple

from study import PLAIN

from attendre_core.evaluation.intervals import Interval
from attendre_core.evaluation.sweep import Cell, Measured
from attendre_core.evaluation.sweep.findings import best
from attendre_core.evaluation.sweep.summary import paired

#: The cells of one place.
Table = dict[Cell, Measured]


class Claim(NamedTuple):
    """A statement, and the difference that decides it.

    Attributes
    ----------
    words
        What is claimed.
    systems
        What was compared: the first should be better.
    shares
        Right answers of both.
    gap
        Their difference, with a paired interval.
    """

    words: str
    systems: tuple[str, str]
    shares: tuple[float, float]
    gap: Interval

    @property
    def verdict(self) -> str:
        """``"holds"`` if the interval is above zero, ``"fails"`` if below, else ``"open"``."""
        if self.gap.low > 0:
            return "holds"
        return "fails" if self.gap.high < 0 else "open"


def sizes_of(table: Table) -> list[tuple[int, int]]:
    """Return all pairs of M and N, those without waiting queries first."""
    return sorted({(c.kv, c.q) for c in table if c.kv}, key=lambda size: (size[1] > 0, size))


def claims(chosen: Table, checked: Table, chunk: int) -> list[Claim]:
    """Compare what the paper compares.

    Parameters
    ----------
    chosen
        The cells among which the best policies are looked up.
    checked
        The same cells on other documents, from which every figure comes.
    chunk
        S.
    """
    found = []
    for kv, q in sizes_of(checked):
        if q or kv > 4 * chunk:
            continue
        plain, sinks = checked.get(Cell("MT", kv, 0)), checked.get(Cell("AS", kv, 0))
        top = _best(chosen, checked, kv, 0)
        found.append(_claim(f"sinks beat FIFO at M = {kv}", sinks, plain))
        found.append(_claim(f"attention beats sinks at M = {kv}", top, sinks))
    top, plain = _best(chosen, checked, 2 * chunk, 0), checked.get(Cell("MT", 16 * chunk, 0))
    found.append(_claim(f"M = {2 * chunk} beats FIFO at M = {16 * chunk}", top, plain))
    for kv, q in sizes_of(checked):
        if q:
            late, early = _best(chosen, checked, kv, q), _best(chosen, checked, kv, 0)
            found.append(_claim(f"waiting for N = {q} helps at M = {kv}", late, early))
            late, early = (checked.get(Cell("attendre", kv, n)) for n in (q, 0))
            found.append(_claim(f"waiting for N = {q} helps our preset at M = {kv}", late, early))
    return [claim for claim in found if claim is not None]


def best_at(table: Table, size: tuple[int, int]) -> Measured | None:
    """Return the paper's LRA or LFA with the most right answers at a size."""
    return best([m for c, m in table.items() if (c.kv, c.q) == size and c.policy != PLAIN])


def _best(chosen: Table, checked: Table, kv: int, q: int) -> Measured | None:
    """Return the cell, in the checked table, of the policy that was best in the other.

    A size that the other lacks is decided by its smallest one, with or without waiting alike.
    """
    alike = [size for size in sizes_of(chosen) if (size[1] > 0) == (q > 0)]
    top = best_at(chosen, (kv, q) if (kv, q) in alike else min(alike, default=(kv, q)))
    return None if top is None else checked.get(Cell(top.cell.policy, kv, q))


def _claim(words: str, better: Measured | None, worse: Measured | None) -> Claim | None:
    gap = paired(better, worse, "right") if better and worse else None
    if better is None or worse is None or gap is None:
        return None
    systems = (better.cell.policy, worse.cell.policy)
    return Claim(words, systems, (better.mean("right"), worse.mean("right")), gap)
