"""Read a long input with an encoder in overlapping windows, and write from all that is kept.

::

    window 1   |====|====|----|
    window 2        |----|====|----|          = kept
    window 3             |----|====|====|     - context alone
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attendre_core.backend import Array
from attendre_core.errors import ConfigError
from attendre_core.zoo.full_attention import full_pass
from attendre_core.zoo.generate import generate
from attendre_core.zoo.tokens import padded
from attendre_core.zoo.writer import Writer, write_across

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["Overlapping", "windows_of"]

#: Windows that are read at a time.
_BATCH = 8


def windows_of(length: int, window: int) -> list[tuple[int, int, int]]:
    """Return the windows of an input: where each starts, and the first and last kept, exclusive.

    The last window ends with the input. Every position is kept once.

    Examples
    --------
    >>> windows_of(14, 8)
    [(0, 0, 6), (4, 6, 10), (6, 10, 14)]
    >>> windows_of(5, 8)
    [(0, 0, 5)]
    """
    found, start, kept = [], 0, 0
    while start + window < length:
        stop = start + window * 3 // 4
        found.append((start, kept, stop))
        start, kept = start + window // 2, stop
    found.append((max(length - window, 0), kept, length))
    return found


class Overlapping:
    """Rows that the encoder of a model has read in overlapping windows.

    `Model.overlapping` makes one.
    """

    def __init__(self, model: Model, rows: list[list[int]], window: int) -> None:
        if model.architecture.kind != "encoder-decoder":
            raise ConfigError(
                "Model.overlapping: only an encoder-decoder writes from outputs of windows. A "
                "decoder reads long inputs with a memory."
            )
        if type(window) is not int or window < 4 or window % 4:
            raise ConfigError(
                f"Model.overlapping: window is {window!r}, expected a multiple of 4 tokens."
            )
        self._model = model
        parts = [
            (n, *found) for n, row in enumerate(rows) for found in windows_of(len(row), window)
        ]
        pieces: list[list[Array]] = [[] for _ in rows]
        for first in range(0, len(parts), _BATCH):
            some = parts[first : first + _BATCH]
            cut = [rows[n][start : start + window] for n, start, *_ in some]
            tokens, valid = padded(cut, window)
            hidden, _ = full_pass(
                model.reading_part, model.reading_params, model.array(tokens), model.array(valid),
                causal=model.causal, library=model.library,
            )  # fmt: skip
            for number, (n, start, kept, stop) in enumerate(some):
                pieces[n].append(hidden[number, kept - start : stop - start, ...])
        xp = model.backend.xp
        longest = max(map(len, rows))
        outputs = []
        for row, own in zip(rows, pieces, strict=True):
            rest = xp.zeros_like(own[0][:1, ...])
            outputs.append(xp.concat([*own, *[rest] * (longest - len(row))], axis=0))
        self._hidden = xp.stack(outputs, axis=0)
        lengths = np.asarray([len(row) for row in rows])
        self._valid = model.array(np.arange(longest) < lengths[:, None])

    def encoded(self) -> tuple[Array, Array]:
        """Return what a decoder attends to: outputs (batch, n, dim), and which are valid."""
        return self._hidden, self._valid

    def writer(self, room: int) -> tuple[Writer, Any]:
        """Return a writer that continues from here, and the logits of the first new token."""
        return write_across(self._model, self._hidden, self._valid, room)

    def generate(self, max_new_tokens: int = 32, **options: Any) -> list[list[int]]:
        """Write token ids for every row; options as in `Model.generate`."""
        return generate(self._model, self.writer, max_new_tokens, **options)
