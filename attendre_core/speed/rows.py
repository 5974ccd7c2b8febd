"""Measure all rows of the table, as far as the installed libraries allow."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from attendre_core.backend import Backend, backend
from attendre_core.errors import ConfigError
from attendre_core.speed import models, steps, streams
from attendre_core.speed.figures import Figure, Target, skipped
from attendre_core.speed.timing import threads

__all__ = ["LIBRARIES", "Part", "measure_all", "parts_of"]

#: Libraries for which there are references, in ``torch_references.py`` and ``jax_references.py``.
LIBRARIES = ("torch", "jax")


class Part(NamedTuple):
    """Rows that are measured together."""

    name: str
    rows: tuple[int, ...]
    measure: Callable[[], Iterator[Figure]]


def parts_of(libraries: tuple[str, ...], *, quick: bool, rows: tuple[int, ...] = ()) -> list[Part]:
    """Return the parts to measure; if ``rows`` is not empty, those that contain one of them."""
    parts: list[Part] = []
    for name in libraries:
        try:
            library: Backend = backend(name)
        except ConfigError as error:
            line = skipped(0, f"{name}: everything", Target("at most", 1.0), str(error))
            parts.append(Part(name, (0,), partial(iter, [line])))
            continue
        references: Any = importlib.import_module(f"attendre_core.speed.{name}_references")
        parts += _parts_of_one(library, references, quick)
    return [part for part in parts if not rows or set(part.rows) & {0, *rows}]


def _parts_of_one(library: Backend, references: Any, quick: bool) -> list[Part]:
    repeats = 9 if quick else 41
    length = 16_384 if quick else 65_536
    selecting = (3,) if library.name == "jax" else (2,)
    shared = (library, references, repeats)
    torch_only = [
        ((7,), partial(streams.flat_rows, library, 65_536 if quick else 1_000_000, repeats)),
        ((8, 9), partial(models.model_rows, quick)),
        ((10,), partial(streams.peer_rows, library, repeats)),
        ((11,), partial(streams.encoding_rows, library, references, length)),
        ((12,), partial(models.cache_rows, quick)),
        ((13,), partial(models.embedding_rows, quick)),
    ]
    plain: list[tuple[tuple[int, ...], Callable[[], Iterator[Figure]]]] = [
        ((3, 4) if library.name == "jax" else (1, 4), partial(steps.step_rows, *shared)),
        (selecting, partial(steps.selecting_rows, *shared)),
        ((5,), partial(steps.gather_rows, *shared)),
        ((6,), partial(steps.insertion_rows, *shared)),
        ((8, 9), partial(models.preset_rows, library.name, quick)),
        *(torch_only if library.name == "torch" else []),
    ]

    def without_gradients(measure: Callable[[], Iterator[Figure]]) -> Iterator[Figure]:
        with references.inference():
            yield from measure()

    return [Part(library.name, rows, partial(without_gradients, run)) for rows, run in plain]


def measure_all(
    libraries: tuple[str, ...],
    *,
    quick: bool,
    rows: tuple[int, ...] = (),
    say: Callable[[str], None] = lambda text: None,
    threads_each: int = 1,
) -> Iterator[Figure]:
    """Measure and yield one figure after the other.

    Parameters
    ----------
    libraries
        Backends to measure.
    quick
        Fewer repeats and shorter streams.
    rows
        Measure only these rows; empty measures all.
    say
        Called with a description of what is measured next.
    threads_each
        Threads per library; with more than one, wall time is measured.
    """
    with threads(threads_each):
        for part in parts_of(libraries, quick=quick, rows=rows):
            say(f"{part.name}: row {', '.join(map(str, part.rows))}")
            for figure in part.measure():
                if not rows or figure.row in (0, *rows):
                    yield figure
