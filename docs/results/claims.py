"""What the paper says, held against measurements that had no part in choosing a policy.

"The best policy" is chosen on one set of documents and compared on another, so that the choice
itself cannot make it look good.
"""

from __future__ import annotations

from typing import NamedTuple

from attendre_core.evaluation.grid import Measured
from attendre_core.evaluation.intervals import Interval, difference
from attendre_core.evaluation.reading import best
from attendre_core.evaluation.tables import Table

__all__ = ["Claim", "claims"]


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


def claims(chosen: Table, checked: Table, chunk: int) -> list[Claim]:
    """Compare what the paper compares.

    Parameters
    ----------
    chosen
        The table in which the best policies are looked up.
    checked
        The same cells on other documents, from which every figure comes.
    chunk
        S.
    """
    found = []
    for kv, q in checked.sizes:
        if q or kv > 4 * chunk:
            continue
        plain, sinks = checked.at("MT", kv, 0), checked.at("AS", kv, 0)
        top = _best(chosen, checked, kv, 0)
        found.append(_claim(f"sinks beat FIFO at M = {kv}", sinks, plain))
        found.append(_claim(f"attention beats sinks at M = {kv}", top, sinks))
    top, plain = _best(chosen, checked, 2 * chunk, 0), checked.at("MT", 16 * chunk, 0)
    found.append(_claim(f"M = {2 * chunk} beats FIFO at M = {16 * chunk}", top, plain))
    for kv, q in checked.sizes:
        if q:
            late, early = _best(chosen, checked, kv, q), _best(chosen, checked, kv, 0)
            found.append(_claim(f"waiting for N = {q} helps at M = {kv}", late, early))
            late, early = checked.at("attendre", kv, q), checked.at("attendre", kv, 0)
            found.append(_claim(f"waiting for N = {q} helps our preset at M = {kv}", late, early))
    return [claim for claim in found if claim is not None]


def _best(chosen: Table, checked: Table, kv: int, q: int) -> Measured | None:
    """Return the cell, in the checked table, of the policy that was best in the other.

    A size that the other lacks is decided by its smallest one, with or without waiting alike.
    """
    alike = [size for size in chosen.sizes if (size[1] > 0) == (q > 0)]
    size = (kv, q) if (kv, q) in alike else min(alike, default=(kv, q))
    row = [m for m in chosen.measured if (m.cell.kv_size, m.cell.q_size) == size]
    top = best(row)
    return None if top is None else checked.at(top.cell.system, kv, q)


def _claim(words: str, better: Measured | None, worse: Measured | None) -> Claim | None:
    if better is None or worse is None:
        return None
    return Claim(
        words,
        (better.cell.system, worse.cell.system),
        (better.accuracy.value, worse.accuracy.value),
        difference(better.outcome.right, worse.outcome.right),
    )
