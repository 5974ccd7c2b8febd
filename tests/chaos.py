"""Kills processes with SIGKILL while they write, and checks that nothing is lost or left.

Four jobs write files: saving (a stream, a chat and two stores, over older ones), a sweep, embedding
and tagging. A job runs in a child process, which is killed at one point: before a call that
reaches the disk, in its middle, when only a part of what is new is there, or behind it. After that
a saved file must be the old or the new one, and the same job, run again, must leave the bytes of a
run that nobody disturbed, and no other file. Run by `nox -s chaos`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import attendre_core as at
from attendre_core.cli import main as command

#: Calls that reach the disk, by the module in which they are looked up.
CALLS = ("open", "write", "fsync", "replace", "ftruncate", "unlink")
WORDS = "the memory forgot what nobody had asked for and kept the rest".split()  # noqa: SIM905


def die() -> None:
    """End without a chance to clean up."""
    os.kill(os.getpid(), signal.SIGKILL)


class Points:
    """Counts the points of a job, and kills the process at one of them.

    Parameters
    ----------
    last
        The point to die at; None counts.
    """

    def __init__(self, last: int | None) -> None:
        self.count, self.last = 0, last
        self._synced: dict[int, int] = {}

    def watch(self) -> None:
        """Put a wrapper around every call that reaches the disk."""
        for name in CALLS:
            setattr(os, name, self._around(getattr(os, name), getattr(self, f"_half_{name}", None)))

    def _passed(self) -> bool:
        self.count += 1
        return self.count == self.last

    def _around(self, call: Callable[..., Any], half: Callable[..., Any] | None) -> Any:
        def watched(*args: Any, **named: Any) -> Any:
            if self._passed():
                die()
            if half is not None and self._passed():
                half(call, *args, **named)
                die()
            result = call(*args, **named)
            if call.__name__ == "fsync":
                found = os.fstat(args[0])
                self._synced[found.st_ino] = found.st_size
            if self._passed():
                die()
            return result

        return watched

    def _half_write(self, write: Any, number: int, content: bytes) -> None:
        write(number, content[: len(content) // 2])

    def _half_fsync(self, fsync: Any, number: int) -> None:
        """Of what came since the last time, only a part reaches the disk."""
        found = os.fstat(number)
        before = self._synced.get(found.st_ino, 0)
        if stat.S_ISREG(found.st_mode) and found.st_size > before:
            os.truncate(number, before + (found.st_size - before) // 2)


def forked(job: Callable[[], Any], points: Points | None = None) -> tuple[int, int]:
    """Run a job in a child process; return its status, and how many points it had."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        tell, status = os.write, 1
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            if points is not None:
                os.dup2(null, 2)
                points.watch()
            job()
            tell(write, str(points.count if points is not None else 0).encode())
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as told:
        count = told.read()
    return os.waitpid(process, 0)[1], int(count or 0)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a folder."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


# ---------------------------------------------------------------- jobs


class Jobs:
    """What is run and killed; each job writes into a folder that it is given."""

    def __init__(self, root: Path) -> None:
        fuzz, tagger = (
            _program(Path(__file__).with_name("fuzz.py")),
            _program(Path(__file__).parents[1] / "docs" / "examples" / "word_tagger.py"),
        )
        self.root = root
        self.llama = fuzz.write_folder(root / "llama", fuzz.CONFIG)
        self.tagger = tagger.write_tagger(root / "tagger")
        self.model = at.load(self.llama, memory=16)
        rng = np.random.default_rng(0)
        (root / "texts").mkdir()
        for number in range(8):
            words = " ".join(rng.choice(WORDS, size=5 + number)) + " Ada Lovelace met Zürich.\n"
            (root / "texts" / f"{number}.txt").write_text(words, encoding="utf-8")
        self.each: dict[str, Callable[[Path], None]] = {
            "save": self._save, "sweep": self._sweep, "embed": self._embed, "tag": self._tag,
        }  # fmt: skip
        self._states = {age: self._state(age) for age in (1, 2)}

    def _state(self, age: int) -> tuple[Any, Any, Any, Any]:
        stream = self.model.stream(2)
        stream.feed([[1, 2, 3] * 4 * age, [4, 5]])
        chat = self.model.chat()
        chat.send("Who?" * age, 1)
        entries = np.full((6, 1, 4), age, np.float32)
        store = at.Store.build(search=np.eye(6), key=entries, value=entries)
        host = at.HostStore(capacity=4)
        memory = at.Tiers(at.KeyValueMemory(2), at.HostTier(host, top_k=2))
        memory.insert(memory.init(like=entries[None]), entries[None], entries[None])
        return stream, chat, store, host

    def prepare(self, name: str, folder: Path) -> None:
        """Make what is there before a job begins."""
        folder.mkdir()
        if name == "save":
            self._write(folder, 1)

    def _write(self, folder: Path, age: int) -> None:
        for kind, state in zip(("stream", "chat", "store", "host"), self._states[age], strict=True):
            state.save(folder / kind)

    def _save(self, folder: Path) -> None:
        self._write(folder, 2)

    def _run(self, *words: Any) -> None:
        os.chdir(self.root)
        status = command([str(word) for word in words])
        if status:
            raise RuntimeError(f"{words[0]} ended with {status}")

    def _sweep(self, folder: Path) -> None:
        grid = ("--policies", "MT", "--no-controls", "--size", 16, "--limit", 4, "--batch", 1)
        self._run("eval", "synthetic", "--model", "prefix-lm", *grid, "--out", folder)

    def _embed(self, folder: Path) -> None:
        out = folder / "vectors.jsonl"
        if out.exists() and not out.with_name("vectors.jsonl.journal").exists():
            return  # it is complete, and the command says so
        self._run("embed", "--model", self.llama, "--memory", 16, "texts", "--out", out)

    def _tag(self, folder: Path) -> None:
        self._run("tag", "--model", self.tagger, "texts", "--json", "--out", folder / "spans.jsonl")


def _program(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- running


def chaos(
    count: int, log: Callable[[str], Any] | None = None, only: tuple[str, ...] = ()
) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Kill at ``count`` points; return trials and points of each job, and what went wrong."""
    found: dict[str, tuple[int, int]] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        jobs = Jobs(root)
        chosen = {name: job for name, job in jobs.each.items() if name in (only or jobs.each)}
        for number, (kind, job) in enumerate(chosen.items()):
            trials = count // len(chosen) + (number < count % len(chosen))
            whole = root / f"{kind}-whole"
            jobs.prepare(kind, whole)
            before = contents(whole)
            # Once before, so that no module is imported, and compiled, by a run that is counted.
            jobs.prepare(kind, root / f"{kind}-first")
            forked(lambda job=job, kind=kind: job(root / f"{kind}-first"))  # type: ignore[misc]
            status, points = forked(lambda job=job, whole=whole: job(whole), Points(None))  # type: ignore[misc]
            if status or not points:
                wrong.append(f"{kind}: undisturbed, it ended with status {status}")
                continue
            expected = contents(whole)
            found[kind] = (trials, points)
            for trial in range(trials):
                # Spread over all points; in a second round, those between.
                point = 1 + (trial * points + points // 2) // trials % points
                told = _killed(jobs, kind, root / "killed", point, before, expected)
                if told:
                    wrong.append(f"{kind}, killed at point {point} of {points}: {told}")
                if log is not None:
                    log(f"{kind}: {trial + 1} of {trials}, {len(wrong)} failures")
    return found, wrong


def _killed(
    jobs: Jobs,
    kind: str,
    folder: Path,
    point: int,
    before: dict[str, bytes],
    expected: dict[str, bytes],
) -> str:
    """Kill a job at a point and run it again; return what is wrong then."""
    job = jobs.each[kind]
    try:
        jobs.prepare(kind, folder)
        status, _ = forked(lambda: job(folder), Points(point))
        if not os.WIFSIGNALED(status):
            return f"it was not killed, but ended with status {status}"
        after = contents(folder)
        if kind == "save":
            torn = [n for n in before if after.get(n) not in (before[n], expected[n])]
            if torn:
                return f"{', '.join(torn)} is neither the old nor the new file"
        status, _ = forked(lambda: job(folder))
        if status:
            return f"run again, it ended with status {status}"
        again = contents(folder)
        odd = [n for n in {**expected, **again} if again.get(n) != expected.get(n)]
        return f"run again, {', '.join(sorted(odd))} differ" if odd else ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run from the command line; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many kills (200)")
    count, began = parser.parse_args().count, time.time()
    found, wrong = chaos(count, lambda told: print(told, flush=True))
    for kind, (trials, points) in found.items():
        print(f"{kind:<6} {trials:>4} kills at {min(trials, points):>4} of {points:>5} points")
    for told in wrong[:50]:
        print(told)
    print(f"{sum(t for t, _ in found.values())} kills, {len(wrong)} failures, "
          f"{time.time() - began:.0f} s")  # fmt: skip
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
