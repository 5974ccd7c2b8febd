"""The memory of `attendre embed` grows neither with the length of documents nor with their number.

Peaks are those of all resident memory, as Linux counts it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

MEASURED = """
import re, sys
from pathlib import Path
from attendre_core.cli import main

def resident(kind):
    return 1024 * int(re.search(kind + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

model, warm, path = sys.argv[1:]
command = ["embed", "--model", model, "--memory", "64", "--pooling", "mean"]
main([*command, "--out", f"{path}.warm.jsonl", warm])  # what libraries need only once
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
assert main([*command, "--out", f"{path}.jsonl", path]) == 0
print(resident("VmHWM") - before)
"""


@pytest.mark.thorough
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux, to measure peaks"
)
@pytest.mark.parametrize("kind", ["one long document", "many documents"])
def test_the_peak_is_flat(kind, tmp_path, byte_llama):
    line = "the memory forgot what nobody had asked for and kept the rest. "
    peaks = []
    for times in (1, 16):
        folder = tmp_path / str(times)
        folder.mkdir()
        if kind == "one long document":
            (folder / "a.txt").write_text(line * 64 * times)  # 4 and 64 thousand tokens
        else:
            for number in range(64 * times):
                (folder / f"{number}.txt").write_text(line)
        warm = tmp_path / f"warm-{times}.txt"
        warm.write_text(line * 64)
        found = subprocess.run(
            [sys.executable, "-c", MEASURED, str(byte_llama), str(warm), str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        peaks.append(int(found.stdout.splitlines()[-1]))
    # Hidden states of 60,000 tokens have 128 bytes each; a tokenizer takes 240 bytes for each.
    assert peaks[1] - peaks[0] < 4 * 2**20, f"{peaks[0]:,} and {peaks[1]:,} bytes"
