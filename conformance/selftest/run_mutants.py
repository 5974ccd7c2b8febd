"""Break the code in every seeded way and print which law noticed: ``mutant | killed by law``."""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from every_mutant import EVERY_MUTANT, can_run
from mutant import Mutant
from running_mutants import broken_text, check_laws, copy_packages, kill


def main(words: list[str]) -> int:
    """Run all mutants, or those whose name, file or run contains one of the words."""

    def is_chosen(mutant: Mutant) -> bool:
        return not words or any(
            word in text for word in words for text in (mutant.name, mutant.file, mutant.run)
        )

    chosen = [mutant for mutant in EVERY_MUTANT if is_chosen(mutant)]
    left_out = [mutant for mutant in chosen if not can_run(mutant)]
    chosen = [mutant for mutant in chosen if can_run(mutant)]
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "clean"
        copy_packages(clean)
        stale = [problem for mutant in chosen if (problem := is_stale(mutant))]
        if stale:
            print("\n".join(stale))
            return 2
        healthy = check_laws(chosen, clean)
        if not healthy.passed:
            print("The laws do not hold for the code as it is:\n" + healthy.output[-4000:])
            return 2

        def run(numbered: tuple[int, Mutant]) -> bool:
            number, mutant = numbered
            outcome = kill(mutant, clean, Path(folder) / f"mutant-{number}")
            word = mutant.law if outcome.failed else "SURVIVED " + mutant.law
            print(f"{mutant.name:70} | {word} ({mutant.run})", flush=True)
            if not outcome.failed and not outcome.passed:
                print(outcome.output[-2000:])
            return outcome.failed

        print(f"{'mutant':70} | killed by law")
        with ThreadPoolExecutor(max_workers=2) as pool:
            killed = list(pool.map(run, enumerate(chosen)))
    print(f"{sum(killed)} of {len(killed)} mutants killed")
    for mutant in left_out:
        print(f"left out, {mutant.run} is not installed: {mutant.name}")
    return 0 if all(killed) else 1


def is_stale(mutant: Mutant) -> str | None:
    """Return what to do if the text of a mutant is not in the code; None if it is."""
    try:
        broken_text(mutant)
    except LookupError as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
