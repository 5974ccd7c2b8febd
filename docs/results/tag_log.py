"""Stream a long log through ``attendre tag`` and record the memory that it takes.

``python tag_log.py FOLDER [SECONDS]`` takes what ``docs/examples/far_entities.py --out FOLDER``
trained. The log has ten lines of eight words a second, an hour of it if nothing is said, and goes
into the pipe as it is made. Twelve times, the resident memory of the process is noted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from write_encoders import HERE, example

SECONDS, LINES, WORDS, NOTED = 3600, 10, 8, 12


def log(seconds: int, seed: int = 0) -> Iterator[str]:
    """Yield the lines of each second."""
    task: Any = example()
    rng = np.random.default_rng(seed)
    words: list[str] = []
    for _ in range(seconds):
        while len(words) < LINES * WORDS:
            sample = task.document(rng, task.LONG, task.NEAR, task.FAR)
            words += [task.VOCABULARY[i] for i in sample.ids]
        some, words = words[: LINES * WORDS], words[LINES * WORDS :]
        lines = [" ".join(some[i : i + WORDS]) for i in range(0, len(some), WORDS)]
        yield "\n".join(lines) + "\n"


def resident(process: int) -> float:
    """Return the resident memory of a process in MiB (on Linux)."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def run(folder: str, seconds: int = SECONDS) -> dict[str, Any]:
    """Stream the log; check every span against its text; return what was measured."""
    command = [sys.executable, "-m", "attendre_core.cli", "tag", "--model", folder,
               "--memory", "attendre+wait=128+chunk=128:256", "--json", "-"]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process has no pipes")
    spans: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: spans.extend(map(json.loads, process.stdout or ())))
    reader.start()
    rows, text = [], []
    for second, lines in enumerate(log(seconds), start=1):
        process.stdin.write(lines)
        process.stdin.flush()
        text.append(lines)
        if second % (seconds // NOTED) == 0:
            rows.append([second, len(spans), round(resident(process.pid), 1)])
    process.stdin.close()
    reader.join()
    whole = "".join(text)
    wrong = sum(whole[one["start"] : one["end"]] != one["text"] for one in spans if "text" in one)
    return {"command": " ".join(["attendre", *command[3:]]).replace(folder, "tagger"),
            "characters": len(whole), "words": len(whole.split()), "spans": len(spans),
            "wrong_places": wrong, "exit": process.wait(), "rows": rows}  # fmt: skip


if __name__ == "__main__":
    record = json.dumps(run(sys.argv[1], *map(int, sys.argv[2:])))
    (HERE / "encoders" / "log.json").write_text(record + "\n", encoding="utf-8")
    print(record)
