"""``attendre demo``: tiny models read long inputs, to show which memories keep the answer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core.cli.arguments import (
    Parser,
    add_command,
    add_list,
    add_shared,
    one_of,
    print_json,
    whole_number,
)
from attendre_core.cli.demo_bars import CHUNK
from attendre_core.cli.demo_story import RULES, Story, read_story
from attendre_core.cli.demo_tables import TOP_K, TaskResult, as_json, draw, print_result
from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError
from attendre_core.paths import user_path
from attendre_core.progress import progress_bar

if TYPE_CHECKING:
    from attendre_core.evaluation.sweep import Cell
    from attendre_core.evaluation.tasks import SyntheticTask

__all__ = ["add_to"]

_DESCRIPTION = """\
What does a model still know if its memory is smaller than the text? Tiny models that ship
with this package read, and are asked about what they have read. This takes about a minute,
needs only NumPy and downloads nothing.

First an English text of 256 words, read with four memories that hold 32 of them: the words
that are left, and the answer. Then 40 documents of tokens, 8 to 32 times as long as the chunk
of 16 tokens in which they are read; the question comes first, the answer is somewhere in a
context of noise. What came out is said in sentences, printed as bars, and drawn. --tables
prints a row per system and a column per memory size M and wait N of the queries.

MT and AS keep what is recent. LRA and LFA rank entries by attention, as the paper does. In
LFA-1e-3 new entries start at the paper's score (its c is 1), in LFA-1e-3+c=0 at the mean.
attendre is what we recommend. Names mean the same in every command."""

_EXAMPLES = """\
  attendre demo
  attendre demo --tables
  attendre demo --model encoder-decoder
  attendre demo --task past-only --answers single      a task that needs no look ahead
  attendre demo --policies MT,LFA-0,LFA-0+c=0,LFA-0+softmax+c=-1 --documents 24
  attendre demo --backend torch --seed 7 --picture demo.svg
  attendre demo --json | python -m json.tool
  attendre demo --full --out results/                  everything; can be interrupted"""

#: Compared by default: systems of the paper, two of them also at c = 0, and the recommended one.
POLICIES = (
    "MT", "AS", "LRA-last", "LRA-max", "LRA-sum", "LFA-0", "LFA-1e-3",
    "LRA-max+c=0", "LFA-1e-3+c=0", "attendre",
)  # fmt: skip
#: Pairs of M and N.
SIZES = ((16, 0), (32, 0), (64, 0), (32, 16), (64, 32))
#: Sizes at which only MT and AS are measured, to compare a better policy with a larger memory.
LARGE = ((256, 0),)
_FULL_SIZES = ((16, 0), (32, 0), (64, 0), (128, 0), (32, 16), (64, 32), (128, 64))
#: Policies whose new entries start at mu - c sigma, and the values of c that --full adds.
_SCORED = ("LRA-last", "LRA-max", "LRA-sum", "LFA-0", "LFA-1e-3", "LRU", "LFU")
_FULL_C = (-1, 0)


class Plan(NamedTuple):
    """The cells to measure, and the models and tasks on which each of them is measured."""

    models: Sequence[str]
    tasks: Sequence[SyntheticTask]
    cells: list[Cell]


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "demo",
        "read long inputs with tiny models and compare which memories keep the answer",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    _add_reading(parser)
    add_list(
        parser, "--policies", metavar="NAME",
        help="names as in 'attendre info' with options such as +c=0, or the controls full, "
        "no-memory, closed-book, first-M, random, pinned, separated by commas; without :size and "
        f"+wait=, which are the columns ({', '.join(POLICIES)}, all controls)",
    )  # fmt: skip
    parser.add_argument(
        "--tables",
        action="store_true",
        help="print the tables, too: every system at every size, with intervals, and how much of "
        "what is new gets into each memory",
    )
    parser.add_argument(
        "--picture", default="attendre-demo.svg", metavar="FILE",
        help="where to write the picture; with several tables, one file each, named after the "
        "table (attendre-demo.svg)",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="FOLDER",
        help="keep the results, one file per model and task; results that are already there are "
        "not measured again",
    )  # fmt: skip
    add_shared(parser, backend_help="array library to compute with (numpy)")


def _add_reading(parser: Parser) -> None:
    parser.add_argument(
        "--full", action="store_true",
        help="both models, all tasks, all presets, more sizes and values of c; takes hours",
    )  # fmt: skip
    add_list(
        parser, "--model", one_of("prefix-lm", "encoder-decoder"), metavar="NAME",
        help="prefix-lm, encoder-decoder (prefix-lm)",
    )  # fmt: skip
    add_list(
        parser, "--task", one_of("look-ahead", "past-only"), metavar="NAME",
        help="look-ahead: values come before their keys; past-only: right after them (look-ahead)",
    )  # fmt: skip
    add_list(
        parser, "--answers", one_of("repeat", "single"), metavar="NAME",
        help="repeat: the answer recurs; single: it occurs once (repeat)",
    )  # fmt: skip
    parser.add_argument(
        "--documents", type=whole_number(1), metavar="COUNT",
        help="documents per cell (40; with --full 96)",
    )  # fmt: skip
    parser.add_argument("--seed", type=whole_number(0), default=0, help="seed of the documents (0)")


def run(arguments: argparse.Namespace) -> None:
    """Measure, then print and draw."""
    plan = plan_of(arguments)
    stories = read_stories(plan, arguments.backend)
    if arguments.json:
        results = measure(plan, arguments.backend, arguments.out)
        print_json(as_json(results, stories, arguments.backend, draw(results, arguments.picture)))
        return
    terminal = Terminal()
    wide = max(60, min(terminal.columns, 80))
    # First, because it is there at once; the rest takes longer.
    for story in stories:
        print("\n".join(story.lines(terminal, wide)), flush=True)
    results = measure(plan, arguments.backend, arguments.out)
    for result in results:
        print_result(result, terminal, wide, tables=arguments.tables)
    if not arguments.tables:
        print("attendre demo --tables    every size, the intervals, and what gets into a memory")
        print("attendre trace            look into these memories, word by word")
    # Last, so that everything is printed even if the picture cannot be written.
    print(draw(results, arguments.picture))


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for; mistakes raise before anything is measured."""
    from attendre_core.backend import backend
    from attendre_core.evaluation.controls import CONTROLS
    from attendre_core.evaluation.sweep import cells_of
    from attendre_core.evaluation.tasks import SYNTHETIC
    from attendre_core.presets import PRESETS, parse

    full = arguments.full
    backend(arguments.backend)
    _check_place("picture", user_path(arguments.picture))
    if full:
        more = [f"{name}+c={c}" for name in _SCORED for c in _FULL_C]
        names: Sequence[str] = (*PRESETS, *more, *CONTROLS)
    else:
        names = (*POLICIES, *CONTROLS)
    names = arguments.policies or names
    for name in names:
        parsed = parse(name, CONTROLS)
        if parsed.size is not None or parsed.has("wait"):
            raise ConfigError(
                f"demo: {name!r} says M or N, but here they are the columns of the table. Leave "
                ":size and +wait= out, or use 'attendre eval synthetic'."
            )
    cells = cells_of(names, (), _FULL_SIZES if full else SIZES)
    large = [name for name in names if name in ("MT", "AS")]
    both = ("repeat", "single")
    return Plan(
        arguments.model or (("prefix-lm", "encoder-decoder") if full else ("prefix-lm",)),
        [
            SYNTHETIC[name](
                answers, limit=arguments.documents or (96 if full else 40), seed=arguments.seed,
                chunk=CHUNK,
            )
            for name, answers in product(
                arguments.task or (tuple(SYNTHETIC) if full else ("look-ahead",)),
                arguments.answers or (both if full else ("repeat",)),
            )
        ],
        [*cells, *cells_of(large, (), LARGE)],
    )  # fmt: skip


def _check_place(option: str, file: Path) -> None:
    if not file.parent.is_dir():
        raise ConfigError(
            f"demo: there is no folder for the {option} {file}. Create it, or give another file "
            f"with --{option}."
        )
    if file.is_dir():
        raise ConfigError(
            f"demo: the {option} cannot be written to {file}, which is a folder. Give a file "
            f"with --{option}."
        )


def read_stories(plan: Plan, backend: str) -> list[Story]:
    """Let each model read English with four of the systems."""
    from attendre_core.evaluation import load_tiny
    from attendre_core.evaluation.controls import SIZELESS

    names = list(dict.fromkeys(cell.policy for cell in plan.cells if cell.policy not in SIZELESS))
    if not names:
        return []
    names = list(RULES) if set(RULES) <= set(names) else names[:4]
    first = plan.tasks[0]
    return [
        read_story(
            load_tiny(model, backend=backend), names, chunk=CHUNK, top_k=TOP_K, seed=first.seed,
            count=first.limit,
        )
        for model in plan.models
    ]  # fmt: skip


def measure(plan: Plan, backend: str, out: str | None) -> list[TaskResult]:
    """Measure all cells with all models on all tasks."""
    from attendre_core.evaluation import load_tiny
    from attendre_core.evaluation.sweep import ResultStore, identity_of, run_cells, summarise

    folder = None if out is None else _folder(out)
    limits = sum(task.limit for task in plan.tasks)
    bar = progress_bar(
        len(plan.models) * limits * len(plan.cells), "reading", " documents", lines=True
    )
    results = []
    try:
        for name in plan.models:
            model = load_tiny(name, backend=backend)
            for task in plan.tasks:
                stem = f"{name}-{task.name}-{task.answers}-{task.seed}"
                file = None if folder is None else folder / f"{stem}.jsonl"
                identity = identity_of(model, name, task, CHUNK, TOP_K)
                items = task.items(model)
                with ResultStore(file, identity) as store:
                    bar.update(sum(len(store.done(cell)) for cell in plan.cells))
                    measured = run_cells(
                        model, task, items, plan.cells, store, chunk=CHUNK, top_k=TOP_K,
                        on_items=lambda _, count: bar.update(count),
                    )  # fmt: skip
                summary = summarise(measured, task.metrics, "MT")
                results.append(TaskResult(name, task, measured, summary))
    finally:
        bar.close()
    return results


def _folder(path: str) -> Path:
    folder = user_path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"demo: the folder {path} cannot be created ({error.strerror}). Give another with "
            "--out."
        ) from error
    return folder
