"""A few of the kills of `nox -s chaos`, and that it would notice a torn file.

Each runs in a process of its own: a process that has used JAX must not fork.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

for name in ("tokenizers", "safetensors", "jinja2"):
    pytest.importorskip(name)
if not hasattr(os, "fork"):
    pytest.skip("needs processes that fork", allow_module_level=True)

HERE = Path(__file__).parent
#: Write into the file that is there, as careless code would, and kill that.
TORN = """
import os
import sys

import chaos


def in_place(self, folder):
    number = os.open(folder / "stream", os.O_WRONLY | os.O_TRUNC)
    os.write(number, b"new" * 100)
    os.close(number)


chaos.Jobs._save = in_place
_, wrong = chaos.chaos(2, only=("save",))
print(*wrong, sep="\\n")
"""


def output_of(*arguments: str) -> str:
    """Run Python beside the program and return what it prints."""
    run = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=HERE, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_nothing_is_lost_or_left_by_a_kill() -> None:
    told = output_of("chaos.py", "--count", "4")
    for kind in ("save", "sweep", "embed", "tag"):
        assert f"{kind:<6}    1 kills" in told
    assert "4 kills, 0 failures" in told


def test_a_torn_file_is_noticed() -> None:
    wrong = output_of("-c", TORN).splitlines()
    assert wrong
    assert all("stream is neither the old nor the new file" in told for told in wrong)
