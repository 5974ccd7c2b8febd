"""All rows of the table, in order, as far as the installed libraries allow."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attendre_core.backend import Backend, backend
from attendre_core.benchmark import models, steps, streams
from attendre_core.benchmark.figures import Figure, Target
from attendre_core.errors import ConfigError

__all__ = ["measure_all"]

_REFERENCES = {"torch": "attendre_torch.references", "jax": "attendre_jax.references"}


def measure_all(
    libraries: tuple[str, ...],
    *,
    quick: bool,
    rows: tuple[int, ...] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Figure]:
    """Measure, one figure after the other.

    Parameters
    ----------
    libraries
        Backends to measure.
    quick
        Fewer repeats and shorter streams; models are left out.
    rows
        Only these rows; empty = all.
    say
        Told what is being measured.
    """
    repeats = 9 if quick else 31
    for name in libraries:
        try:
            found: Backend = backend(name)
        except ConfigError as error:
            yield steps.skipped(0, f"{name}: everything", Target("at most", 1.0), str(error))
            continue
        references: Any = importlib.import_module(_REFERENCES[name])
        tokens = 65_536 if quick else 1_000_000
        length = 16_384 if quick else 65_536
        parts: list[tuple[tuple[int, ...], Callable[[], Iterator[Figure]]]] = [
            ((1, 2, 3, 4), partial(steps.step_rows, found, references, repeats)),
            ((5,), partial(steps.gather_rows, found, references, repeats)),
            ((6,), partial(steps.insertion_rows, found, references, repeats)),
        ]
        if name == "torch":
            parts += [
                ((7,), partial(streams.flat_rows, found, tokens)),
                ((8, 9), partial(models.model_rows, quick)),
                ((10,), partial(streams.peer_rows, found, repeats)),
                ((11,), partial(streams.encoding_rows, found, length)),
            ]
        for numbers, measure in parts:
            if rows and not set(rows) & set(numbers):
                continue
            say(f"{name}: row {', '.join(map(str, numbers))}")
            yield from (figure for figure in measure() if not rows or figure.row in rows)
