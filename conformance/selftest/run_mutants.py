"""Break the core in every seeded way and print which law noticed: ``mutant | killed by law``."""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from layer_mutants import EVERY_MUTANT as MUTANTS
from mutants import Mutant
from running_mutants import copy_packages, kill, run_laws


def main(words: list[str]) -> int:
    """Run all mutants, or those whose name or file contains one of the words."""
    chosen = [m for m in MUTANTS if not words or any(w in m.name or w in m.file for w in words)]
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "clean"
        copy_packages(clean)
        laws = sorted({mutant.law for mutant in chosen})
        healthy = run_laws(laws, core=clean, suite=clean)
        if not healthy.passed:
            print("The laws do not hold for the core as it is:\n" + healthy.output[-4000:])
            return 2

        def run(numbered: tuple[int, Mutant]) -> bool:
            number, mutant = numbered
            outcome = kill(mutant, clean, Path(folder) / f"mutant-{number}")
            word = mutant.law if outcome.failed else "SURVIVED " + mutant.law
            print(f"{mutant.name:70} | {word}", flush=True)
            if not outcome.failed and not outcome.passed:
                print(outcome.output[-2000:])
            return outcome.failed

        print(f"{'mutant':70} | killed by law")
        with ThreadPoolExecutor(max_workers=2) as pool:
            killed = list(pool.map(run, enumerate(chosen)))
    print(f"{sum(killed)} of {len(killed)} mutants killed")
    return 0 if all(killed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
