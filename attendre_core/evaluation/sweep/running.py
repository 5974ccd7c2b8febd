"""Measure a grid, item by item, into a file from which it can go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attendre_core.evaluation.benchmarks.benchmark import Benchmark, Item
from attendre_core.evaluation.sweep.plan import Cell
from attendre_core.evaluation.sweep.store import ResultStore
from attendre_core.evaluation.sweep.variants import system_of
from attendre_core.zoo.model import Model
from attendre_core.zoo.saving import fingerprint

__all__ = ["does_not_fit", "identity_of", "run_cells"]

#: Called with the cell and the items that were just measured.
OnItems = Callable[[Cell, int], None]


def identity_of(
    model: Model, name: str, benchmark: Benchmark, chunk: int, top_k: int | None
) -> dict[str, Any]:
    """Return what results depend on besides policy, sizes and item.

    The array library is no part of it: all of them keep the same entries.
    """
    part = model.reading_part
    return {
        "task": benchmark.name,
        "model": name,
        "weights": fingerprint(model.params, model.backend.to_numpy),
        "layers": part.layers,
        "dtype": model.dtype,
        "attention": model.attention,
        "chunk": chunk,
        "top_k": top_k,
        "pinned": benchmark.pinned,
        **benchmark.identity(),
    }


def does_not_fit(model: Model, benchmark: Benchmark, items: Sequence[Item]) -> bool:
    """Whether full attention over the longest item is beyond what the model was made for."""
    context = model.reading_part.context
    return not benchmark.clamps and context is not None and benchmark.longest(items) > context


def run_cells(
    model: Model,
    benchmark: Benchmark,
    items: Sequence[Item],
    cells: Sequence[Cell],
    store: ResultStore,
    *,
    chunk: int,
    top_k: int | None,
    batch: int,
    on_items: OnItems | None = None,
) -> None:
    """Measure what is not in the store yet.

    Parameters
    ----------
    batch
        Items side by side: changes the speed, not the results.
    on_items
        For a progress bar.
    """
    for cell in cells:
        done = store.done(cell)
        pending = [item for item in items if item.name not in done]
        if not pending:
            continue
        system = system_of(cell.policy, cell.kv or chunk, cell.q, chunk, top_k)
        if benchmark.whole:
            pending = list(items)
        for scores in benchmark.measure(model, pending, system, batch):
            store.append(cell, [score for score in scores if score[0] not in done])
            if on_items is not None:
                on_items(cell, len(scores))
