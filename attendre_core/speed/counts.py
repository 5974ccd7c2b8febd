"""Count what a small eager step costs besides its arithmetic: calls, and processor instructions.

Counts, unlike times, are the same on a busy machine. Calls are those that the code of this
project makes, of its own functions and of the libraries'; what happens inside a library does not
count, so neither does its version.
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

#: Calls of a small step that are not to be exceeded, by library. Lower them when they fall.
LIMITS = {"numpy": 680, "torch": 760}
_PACKAGE = Path(__file__).parents[1]
_OURS = re.compile(r"[/\\](attendre_core|attendre_torch|attendre_jax)[/\\]")


def small_step(library: str) -> Callable[[], Any]:
    """Return one step of a layer with 16 slots, full, that reads 4 positions."""
    memory = KeyValueMemory(16, LRA("sum", initial=InitialScore(0.0)))
    return _stepping(library, AttendreLayer(memory))


def _stepping(library: str, layer: AttendreLayer) -> Callable[[], Any]:
    """Fill the memory of a layer; return a function that runs one more step."""
    found = backend(library)
    rng = np.random.default_rng(0)
    chunks = [
        Chunk(*(found.from_numpy(rng.standard_normal((1, 4, 2, 8), "float32")) for _ in range(3)))
        for _ in range(8)
    ]
    states = [layer.init(batch=1, heads=2, head_dim=8, xp=found)]
    coming = cycle(chunks)

    def step() -> Any:
        states[0], out = layer.step(states[0], next(coming), donate=True)
        return out.value

    for _ in chunks:
        step()
    return step


def waiting_step() -> Callable[[], Any]:
    """Return one step in NumPy of a layer as in the paper: N=8, M=16, full, LFA, RoPE."""
    memory = KeyValueMemory(16, LFA())
    return _stepping("numpy", AttendreLayer(memory, DataOnlyMemory(8), encoding=RoPE()))


def calls(run: Callable[[], Any]) -> int:
    """Count the calls that the project's own code makes in one run.

    Examples
    --------
    >>> calls(small_step("numpy")) > 0
    True
    """
    found = 0

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal found
        if event == "c_call":
            found += bool(_OURS.search(frame.f_code.co_filename))
        elif event == "call":
            caller = frame.f_back
            found += caller is not None and bool(_OURS.search(caller.f_code.co_filename))

    _watched(run, watch)
    return found


def own_calls(run: Callable[[], Any]) -> Counter[str]:
    """Count the calls of functions of attendre_core in one run, by file.

    Examples
    --------
    >>> own_calls(waiting_step())["layer/attendre.py"] > 0
    True
    """
    found: Counter[str] = Counter()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and _PACKAGE in path.parents:
            found[path.relative_to(_PACKAGE).as_posix()] += 1

    _watched(run, watch)
    # The function that runs the step is no part of it.
    del found[Path(__file__).relative_to(_PACKAGE).as_posix()]
    return found


def _watched(run: Callable[[], Any], watch: Callable[[FrameType, str, Any], None]) -> None:
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(before)


def instructions(library: str, steps: int = 10) -> int:
    """Count the processor's instructions of one small step with callgrind.

    Two processes run, one with more steps than the other, and the difference is divided by the
    number of steps: starting Python and loading the library do not count. The step makes calls of
    the library alone, as without the extra ``compiled``.

    Raises
    ------
    ConfigError
        valgrind is not installed, or failed.
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
    """Return what callgrind collected in a process that runs so many steps."""
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
    found = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
    if done.returncode or found is None:
        raise ConfigError(
            f"instructions: valgrind ended with code {done.returncode}: {done.stderr[-300:]}"
        )
    return int(found.group(1))


if __name__ == "__main__":
    # Machine code would be compiled again for the processor that valgrind imitates: for minutes.
    with machine_code(False):
        run_step = small_step(sys.argv[1])
        for _ in range(int(sys.argv[2])):
            run_step()
