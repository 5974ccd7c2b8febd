"""``attendre eval``: find the policy and sizes that suit your model on a task."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attendre_core.cli.arguments import (
    MEMORY_HELP,
    Parser,
    add_command,
    add_list,
    add_shared,
    one_of,
    print_json,
    whole_number,
)
from attendre_core.cli.eval_cells import MODES, POLICIES, Wanted, cells_for, is_control, names_of
from attendre_core.cli.eval_tasks import TASKS, add_task, task_of
from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError
from attendre_core.paths import user_path
from attendre_core.presets import parse
from attendre_core.progress import progress_bar

if TYPE_CHECKING:
    from attendre_core.evaluation.sweep import Cell, Report, ResultStore
    from attendre_core.evaluation.tasks import Task
    from attendre_core.zoo import Model

__all__ = ["add_to"]

_DESCRIPTION = """\
Measure a model with memories of several policies and sizes on the same questions or texts,
together with controls that show whether the memory made a difference.

Tasks:
{tasks}

{memory}
Names without a size are measured at every --size.

Results go into a folder: results.jsonl (one line per item and system; also as Parquet if pyarrow
is installed), table.md, table.tex, and pictures. After an interruption, run the same command
again to continue. Policies, sizes and questions can be added to a folder; another model or other
settings need a new folder."""

_EXAMPLES = """\
  attendre eval synthetic --model prefix-lm --size 32,64 --wait 0,half --out results/
  attendre eval needle --model model.gguf --size 256,512 --context-tokens 2048 --out results/
  attendre eval triviaqa --model model.gguf --data questions.jsonl --context-tokens 550 \\
      --limit 100 --policies MT,AS,LFA-1e-3,LRA-sum+softmax+c=0 --size 256 --out results/
  attendre eval qa --model model.gguf --data mine.jsonl --size 256,512 --out results/
  attendre eval needle --model model.gguf --size 128 --policies AS,H2O,TOVA \\
      --mode bounded,oracle --out results/
  attendre eval triviaqa --model flan-t5-large --data qa/wikipedia-dev.json --size 1024 \\
      --out results/
  attendre eval perplexity --model model.gguf --data book.txt --size 256,64MiB \\
      --policies MT,attendre-causal,my_module:MyPolicy --backend torch --out results/
  attendre eval perplexity --model model.gguf --data book.txt --size 512 --equal-bytes \\
      --policies MT,AS,H2O,attendre-causal --out results/
  attendre eval embedding --model all-MiniLM-L6-v2 --data book.txt --chunk 64 \\
      --size 128,256 --wait 0,half --out results/"""


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    tasks = "\n".join(f"  {name:<14} {task.words}" for name, task in TASKS.items())
    parser = add_command(
        commands,
        "eval",
        "measure policies and sizes on a task with your model",
        description=_DESCRIPTION.format(tasks=tasks, memory=MEMORY_HELP),
        examples=_EXAMPLES,
        run=run,
    )
    parser.add_argument("task", metavar="TASK", choices=tuple(TASKS), help="see above")
    parser.add_argument(
        "--model", required=True, metavar="PATH",
        help="a checkpoint as for attendre run, or a tiny model: prefix-lm, encoder-decoder",
    )  # fmt: skip
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder for the results")
    _add_grid(parser)
    add_task(parser)
    parser.add_argument("--batch", type=whole_number(1), default=8, metavar="B",
                        help="items read side by side; changes only the speed (8)")  # fmt: skip
    parser.add_argument(
        "--dtype", default="float32", help="float32, float16, bfloat16 or auto (float32)"
    )
    parser.add_argument(
        "--attention", choices=("causal", "prefix"),
        help="prefix lets a decoder read the prompt in both directions",
    )  # fmt: skip
    add_shared(parser, backend_help="array library to compute with (numpy)")


def _add_grid(parser: Parser) -> None:
    grid = parser.add_argument_group("the grid")
    add_list(
        grid, "--policies", metavar="NAME",
        help="names of memories, separated by commas, in the order of the table "
        f"({','.join(POLICIES)}, with +wait=half if the model looks both ways, and the system "
        "recommended for the model)",
    )  # fmt: skip
    add_list(
        grid, "--mode", one_of(*MODES), metavar="MODE",
        help="bounded (through the memory from the first token) or oracle (as most papers: read "
        "the context with full attention, then keep M entries by the policy's scores), or both; "
        "+oracle behind a name does the same for that name (bounded)",
    )  # fmt: skip
    grid.add_argument(
        "--no-controls", action="store_true",
        help="do not add the controls of the task (full, no-memory, closed-book, ...)",
    )  # fmt: skip
    grid.add_argument(
        "--baseline", metavar="NAME", help="system to compare the others with (the first policy)"
    )
    add_list(grid, "--size", metavar="M", help="entries per layer, or bytes (2 and 4 chunks)")
    grid.add_argument(
        "--equal-bytes", action="store_true",
        help="take each --size as the baseline's, and give all others the entries that fit into "
        "as many bytes",
    )  # fmt: skip
    add_list(
        grid, "--wait", _waiting, metavar="N",
        help="positions that queries wait; 'half' is half of each M (as the name says: half for "
        "attendre, otherwise 0)",
    )  # fmt: skip
    grid.add_argument(
        "--chunk", type=whole_number(1), metavar="S", help="tokens per step (128; synthetic: 16)"
    )
    grid.add_argument(
        "--top-k", type=_top_k, default=-1, metavar="K",
        help="entries each query retrieves, or 'all' (128 as in the paper; synthetic: 16)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Measure what the folder does not have yet, then report on everything in it."""
    from attendre_core.evaluation.controls import ORACLE, SIZELESS, label_of
    from attendre_core.evaluation.sweep import ResultStore, identity_of, report
    from attendre_core.evaluation.sweep.measuring import does_not_fit

    task, chunk, top_k = task_of(arguments)
    # Wrong names are reported before anything is loaded.
    names = names_of(arguments.policies or ())
    _check_controls(arguments.task, names, task.controls)
    sizes = [parse(f"MT:{size}").size for size in arguments.size or (2 * chunk, 4 * chunk)]
    folder = _folder(arguments.out)
    model = _model(arguments)
    controls = () if arguments.no_controls else task.controls
    cells = cells_for(
        model, names, controls, sizes, arguments.wait, chunk, top_k,
        equal_bytes=arguments.equal_bytes,
        baseline=names_of([arguments.baseline])[0] if arguments.baseline else None,
        modes=arguments.mode or ("bounded",),
    )  # fmt: skip
    first = next((cell.policy for cell in cells if cell.kv), cells[0].policy)
    baseline = label_of(arguments.baseline) if arguments.baseline else first
    items = task.items(model)
    notes = []
    if arguments.equal_bytes:
        holds = first if baseline in SIZELESS else baseline
        notes.append(f"At equal bytes: each M is what fits into the bytes that {holds} holds.")
    with_full = [c for c in cells if c.policy == "full" or c.policy.endswith(ORACLE)]
    if with_full and does_not_fit(model, task, items):
        cells = [cell for cell in cells if cell not in with_full]
        notes.append(
            f"Full attention is left out: the longest input has {task.longest(items)} tokens, and "
            f"the model was trained on at most {model.reading_part.context}."
        )
    identity = identity_of(model, Path(arguments.model).name, task, chunk, top_k)
    with ResultStore(folder / "results.jsonl", identity) as store:
        known = [measured.cell.policy for measured in store.measured]
        _check_baseline(baseline, [*known, *(cell.policy for cell in cells)])
        _measure(arguments, model, task, items, cells, store, chunk, top_k)
    written = report(folder, task.metrics, baseline, equal_bytes=arguments.equal_bytes)
    if arguments.json:
        print_json(_as_json(arguments, task, written, notes, chunk, top_k))
    else:
        _print(written, notes)


def _measure(
    arguments: argparse.Namespace, model: Model, task: Task, items: list[Any],
    cells: list[Cell], store: ResultStore, chunk: int, top_k: int | None,
) -> None:  # fmt: skip
    from attendre_core.evaluation.sweep import run_cells

    names = {item.name for item in items}
    missing = sum(len(names - store.done(cell)) for cell in cells)
    bar = progress_bar(missing, arguments.task, " items", lines=True)
    seen: set[Cell] = set()

    def show(cell: Cell, count: int) -> None:
        if cell not in seen and not sys.stderr.isatty():
            print(f"{cell.words} ...", file=sys.stderr, flush=True)
        seen.add(cell)
        bar.update(count)

    try:
        run_cells(model, task, items, cells, store, chunk=chunk, top_k=top_k,
                  batch=arguments.batch, on_items=show)  # fmt: skip
    finally:
        bar.close()


def _check_controls(task: str, names: list[Wanted], controls: Sequence[str]) -> None:
    """Refuse a control that does not apply to the task."""
    for wanted in names:
        if is_control(wanted) and wanted.parsed.name not in controls:
            raise ConfigError(
                f"eval {task}: the control {wanted.parsed.name!r} does not apply to this task; it "
                f"has {', '.join(controls)}. Leave it out."
            )


def _check_baseline(baseline: str, policies: list[str]) -> None:
    """Refuse a baseline that will have no results, before anything is measured."""
    if baseline not in policies:
        raise ConfigError(
            f"eval: the baseline {baseline!r} is not measured; there are "
            f"{', '.join(dict.fromkeys(policies))}. Choose one of them with --baseline, or add it "
            "to --policies."
        )


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
    folder = user_path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"eval: the folder {path} cannot be created ({error.strerror}). Give another with "
            "--out."
        ) from error
    return folder


def _as_json(
    arguments: argparse.Namespace,
    task: Task,
    written: Report,
    notes: list[str],
    chunk: int,
    top_k: int | None,
) -> dict[str, Any]:
    from attendre_core.evaluation.controls import system

    def name(cell: Cell) -> str:
        made = system(
            cell.policy, cell.kv or chunk, cell.q, chunk=chunk, top_k=top_k, pinned=task.pinned
        )
        if made.whole or made.oracle:
            return f"{cell.policy}:{cell.kv}" if made.oracle else cell.policy
        return made.memory.name

    return {
        "command": "eval",
        "task": arguments.task,
        "model": arguments.model,
        "baseline": written.summary.baseline,
        "rows": [{"memory": name(row.cell), **row.plain()} for row in written.summary.rows],
        "files": [str(file) for file in written.files],
        "notes": notes,
    }


def _print(written: Report, notes: list[str]) -> None:
    from attendre_core.evaluation.sweep import cell_table

    terminal = Terminal()
    # Not every terminal can show the typographic minus sign.
    minus = "\N{MINUS SIGN}"
    print(cell_table(written.summary).plain().replace(minus, terminal.choose(minus, "-")) + "\n")
    for line in [*notes, "Written: " + ", ".join(str(file) for file in written.files)]:
        print(line)


def _waiting(text: str) -> int | Literal["half"]:
    if text == "half":
        return "half"
    parse: Callable[[str], int] = whole_number(0)
    return parse(text)


def _top_k(text: str) -> int | None:
    return None if text == "all" else whole_number(1)(text)
