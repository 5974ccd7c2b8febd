"""The benchmarks page of the documentation, made from a results file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attendre_core.speed.figures import markdown
from attendre_core.speed.headlines import lines_of, sentence
from attendre_core.speed.results import Results

__all__ = ["page"]

_HEAD = """\
# Benchmarks

What memories cost in time, on a CPU. {met} of {count} targets are met, {short} are missed, {left}
not measured. How long something takes, as a multiple of what it is compared with; below 1 is
faster:

{lines}

![How long each of them takes, as a bar; the list above has the same figures.]({picture})

Where a target is missed, [the remarks](#where-it-falls-short) say why and what was tried.

## How it is measured

```console
attendre bench --quick          # all rows, in three minutes on an idle machine
attendre bench --row 1 4        # single rows
nox -s bench                    # all rows, and position schemes against each other
```

Every figure is a ratio to a reference that is measured in alternation with it in the same process:
a short block of one, then of the other, in changing order. The figure is the median of the ratios
of neighbouring blocks and, in parentheses, the quartiles, which show how noisy the machine was.
{clock}

Unless stated otherwise: one row, 8 heads of width 64, chunks of 128, float32, the policy LRA-sum
(insert, evict, attend, score). The references are written directly in PyTorch and JAX, in
`attendre_core/speed/torch_references.py` and `attendre_core/speed/jax_references.py`; tests show
that the handwritten steps compute the same as ours.

This page is generated from `docs/benchmarks.json` by
`attendre bench --page docs/benchmarks.md --from docs/benchmarks.json`; a test checks that they
match.
"""
_ONE_THREAD = (
    "Libraries use one thread, and the processor time of the process is measured: the time that\n"
    "other processes take is not included, but they may still evict data from the caches."
)
_MORE_THREADS = "Libraries use {threads} threads, and wall time is measured."


def page(results: Results, picture: str = "benchmarks.svg") -> str:
    """Return the page in Markdown; ``picture`` is the file name of the picture from `chart`."""
    count = int(results.environment.get("threads", 1))
    clock = _ONE_THREAD if count == 1 else _MORE_THREADS.format(threads=count)
    met = sum(f.verdict == "pass" for f in results.figures)
    short = sum(f.verdict == "short" for f in results.figures)
    head = _HEAD.format(
        met=met, short=short, left=len(results.figures) - met - short, count=len(results.figures),
        lines="\n".join(f"- {sentence(line)}" for line in lines_of(results.figures)),
        picture=picture, clock=clock,
    )  # fmt: skip
    parts = [
        head,
        "## All rows\n",
        markdown(results.figures),
        _remarks(results),
        _counts(results.counts),
        _environment(results.environment),
    ]
    return "\n".join(part for part in parts if part)


def _remarks(results: Results) -> str:
    rows = sorted({f.row for f in results.figures if f.verdict == "short"})
    remarks = [
        f"### Row {row}\n\n{results.remarks[str(row)]}\n"
        for row in rows
        if str(row) in results.remarks
    ]
    if not remarks:
        return ""
    head = "## Where it falls short\n\nThe profile, the limit, and what was tried.\n"
    return "\n".join([head, *remarks])


def _counts(counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    lines = [
        "## Instructions of a small step",
        "",
        "The overhead of a step besides its arithmetic, on a memory of 16 entries, as counts: they",
        "are the same in every run, so a test can check them. `calls` are calls of Python and",
        "library functions (`sys.setprofile`), `instructions` those of the processor (callgrind),",
        "counted without the Numba kernels.",
        "",
        "| step | count |",
        "|---|---|",
        *(f"| {name} | {count:,} |" for name, count in counts.items()),
        "",
    ]
    return "\n".join(lines)


def _environment(facts: Mapping[str, Any]) -> str:
    if not facts:
        return ""
    lines = ["## Measured with", "", _machine(facts), ""]
    rows: dict[str, list[str]] = {}
    for row in sorted(facts.get("later", {}), key=int):
        rows.setdefault(_machine(facts["later"][row]), []).append(row)
    for machine, together in rows.items():
        label = "Row" if len(together) == 1 else "Rows"
        lines += [f"{label} {', '.join(together)}: {machine}", ""]
    return "\n".join(lines)


def _machine(facts: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {text}" for name, text in facts.get("versions", {}).items())
    return (
        f"{facts.get('processor')}, {facts.get('cores')} cores, {facts.get('system')}, Python "
        f"{facts.get('python')}; {versions}."
    )
