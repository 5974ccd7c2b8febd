"""Run checks in several processes on this machine, connected by gloo.

``run_checks`` starts the processes and returns what each check said in each of them; run as a
script, this file is one of the processes. They meet through a file, so no port is needed.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from datetime import timedelta
from pathlib import Path

#: A process that waits this long for another one gives up: the other has failed.
PATIENCE = timedelta(minutes=5)


def run_checks(folder: Path, world: int, names: list[str]) -> dict[str, list[str]]:
    """Return for each check, ``"module:function"``, what each process said: "ok" or why not."""
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    environment = {**os.environ, **quiet, "WORLD_SIZE": str(world)}
    command = [sys.executable, "-W", "ignore", str(Path(__file__)), str(folder), str(world)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), *names],
            env={
                **environment,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    printed = [process.communicate()[0] for process in processes]
    said = []
    for rank, text in enumerate(printed):
        file = folder / f"{rank}.json"
        own = json.loads(file.read_text()) if file.exists() else {}
        said.append({name: own.get(name, f"not reached:\n{text[-2000:]}") for name in names})
    return {name: [one[name] for one in said] for name in names}


def _work(folder: Path, world: int, rank: int, names: list[str]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world,
        timeout=PATIENCE,
    )  # fmt: skip
    said: dict[str, str] = {}
    for name in names:
        module, _, function = name.partition(":")
        try:
            getattr(importlib.import_module(module), function)(folder)
            said[name] = "ok"
        except BaseException:  # what pytest raises is no Exception
            said[name] = traceback.format_exc()
        (folder / f"{rank}.json").write_text(json.dumps(said))
        if said[name] != "ok":
            # The others may wait for this process in the middle of the check: leave them.
            os._exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    _work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
