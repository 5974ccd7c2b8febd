"""What a memory holds and how it behaved, in plain numbers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from attendre_core.backend import Array, backend_of
from attendre_core.errors import FrozenMemoryWarning
from attendre_core.memory.state import KeyValueState
from attendre_core.tree import tree_leaves

__all__ = ["MemoryReport", "report_of", "warn_if_frozen"]

#: A memory that admits a smaller share of new entries than this is freezing.
FROZEN_BELOW = 0.5


@dataclass(frozen=True)
class MemoryReport:
    """One memory after some steps; tuples have one number per batch row.

    Attributes
    ----------
    slots
        Slots per row.
    used
        Slots that hold an entry (in the first K/V head, with ``per_head=True``).
    inserted
        Valid entries inserted so far.
    evicted
        Entries evicted so far, including refused ones.
    admitted_share
        Share of new entries admitted while the memory was full; 1 if nothing was evicted.
    nbytes
        Bytes of the whole state.
    """

    slots: int
    used: tuple[int, ...]
    inserted: tuple[int, ...]
    evicted: tuple[int, ...]
    admitted_share: tuple[float, ...]
    nbytes: int


def warn_if_frozen(shares: tuple[float, ...], threshold: float, stacklevel: int) -> None:
    """Warn if a row admits a smaller share than the threshold."""
    low = min(shares, default=1.0)
    if low < threshold:
        warnings.warn(
            f"the memory admits only {low:.0%} of the new entries that meet it full "
            f"(below {threshold:.0%}): it is freezing into the beginning of the input. Use what we "
            "recommend, 'attendre-causal' for causal models and 'attendre' for models that look "
            "both ways; or let new entries start higher with +c=0 or +quota=0.5 in the name of "
            "the memory (InitialScore(0.0), QuotaScore(0.5)).",
            FrozenMemoryWarning,
            stacklevel=stacklevel,
        )


def report_of(state: KeyValueState, shares: Array) -> MemoryReport:
    """Report on a state; ``shares`` are the admitted shares of its rows."""
    to_numpy = backend_of(state.key).to_numpy
    valid = to_numpy(state.valid)
    if valid.ndim == 3:
        valid = valid[:, 0]
    return MemoryReport(
        slots=int(state.key.shape[2]),
        used=tuple(int(n) for n in valid.sum(axis=-1)),
        inserted=tuple(int(n) for n in to_numpy(state.clock)),
        evicted=tuple(int(n) for n in to_numpy(state.evictions)),
        admitted_share=tuple(float(s) for s in to_numpy(shares)),
        nbytes=sum(int(to_numpy(leaf).nbytes) for leaf in tree_leaves(tuple(state))),
    )
