"""How much code of the package one step runs through: a guard against detours."""

from __future__ import annotations

from attendre_core.speed.counts import own_calls, waiting_step

CALLS, FILES = 350, 14


def test_a_step_makes_few_calls_in_few_files() -> None:
    """One step of a layer with N=8, M=16, LFA and RoPE, in NumPy, 2 heads of 8, chunks of 4."""
    counts = own_calls(waiting_step())
    table = "\n".join(f"{count:6}  {name}" for name, count in counts.most_common())
    total = f"{counts.total()} calls in {len(counts)} files"
    assert counts.total() <= CALLS, f"{total}, expected at most {CALLS} calls:\n{table}"
    assert len(counts) <= FILES, f"{total}, expected at most {FILES} files:\n{table}"
