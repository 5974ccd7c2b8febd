"""Count what a small eager step costs beside its arithmetic: calls, and processor instructions.

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
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from attendre_core.backend import backend
from attendre_core.errors import ConfigError
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import Chunk
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.policies import LRA, InitialScore

__all__ = ["LIMITS", "calls", "instructions", "small_step"]

#: Calls of a small step that are not to be exceeded, by library. Lower them when they fall.
LIMITS = {"numpy": 890, "torch": 790}
_OURS = re.compile(r"[/\\](attendre_core|attendre_torch|attendre_jax)[/\\]")


def small_step(library: str) -> Callable[[], Any]:
    """Return one step of a layer with 16 slots, full, that reads 4 positions."""
    found = backend(library)
    layer = AttendreLayer(KeyValueMemory(16, LRA("sum", initial=InitialScore(0.0))))
    rng = np.random.default_rng(0)
    chunks = [
        Chunk(*(found.from_numpy(rng.standard_normal((1, 4, 2, 8), "float32")) for _ in range(3)))
        for _ in range(8)
    ]
    states = [layer.init(1, 2, 2, 8, xp=found)]
    turns = cycle(chunks)

    def step() -> Any:
        states[0], out = layer.step(states[0], next(turns), donate=True)
        return out.value

    for _ in chunks:
        step()
    return step


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

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(before)
    return found


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
                *(sys.executable, "-m", "attendre_core.benchmark.counts", library, str(steps)),
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
    # Machine code would be compiled anew for the processor that valgrind imitates: for minutes.
    sys.modules["numba"] = None  # type: ignore[assignment]
    run_step = small_step(sys.argv[1])
    for _ in range(int(sys.argv[2])):
        run_step()
