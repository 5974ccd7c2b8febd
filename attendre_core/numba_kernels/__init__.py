"""Kernels compiled to machine code by Numba, for arrays on the CPU.

``pip install 'attendre-core[compiled]'`` installs Numba; the kernels are then used unless
`attendre_core.backend.machine_code` turns them off. Without it, the array library computes the
same. The first call compiles for some seconds and caches the result on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from statistics import NormalDist
from typing import Any

import numpy as np

from attendre_core.backend import Array, machine_code_allowed
from attendre_core.ops.admission import SNAP_RANGES

__all__ = [
    "KERNELS",
    "admit",
    "attend_top_k",
    "installed",
    "mean_less_deviations",
    "quantile",
    "write_entries",
]

#: Fewer rows take less time than it takes to start a thread.
_ROWS_PER_THREAD = 64


@cache
def installed() -> bool:
    """Return whether Numba is installed."""
    return find_spec("numba") is not None


def attend_top_k(
    logits: Array,
    value: Array,
    allowed: Array,
    k: int,
    order: Array,
    passes: int | None = None,
    *,
    threads: int = 1,
) -> Any:
    """Attend to the top K; decline dtypes other than float32, and logits that are not finite."""
    slots = logits.shape[-1]
    if not machine_code_allowed():
        return NotImplemented
    if logits.dtype != np.float32 or value.dtype != np.float32 or 0 in logits.shape or k < 1:
        return NotImplemented
    from attendre_core.numba_kernels.top_k import attend_rows

    lead = logits.shape[:-1]
    count = int(np.prod(lead))
    rows = np.ascontiguousarray(logits).reshape(count, slots)
    values = np.ascontiguousarray(value).reshape(-1, slots, value.shape[-1])
    flags, flag_row = _rows_of(allowed, lead)
    orders, order_row = _rows_of(order, lead)
    output = np.empty((count, value.shape[-1]), np.float32)
    threshold, oldest = np.empty(count, np.float32), np.empty(count, np.int32)

    def attend(first: int, last: int) -> int:
        return attend_rows(
            rows, values, count // len(values), not bool(flags.all()), flags, flag_row, orders,
            order_row, k, passes or 0, quantile(k / slots), output, threshold, oldest, first, last,
        )  # fmt: skip

    threads = max(1, min(threads, count // _ROWS_PER_THREAD))
    if threads == 1:
        broken = attend(0, count)
    else:
        ends = [count * i // threads for i in range(threads + 1)]
        broken = sum(_pool(os.getpid(), threads).map(attend, ends[:-1], ends[1:]))
    if broken:
        return NotImplemented
    return (
        output.reshape(*lead, value.shape[-1]),
        threshold.reshape(*lead, 1),
        oldest.reshape(*lead, 1),
    )


def mean_less_deviations(score: Array, counted: Array, deviations: float) -> Array:
    """Score new entries; decline unless all scores count and are float32."""
    if not machine_code_allowed() or score.dtype != np.float32 or not counted.all():
        return NotImplemented
    from attendre_core.numba_kernels.admission import start_rows

    rows = np.ascontiguousarray(score).reshape(-1, score.shape[-1])
    start = np.empty(len(rows), np.float32)
    if not start_rows(rows, deviations, SNAP_RANGES, start):
        return NotImplemented
    return start.reshape(score.shape[:-1])


def admit(primary: Array, order: Array, new_primary: Array, new_order: Array) -> Any:
    """Pair new entries with slots; decline dtypes other than float32."""
    if not machine_code_allowed() or primary.dtype != np.float32 or not new_order.shape[-1]:
        return NotImplemented
    from attendre_core.numba_kernels.admission import admit_rows

    lead, slots, count = primary.shape[:-1], primary.shape[-1], new_order.shape[-1]
    rows = int(np.prod(lead))

    def flat(x: Array, width: int) -> Array:
        return np.ascontiguousarray(x).reshape(rows, width)

    slot, write = np.empty((rows, count), np.int64), np.empty((rows, count), np.bool_)
    admit_rows(
        flat(primary, slots), flat(order, slots), flat(new_primary, count), flat(new_order, count),
        slot, write,
    )  # fmt: skip
    return slot.reshape(*lead, count), write.reshape(*lead, count)


def write_entries(
    arrays: Sequence[Array], index: Array, new: Sequence[Array], write: Array
) -> bool:
    """Overwrite slots, index (batch, count), of arrays (batch, heads, slots, dim).

    Returns False and writes nothing unless all arrays are float32 and contiguous, the new entries
    in the layout in which they arrive, (batch, count, heads, dim).
    """
    if not machine_code_allowed():
        return False
    arriving = [x.transpose(0, 2, 1, 3) for x in new]
    if not all(x.dtype == np.float32 and x.flags.c_contiguous for x in (*arrays, *arriving)):
        return False
    from attendre_core.numba_kernels.writing import write_entries as write_one

    for array, entries in zip(arrays, arriving, strict=True):
        write_one(array, entries, index, write)
    return True


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Return the thread pool of this process; a parent's threads do not survive a fork."""
    return ThreadPoolExecutor(threads, thread_name_prefix="attendre")


@cache
def quantile(share: float) -> float:
    """Return a value that somewhat more than this share of normally distributed numbers reach."""
    return NormalDist().inv_cdf(max(1 - 1.4 * share, 0.05))


def _rows_of(array: Array, lead: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the rows of an array that broadcasts to ``lead``, and the row number at each place."""
    array = array.reshape((1,) * (len(lead) + 1 - array.ndim) + array.shape)
    own = array.shape[:-1]
    which = np.arange(int(np.prod(own)), dtype=np.int32).reshape(own)
    rows = np.ascontiguousarray(array).reshape(-1, array.shape[-1])
    return rows, np.broadcast_to(which, lead).reshape(-1)


#: The kernels for NumPy arrays, by op. For admission, NumPy's own functions are about as fast.
KERNELS: dict[str, Callable[..., Any]] = {"attend_top_k": attend_top_k}
