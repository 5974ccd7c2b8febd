"""Count the calls and the processor instructions of a small eager step.

A small step has little arithmetic, so the counts show the overhead of this project. Unlike times,
they are the same on a busy machine. Only calls made by this project's code are counted, of its own
functions and of library functions, so they do not depend on the version of a library.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from attendre_core.backend import backend, machine_code
from attendre_core.errors import ConfigError
from attendre_core.layer import AttendreLayer, Chunk
from attendre_core.memory import DataOnlyMemory, KeyValueMemory
from attendre_core.policies import LFA, LRA, InitialScore
from attendre_core.positions import RoPE

__all__ = ["LIMITS", "calls", "instructions", "own_calls", "small_step", "waiting_step"]

#: Largest number of calls allowed in a small step, by library. Lower a limit when the count falls.
LIMITS = {"numpy": 680, "torch": 760}
_PACKAGE = Path(__file__).parents[1]
_OURS = re.compile(r"[/\\](attendre_core|attendre_torch|attendre_jax)[/\\]")


def small_step(library: str) -> Callable[[], Any]:
    """Return a function that runs a step of 4 positions on a full memory of 16 entries."""
    memory = KeyValueMemory(16, LRA("sum", initial=InitialScore(0.0)))
    return _stepping(library, AttendreLayer(memory))


def _stepping(library: str, layer: AttendreLayer) -> Callable[[], Any]:
    """Fill the memory of a layer; return a function that runs one more step."""
    xp = backend(library)
    rng = np.random.default_rng(0)
    chunks = [
        Chunk(*(xp.from_numpy(rng.standard_normal((1, 4, 2, 8), "float32")) for _ in range(3)))
        for _ in range(8)
    ]
    states = [layer.init(batch=1, heads=2, head_dim=8, xp=xp)]
    coming = cycle(chunks)

    def step() -> Any:
        states[0], out = layer.step(states[0], next(coming), donate=True)
        return out.value

    for _ in chunks:
        step()
    return step


def waiting_step() -> Callable[[], Any]:
    """Return a function that runs a NumPy step of a layer with N=8, M=16 (full), LFA and RoPE."""
    memory = KeyValueMemory(16, LFA())
    return _stepping("numpy", AttendreLayer(memory, DataOnlyMemory(8), encoding=RoPE()))


def calls(run: Callable[[], Any]) -> int:
    """Count the calls that this project's code makes in one run.

    Examples
    --------
    >>> calls(small_step("numpy")) > 0
    True
    """
    count = 0

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event == "c_call":
            count += bool(_OURS.search(frame.f_code.co_filename))
        elif event == "call":
            caller = frame.f_back
            count += caller is not None and bool(_OURS.search(caller.f_code.co_filename))

    _watched(run, watch)
    return count


def own_calls(run: Callable[[], Any]) -> Counter[str]:
    """Count the calls of functions of attendre_core in one run, by file.

    Examples
    --------
    >>> own_calls(waiting_step())["layer/attendre.py"] > 0
    True
    """
    counts: Counter[str] = Counter()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and _PACKAGE in path.parents:
            counts[path.relative_to(_PACKAGE).as_posix()] += 1

    _watched(run, watch)
    # The function that runs the step is not part of it.
    del counts[Path(__file__).relative_to(_PACKAGE).as_posix()]
    return counts


def _watched(run: Callable[[], Any], watch: Callable[[FrameType, str, Any], None]) -> None:
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(before)


def instructions(library: str, steps: int = 10) -> int:
    """Count the processor instructions of one small step with callgrind.

    Two processes run different numbers of steps, and the difference of their counts is divided by
    the difference of their steps, so starting Python and loading the library are not included. The
    Numba kernels are switched off, as without the extra ``compiled``.

    Raises
    ------
    ConfigError
        If valgrind is not installed, or failed.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise ConfigError(
            "instructions: the program valgrind is not installed. Install it, for example with "
            "apt-get install valgrind."
        )
    few, many = (_collected(valgrind, library, count) for count in (1, 1 + steps))
    return (many - few) // steps


def _collected(valgrind: str, library: str, steps: int) -> int:
    """Return the instructions of a process that runs this many steps."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        done = subprocess.run(
            [
                *(valgrind, "--tool=callgrind", f"--callgrind-out-file={out}"),
                *(sys.executable, "-m", "attendre_core.speed.counts", library, str(steps)),
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    collected = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
    if done.returncode or collected is None:
        raise ConfigError(
            f"instructions: valgrind ended with code {done.returncode}: {done.stderr[-300:]}"
        )
    return int(collected.group(1))


if __name__ == "__main__":
    # Numba would compile its kernels again for the processor that valgrind emulates: for minutes.
    with machine_code(False):
        run_step = small_step(sys.argv[1])
        for _ in range(int(sys.argv[2])):
            run_step()
