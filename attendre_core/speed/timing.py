"""Time two functions in alternation, so that other load on the machine slows both.

With one thread, the clock is the processor time of this process, which excludes other processes.
With more threads it is wall time, because threads that wait for each other use processor time.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Ratio", "of_pairs", "ratio", "ready", "seconds", "thread_count", "threads"]

#: Seconds that a block of runs lasts, about; long compared with the resolution of the clock.
_BLOCK = 0.004
_THREADS = [1]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of threads for libraries that are not loaded yet, and choose the clock.

    ``torch_references.py`` reads the number from the environment and passes it to PyTorch.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in (*names, "XLA_FLAGS")}
    os.environ.update(dict.fromkeys(names, str(count)))
    if count == 1:
        flag = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{before['XLA_FLAGS'] or ''} {flag}".strip()
    previous, _THREADS[0] = _THREADS[0], count
    try:
        yield
    finally:
        _THREADS[0] = previous
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def thread_count() -> int:
    """Return how many threads a library may use."""
    return _THREADS[0]


def clock() -> float:
    """Return the processor time with one thread, the wall time with more."""
    return time.process_time() if _THREADS[0] == 1 else time.perf_counter()


@dataclass(frozen=True)
class Ratio:
    """The ratio of two times: the median of neighbouring runs, with quartiles."""

    median: float
    low: float
    high: float
    repeats: int


def ready(result: Any) -> Any:
    """Wait until a result is computed, if its library computes asynchronously."""
    for leaf in _leaves(result):
        wait = getattr(leaf, "block_until_ready", None)
        if wait is not None:
            wait()
    return result


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in _leaves(part)]
    if isinstance(tree, (tuple, list)):
        return [leaf for part in tree for leaf in _leaves(part)]
    return [tree]


def seconds(run: Callable[[], Any], times: int = 1) -> float:
    """Return the total time of ``times`` runs, with garbage collection switched off."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        for _ in range(times):
            ready(run())
        return clock() - start
    finally:
        if was_on:
            gc.enable()


def of_pairs(pairs: list[tuple[float, float]]) -> Ratio:
    """Return the median and the quartiles of the ratios of pairs.

    Examples
    --------
    >>> of_pairs([(2.0, 1.0), (3.0, 1.0), (4.0, 1.0)]).median
    3.0
    """
    ratios = sorted(one / other for one, other in pairs)
    if len(ratios) < 3:
        return Ratio(statistics.median(ratios), ratios[0], ratios[-1], len(ratios))
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(middle, low, high, len(ratios))


def ratio(
    one: Callable[[], Any], other: Callable[[], Any], *, repeats: int = 15, warm: int = 3
) -> Ratio:
    """Return the time of ``one`` over that of ``other``.

    After ``warm`` runs that are not timed, each repeat times a short block of both, in changing
    order. Blocks of both last about equally long.

    Examples
    --------
    >>> ratio(lambda: sum(range(2000)), lambda: sum(range(2000)), repeats=5).repeats
    5
    """
    runs = {"one": one, "other": other}
    for run in runs.values():
        seconds(run, warm)
    times = {name: max(1, round(_BLOCK / max(seconds(run), 1e-7))) for name, run in runs.items()}
    pairs = []
    for number in range(repeats):
        took = {}
        for name in ("one", "other") if number % 2 else ("other", "one"):
            took[name] = seconds(runs[name], times[name]) / times[name]
        pairs.append((took["one"], took["other"]))
    return of_pairs(pairs)
