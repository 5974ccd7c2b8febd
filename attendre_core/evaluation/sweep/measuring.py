"""Measure cells item by item, into a store from which an interrupted run continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import System, system
from attendre_core.evaluation.sweep.cells import Cell
from attendre_core.evaluation.sweep.store import Measured, ResultStore
from attendre_core.evaluation.tasks.task import Item, OracleTask, Scores, Task
from attendre_core.zoo.model import Model
from attendre_core.zoo.saving import fingerprint

__all__ = ["does_not_fit", "identity_of", "run_cells"]

#: Called with the cell and the number of items that were just measured.
OnItems = Callable[[Cell, int], None]


def identity_of(
    model: Model, name: str, task: Task, chunk: int, top_k: int | None
) -> dict[str, Any]:
    """Return everything that results depend on, except system, size and item.

    The array library is not included: memories keep the same entries with all of them.

    Parameters
    ----------
    name
        Name of the model.
    chunk, top_k
        S and K.
    """
    part = model.reading_part
    return {
        "task": task.name,
        "model": name,
        "weights": fingerprint(model.params, model.backend.to_numpy),
        "layers": part.layers,
        "dtype": model.dtype,
        "attention": model.attention,
        "chunk": chunk,
        "top_k": top_k,
        "pinned": task.pinned,
        **task.identity(),
    }


def does_not_fit(model: Model, task: Task, items: Sequence[Item]) -> bool:
    """Whether the longest item exceeds the context length of the model's full attention."""
    context = model.reading_part.context
    return not task.clamps and context is not None and task.longest(items) > context


def run_cells(
    model: Model,
    task: Task,
    items: Sequence[Item],
    cells: Sequence[Cell],
    store: ResultStore,
    *,
    chunk: int,
    top_k: int | None,
    batch: int = 32,
    on_items: OnItems | None = None,
) -> list[Measured]:
    """Measure the items of the cells that the store does not have yet.

    Systems take turns after each batch. Oracles come last, and share their reads.

    Parameters
    ----------
    items
        Items of the task.
    chunk, top_k
        S and K.
    batch
        Items read side by side; changes the speed, not the results.
    on_items
        Called after each batch with the cell and the number of items, for a progress bar.

    Returns
    -------
    list
        The results of ``cells`` on ``items``, in this order; the store may hold more.

    Examples
    --------
    >>> from attendre_core.evaluation import load_tiny
    >>> from attendre_core.evaluation.sweep import cells_of
    >>> from attendre_core.evaluation.tasks import LookAhead
    >>> model, task = load_tiny("prefix-lm"), LookAhead(limit=2)
    >>> with ResultStore(None, identity_of(model, "prefix-lm", task, 16, 16)) as store:
    ...     cells = cells_of(["MT"], ["closed-book"], [(32, 0)])
    ...     found = run_cells(model, task, task.items(model), cells, store, chunk=16, top_k=16)
    >>> [(one.cell.policy, len(one.scores)) for one in found]
    [('closed-book', 2), ('MT', 2)]
    """
    pending = {cell: [i for i in items if i.name not in store.done(cell)] for cell in cells}
    systems = {
        cell: system(
            cell.policy, cell.kv or chunk, cell.q, chunk=chunk, top_k=top_k, pinned=task.pinned
        )
        for cell in cells
        if pending[cell]
    }
    oracles = {cell: tested for cell, tested in systems.items() if tested.oracle}
    if oracles and not hasattr(task, "measure_oracles"):
        raise ConfigError(
            f"eval {task.name}: this task has no context that ends before something is asked, so "
            "+oracle means nothing here. Leave it out."
        )

    def note(cell: Cell, scores: Scores) -> None:
        done = store.done(cell)
        store.append(cell, [score for score in scores if score[0] not in done])
        if on_items is not None:
            on_items(cell, len(scores))

    turns = {
        cell: task.measure(model, list(items) if task.whole else pending[cell], tested, batch)
        for cell, tested in systems.items()
        if not tested.oracle
    }
    # Batch by batch, in turns: times are comparable, and all systems get as far as the others.
    while turns:
        for cell in list(turns):
            scores = next(turns[cell], None)
            if scores is None:
                del turns[cell]
            else:
                note(cell, scores)
    if oracles:
        _run_oracles(model, task, items, pending, oracles, batch, note)
    names = [item.name for item in items]
    known = {measured.cell: measured.scores for measured in store.measured}
    return [Measured(cell, {name: known[cell][name] for name in names}) for cell in cells]


def _run_oracles(
    model: Model,
    task: Task,
    items: Sequence[Item],
    pending: dict[Cell, list[Item]],
    oracles: dict[Cell, System],
    batch: int,
    note: Callable[[Cell, Scores], None],
) -> None:
    """Measure oracles together, because they share the read with full attention."""
    missing = {item.name for cell in oracles for item in pending[cell]}
    wanted = [item for item in items if task.whole or item.name in missing]
    measure = cast(OracleTask, task).measure_oracles
    for results in measure(model, wanted, list(oracles.values()), batch):
        for cell, scores in zip(oracles, results, strict=True):
            note(cell, scores)
