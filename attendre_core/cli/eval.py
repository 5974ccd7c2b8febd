"""``attendre eval``: which policy and which sizes serve a model of yours on a task."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attendre_core.cli.arguments import Parser, add_command, add_shared, print_json, whole_number
from attendre_core.cli.eval_tasks import DEFAULTS, OPTIONS, TASKS, task_of
from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError
from attendre_core.progress import progress_bar

if TYPE_CHECKING:
    from attendre_core.evaluation.sweep import Cell, Report, ResultStore
    from attendre_core.evaluation.tasks import Task
    from attendre_core.zoo import Model

__all__ = ["add_to"]

_DESCRIPTION = """\
Measure a model with memories of several policies and sizes, on the same questions or texts,
beside the controls that tell whether the memory worked.

Tasks:
{tasks}

A policy is a preset (attendre info lists them) with options behind it:
{options}

Results go into a folder: results.jsonl (one line for each item of each system; Parquet too, if
pyarrow is installed), table.md, table.tex, and pictures. If the command is ended, or killed, the
same command goes on where it was. More policies, sizes and questions can be added to a folder;
another model or other settings need another one."""

_EXAMPLES = """\
  attendre eval synthetic --model prefix-lm --kv 32 64 --q 0 half --out results/
  attendre eval needle --model model.gguf --kv 256 512 --context-tokens 2048 --out results/
  attendre eval triviaqa --model model.gguf --data questions.jsonl --context-tokens 550 \\
      --limit 100 --policies MT AS LFA-1e-3 LRA-sum+softmax+c=0 --kv 256 --out results/
  attendre eval triviaqa --model flan-t5-large --data qa/wikipedia-dev.json --kv 1024 --q 512 \\
      --out results/
  attendre eval perplexity --model model.gguf --data book.txt --kv 256 512 --backend torch \\
      --out results/
  attendre eval embedding --model all-MiniLM-L6-v2 --data book.txt --chunk 64 --kv 128 256 \\
      --q 0 half --out results/"""

_POLICIES = ("MT", "AS", "LRA-sum", "LFA-1e-3", "attendre", "attendre-causal")


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    tasks = "\n".join(f"  {name:<12} {task.words}" for name, task in TASKS.items())
    options = "\n".join(f"  +{name:<16} {words}" for name, words in OPTIONS.items())
    parser = add_command(
        commands,
        "eval",
        "measure policies and sizes on a task with a model of yours",
        description=_DESCRIPTION.format(tasks=tasks, options=options),
        examples=_EXAMPLES,
        run=run,
    )
    parser.add_argument("task", metavar="TASK", choices=tuple(TASKS), help="see above")
    parser.add_argument(
        "--model", required=True, metavar="PATH",
        help="a checkpoint; prefix-lm or encoder-decoder ship with the package",
    )  # fmt: skip
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where results go")
    _add_grid(parser)
    _add_task(parser)
    parser.add_argument("--batch", type=whole_number(1), default=8, metavar="B",
                        help="items side by side: speed, not results (8)")  # fmt: skip
    parser.add_argument("--dtype", default="float32", help="float32, float16, bfloat16 or auto")
    parser.add_argument(
        "--attention", choices=("causal", "prefix"), help="prefix reads a prompt both ways"
    )
    add_shared(parser, backend_help="array library to compute with (numpy)")


def _add_grid(parser: Parser) -> None:
    grid = parser.add_argument_group("the grid")
    grid.add_argument(
        "--policies", nargs="+", default=list(_POLICIES), metavar="NAME",
        help=f"in the order of the table ({' '.join(_POLICIES)})",
    )  # fmt: skip
    grid.add_argument(
        "--no-controls", action="store_true", help="leave out full, no-memory, closed-book, ..."
    )
    grid.add_argument(
        "--baseline", metavar="NAME", help="what all are compared with (the first policy)"
    )
    grid.add_argument(
        "--kv", type=whole_number(1), nargs="+", metavar="M", help="entries kept (2 and 4 chunks)"
    )
    grid.add_argument(
        "--q", type=_waiting, nargs="+", default=[0], metavar="N",
        help="positions queries wait; 'half' is half of each M (0)",
    )  # fmt: skip
    grid.add_argument(
        "--chunk", type=whole_number(1), metavar="S", help="tokens per step (128; synthetic: 16)"
    )
    grid.add_argument(
        "--top-k", type=_top_k, default=-1, metavar="K",
        help="entries a query retrieves, or 'all' (128 as in the paper; synthetic: 16)",
    )  # fmt: skip


def _add_task(parser: Parser) -> None:
    task = parser.add_argument_group("the task; what means nothing to one is refused")

    def add(name: str, words: str, **more: Any) -> None:
        task.add_argument(name, help=words, default=DEFAULTS[name[2:].replace("-", "_")], **more)

    count, any_number = {"metavar": "COUNT", "type": whole_number(1)}, whole_number(0)
    add("--data", "questions, records or a text", metavar="FILE")
    add("--evidence", "triviaqa: folder with wikipedia/ and web/", metavar="FOLDER")
    add("--limit", "items at most", **count)
    add("--context-tokens", "length of a context or text", metavar="T", type=whole_number(1))
    add("--depth", "where the answer stands, 0 to 1 (anywhere)", metavar="SHARE", type=float)
    add("--gold", "triviaqa: passages with the answer in a built context (1)", **count)
    add("--keys", "multi-key: records (40)", metavar="COUNT", type=whole_number(2))
    add("--new-tokens", "tokens of an answer; 0 measures only its likelihood (16)",
        metavar="COUNT", type=any_number)  # fmt: skip
    add("--streams", "perplexity: texts side by side (1)", **count)
    add("--skip", "characters of a text to leave out at its beginning (0)", metavar="COUNT",
        type=any_number)  # fmt: skip
    add("--reading", "synthetic: which task (look-ahead)", choices=("look-ahead", "past-only"))
    add("--answers", "synthetic: whether answers recur (repeat)", choices=("repeat", "single"))
    add("--seed", "of contexts and documents (0)", type=any_number)


def run(arguments: argparse.Namespace) -> None:
    """Measure what is missing, then show everything."""
    from attendre_core.evaluation.controls import canonical_name
    from attendre_core.evaluation.sweep import (
        ResultStore,
        cells_of,
        identity_of,
        report,
        sizes_of,
    )
    from attendre_core.evaluation.sweep.measuring import does_not_fit

    task, chunk, top_k = task_of(arguments)
    _check_controls(arguments, task)
    sizes = sizes_of(arguments.kv or [2 * chunk, 4 * chunk], arguments.q)
    controls = () if arguments.no_controls else task.controls
    cells = cells_of(arguments.policies, controls, sizes)
    _check_cells(cells, chunk, top_k)
    baseline = canonical_name(arguments.baseline or arguments.policies[0])
    folder = _folder(arguments.out)
    model = _model(arguments)
    items = task.items(model)
    notes = []
    asked = any(cell.policy == "full" for cell in cells)
    if asked and does_not_fit(model, task, items):
        cells = [cell for cell in cells if cell.policy != "full"]
        notes.append(
            f"Full attention is left out: {task.longest(items)} tokens are more than the "
            f"{model.reading_part.context} that the model was made for."
        )
    identity = identity_of(model, Path(arguments.model).name, task, chunk, top_k)
    with ResultStore(folder / "results.jsonl", identity) as store:
        known = [found.cell.policy for found in store.measured]
        _check_baseline(baseline, [*known, *(cell.policy for cell in cells)])
        _measure(arguments, model, task, items, cells, store, chunk, top_k)
    found = report(folder, task.metrics, baseline)
    if arguments.json:
        print_json(_as_json(arguments, found, notes))
    else:
        _print(found, notes)


def _measure(
    arguments: argparse.Namespace, model: Model, task: Task, items: list[Any],
    cells: list[Cell], store: ResultStore, chunk: int, top_k: int | None,
) -> None:  # fmt: skip
    from attendre_core.evaluation.sweep import run_cells

    names = {item.name for item in items}
    missing = sum(len(names - store.done(cell)) for cell in cells)
    bar = progress_bar(missing, arguments.task, " items")
    last = [""]

    def shown(cell: Cell, count: int) -> None:
        if cell.words != last[0]:
            last[0] = cell.words
            if not sys.stderr.isatty():
                print(f"{cell.words} ...", file=sys.stderr, flush=True)
        bar.update(count)

    try:
        run_cells(model, task, items, cells, store, chunk=chunk, top_k=top_k,
                  batch=arguments.batch, on_items=shown)  # fmt: skip
    finally:
        bar.close()


def _check_controls(arguments: argparse.Namespace, task: Task) -> None:
    """Refuse a control that would measure something else than its name says."""
    from attendre_core.evaluation.controls import CONTROLS

    for name in arguments.policies:
        if name in CONTROLS and name not in task.controls:
            raise ConfigError(
                f"eval {arguments.task}: the control {name!r} means nothing to this task; those "
                f"that do are {', '.join(task.controls)}. Leave it out."
            )


def _check_baseline(baseline: str, policies: list[str]) -> None:
    """Refuse a baseline that will be missing, before hours are spent on the rest."""
    if baseline not in policies:
        raise ConfigError(
            f"eval: the baseline {baseline!r} was not measured and is not asked for; there are "
            f"{', '.join(dict.fromkeys(policies))}. Choose one of them with --baseline, or name it "
            "in --policies."
        )


def _check_cells(cells: list[Cell], chunk: int, top_k: int | None) -> None:
    """Refuse a wrong name before anything is loaded."""
    from attendre_core.evaluation.controls import system

    for cell in cells:
        system(cell.policy, cell.kv or chunk, cell.q, chunk=chunk, top_k=top_k)


def _model(arguments: argparse.Namespace) -> Model:
    from attendre_core.evaluation import load_tiny
    from attendre_core.evaluation.tiny.recipe import MODELS
    from attendre_core.zoo import load

    if arguments.model in MODELS and not Path(arguments.model).exists():
        return load_tiny(arguments.model, backend=arguments.backend)
    return load(
        arguments.model, backend=arguments.backend, dtype=arguments.dtype,
        attention=arguments.attention,
    )  # fmt: skip


def _folder(path: str) -> Path:
    folder = Path(path).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"eval: the folder {path} cannot be made ({error.strerror}). Give another one with "
            "--out."
        ) from error
    return folder


def _as_json(arguments: argparse.Namespace, found: Report, notes: list[str]) -> dict[str, Any]:
    return {
        "command": "eval",
        "task": arguments.task,
        "model": arguments.model,
        "baseline": found.summary.baseline,
        "rows": [row.plain() for row in found.summary.rows],
        "files": [str(file) for file in found.files],
        "notes": notes,
    }


def _print(found: Report, notes: list[str]) -> None:
    from attendre_core.evaluation.sweep import cell_table

    terminal = Terminal()
    # Not every terminal has a minus sign that is as wide as a plus.
    minus = "\N{MINUS SIGN}"
    print(cell_table(found.summary).plain().replace(minus, terminal.choose(minus, "-")) + "\n")
    for line in [*notes, "Written: " + ", ".join(str(file) for file in found.files)]:
        print(line)


def _waiting(text: str) -> int | Literal["half"]:
    if text == "half":
        return "half"
    parse: Callable[[str], int] = whole_number(0)
    return parse(text)


def _top_k(text: str) -> int | None:
    return None if text == "all" else whole_number(1)(text)
