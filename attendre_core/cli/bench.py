"""``attendre bench``: the cost of a step, as ratios to references measured in alternation."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from attendre_core.cli.arguments import add_command, print_json, whole_number
from attendre_core.errors import ConfigError
from attendre_core.files import write_text
from attendre_core.paths import user_path

if TYPE_CHECKING:
    from attendre_core.speed import Results

__all__ = ["add_to"]

_DESCRIPTION = """\
Measure what memories cost. Every figure is a ratio to a reference that is measured in
alternation with it in the same process, so other load on the machine distorts it little. A
figure is the median of the ratios of neighbouring blocks, with quartiles. With one thread,
processor time is measured.

rows:
   1  torch: a step with K=M ÷ bare SDPA
   2  torch: a step with K=128 ÷ dense attention
   3  JAX: both, jitted
   4  our step ÷ the same written by hand
   5  gathering the top K ÷ a threshold
   6  insert and evict: by S, not by M
   7  time and memory at 1,000,000 tokens
   8  SmolLM2-135M: prefill of 16k tokens
   9  SmolLM2-135M: tokens per second after it
  10  a layer of memorizing-transformers-pytorch
  11  reading 64k tokens both ways
  12  AttendreCache: prefill of 8k tokens
  13  embedding 4k and 16k tokens

Peers are measured if they are installed; otherwise the row says how to install them:
transformers (row 13), with accelerate and gguf (8, 9, 12), xllamacpp (8, 9), kvpress (9),
memorizing-transformers-pytorch with faiss-cpu (10).

The exit code is 0 whatever the verdicts."""

_EXAMPLES = """\
  attendre bench --quick
  attendre bench --backend torch --row 1 2
  attendre bench --save bench.json --page bench.md
  attendre bench --from bench.json --page bench.md
  attendre bench --from bench.json --row 12 --save bench.json --page bench.md"""


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "bench",
        "measure what a step costs, as ratios to references",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer repeats and shorter streams; takes about three minutes",
    )
    parser.add_argument(
        "--row", nargs="+", type=whole_number(1), default=[], metavar="N", help="only these rows"
    )
    parser.add_argument(
        "--backend", nargs="+", default=["torch", "jax"], metavar="NAME",
        help="libraries to measure (torch jax)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=whole_number(1), default=1, metavar="N",
        help="threads per library (1); with more than one, wall time is measured",
    )  # fmt: skip
    parser.add_argument(
        "--instructions", action="store_true",
        help="also count the instructions of a small step with valgrind; takes minutes",
    )  # fmt: skip
    parser.add_argument("--save", metavar="FILE", help="write the results as JSON")
    parser.add_argument(
        "--from", dest="source", metavar="FILE",
        help="read saved results instead of measuring; with --row, measure these and replace them",
    )  # fmt: skip
    parser.add_argument(
        "--page", metavar="FILE", help="write a Markdown page, and a picture next to it (.svg)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def run(arguments: argparse.Namespace) -> None:
    """Measure or load results, then write and print what was asked for."""
    from attendre_core.speed import Results, chart, markdown, page
    from attendre_core.speed.rows import LIBRARIES

    for name in arguments.backend:
        if name not in LIBRARIES:
            raise ConfigError(f"bench: backend is {name!r}, expected {' or '.join(LIBRARIES)}.")
    # Wrong names are reported before anything is measured.
    save = None if arguments.save is None else user_path(arguments.save)
    target = None if arguments.page is None else user_path(arguments.page)
    if arguments.source is not None:
        results = Results.load(user_path(arguments.source))
        if arguments.row:
            results = results.updated(_measured(arguments))
        elif not arguments.json and target is None:
            print(markdown(results.figures), end="")
    else:
        results = _measured(arguments)
    if save is not None:
        results.save(save)
    if target is not None:
        picture = target.with_suffix(".svg")
        write_text(target, page(results, picture.name))
        write_text(picture, chart(results.figures))
    if arguments.json:
        print_json(results.as_dict())


def _measured(arguments: argparse.Namespace) -> Results:
    """Measure, printing each line of the table as soon as it is known."""
    from attendre_core.progress import progress_bar
    from attendre_core.speed import Results, environment, markdown, measure_all
    from attendre_core.speed.counts import calls, small_step
    from attendre_core.speed.rows import parts_of
    from attendre_core.speed.timing import threads

    libraries, rows = tuple(arguments.backend), tuple(arguments.row)
    with threads(arguments.threads):
        total = len(parts_of(libraries, quick=arguments.quick, rows=rows))
    bar = progress_bar(total, "measuring", " parts", lines=True)
    begun = [0]

    def say(text: str) -> None:
        bar.update(1 if begun[0] else 0)
        begun[0] += 1
        if hasattr(bar, "set_description"):
            bar.set_description(text)

    figures: list[Any] = []
    if not arguments.json:
        print("".join(f"{line}\n" for line in markdown([]).splitlines()), end="", flush=True)
    for figure in measure_all(
        libraries, quick=arguments.quick, rows=rows, say=say, threads_each=arguments.threads
    ):
        figures.append(figure)
        if not arguments.json:
            print(markdown([figure]).splitlines()[2], flush=True)
    bar.close()
    counts: dict[str, int] = {}
    if not rows:
        counted = ("numpy", *(name for name in libraries if name == "torch"))
        counts = {f"{name}: calls": calls(small_step(name)) for name in counted}
    if arguments.instructions:
        counts.update(_instructions(libraries))
    if counts and not arguments.json:
        for name, count in counts.items():
            print(f"{name} of a small eager step: {count:,}")
    facts = environment(arguments.threads, arguments.quick)
    return Results(tuple(figures), facts, {}, counts)


def _instructions(libraries: tuple[str, ...]) -> dict[str, int]:
    from attendre_core.speed.counts import instructions

    counts = {}
    for name in ("numpy", *(name for name in libraries if name == "torch")):
        try:
            counts[f"{name}: instructions"] = instructions(name)
        except ConfigError as error:
            print(f"skipped: {error}", file=sys.stderr)
    return counts
