"""Embed a dataset with two actors of Ray, and kill one of them with SIGKILL at its work.

``python ray_program.py MODEL TAGGER OUT`` writes OUT/vectors and OUT/spans. The last line of the
output says how many files of vectors were written when the actor was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}

import ray
import ray.data

from attendre_core.integrations.ray_data import embed_dataset, tag_dataset

DOCUMENTS = 40


def documents() -> list[dict[str, object]]:
    words = "ada memory forgot what nobody had asked for and kept the rest".split()  # noqa: SIM905
    return [
        {"id": number, "text": " ".join(words[(number * i) % 11] for i in range(1, 20 + number))}
        for number in range(DOCUMENTS)
    ]


def workers() -> list[int]:
    import psutil  # comes with ray

    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if "_Embedder" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def kill_one(out: Path, written: list[int], over: threading.Event) -> None:
    """Wait until something is written, and kill an actor."""
    while not over.wait(0.05):
        if (found := workers()) and list(out.glob("*.parquet")):
            os.kill(found[0], signal.SIGKILL)
            written.append(len(list(out.glob("*.parquet"))))
            return


def main(model: str, tagger: str, out: Path) -> None:
    # Two actors, and a processor for reading and writing.
    ray.init(
        num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=2**27,
        logging_level="ERROR",
    )  # fmt: skip
    dataset = ray.data.from_items(documents(), override_num_blocks=DOCUMENTS // 2)
    vectors = embed_dataset(
        dataset, model, memory=64, pooling="mean", normalize=True, batch_size=2, actors=2
    )
    written: list[int] = []
    over = threading.Event()
    killer = threading.Thread(target=kill_one, args=(out / "vectors", written, over))
    killer.start()
    try:
        vectors.write_parquet(str(out / "vectors"))
    finally:
        over.set()
        killer.join()
    tag_dataset(dataset, tagger, memory=64).write_parquet(str(out / "spans"))
    ray.shutdown()
    print(json.dumps({"written": written}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
