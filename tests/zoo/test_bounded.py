"""Peak memory does not grow with the input: 64k tokens take what 8k tokens take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Reads tokens that are made on the way, and prints the largest resident size of the process.
PROGRAM = """
import resource, sys
import numpy as np
import attendre_core as at
model = at.load(sys.argv[1], memory=at.preset("LRA-sum", kv_size=256, chunk=128, sigmas=0.0))
stream, rng = model.stream(), np.random.default_rng(0)
for _ in range(int(sys.argv[2]) // 1024):
    stream.feed(rng.integers(3, 256, size=1024))
stream.generate(4)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(model: Path, length: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), str(length)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("which", ["tiny", pytest.param("stories260K", marks=pytest.mark.thorough)])
def test_peak_memory_is_that_of_a_short_input(which, tiny_folder, request):
    model = tiny_folder
    if which != "tiny":
        model = request.getfixturevalue("data_folder") / "models/stories260K/stories260K.bin"
    short, long = peak(model, 8 * 1024), peak(model, 64 * 1024)
    assert long <= 1.02 * short, f"{long} KiB for 64k tokens, {short} KiB for 8k"
