"""The cells that ``attendre eval`` measures, from names, sizes and waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from attendre_core.errors import ConfigError
from attendre_core.presets import ParsedName, parse, recommended

if TYPE_CHECKING:
    from attendre_core.evaluation.sweep import Cell
    from attendre_core.zoo import Model

__all__ = ["POLICIES", "cells_for", "is_control", "names_of"]

#: Compared by default, in addition to the system recommended for the model.
POLICIES = ("MT", "AS", "LRA-sum", "LFA-1e-3")


def names_of(texts: Sequence[str]) -> list[ParsedName]:
    """Parse the names of memories and controls."""
    from attendre_core.evaluation.controls import CONTROLS, label_of

    for text in texts:
        label_of(text)  # Raises for options that do not apply.
    return [parse(text, CONTROLS) for text in texts]


def is_control(parsed: ParsedName) -> bool:
    """Whether a name is just that of a control, to be measured at every size."""
    from attendre_core.evaluation.controls import CONTROLS

    return parsed.name in CONTROLS and not parsed.options and parsed.size is None


def cells_for(
    model: Model,
    names: Sequence[ParsedName],
    controls: Sequence[str],
    sizes: Sequence[int | str | None],
    waits: Sequence[int | Literal["half"]] | None,
    chunk: int,
    top_k: int | None,
) -> list[Cell]:
    """List the cells, each once: controls without a size first, then size by size.

    Parameters
    ----------
    names
        From `names_of`; if empty, `POLICIES` and the system recommended for the model.
    controls
        Controls to measure as well, at all sizes.
    sizes, waits
        M (entries or bytes) and N for names without them; with None for waits, names keep their
        own N. Pairs with N >= M are left out.
    chunk, top_k
        S and K for names without them; K is at most M.
    """
    from attendre_core.evaluation.controls import SIZELESS
    from attendre_core.evaluation.sweep import Cell

    if not names:
        more = () if model.causal or waits is not None else ("wait=half",)
        names = [parse("+".join((name, *more))) for name in POLICIES]
        names = [*names, parse(recommended(model.causal))]
    plain = list(dict.fromkeys([p.name for p in names if is_control(p)] + list(controls)))
    memories = [parsed for parsed in names if not is_control(parsed)]
    measured: dict[Cell, None] = {}
    for number, size in enumerate(sizes):
        for wait in (None,) if waits is None else waits:
            for parsed in memories or [ParsedName("MT")]:
                if parsed.size is None or number == 0:
                    measured |= dict.fromkeys(_cell(model, parsed, size, wait, chunk, top_k))
    if not measured:
        raise ConfigError(
            f"eval: every N of {list(waits or ())} is as large as every M, expected N < M. Use "
            "--wait 0 or --wait half."
        )
    pairs = dict.fromkeys((cell.kv, cell.q) for cell in measured)
    cells = [Cell(name, 0, 0) for name in SIZELESS if name in plain]
    for kv, q in pairs:
        cells += [cell for cell in measured if (cell.kv, cell.q) == (kv, q) and memories]
        cells += [Cell(name, kv, q) for name in plain if name not in SIZELESS]
    return cells


def _cell(
    model: Model,
    parsed: ParsedName,
    size: int | str | None,
    wait: int | Literal["half"] | None,
    chunk: int,
    top_k: int | None,
) -> list[Cell]:
    """Return the cell of a memory in a list, empty if N >= M.

    The memory is made, which reports mistakes and gives the entries that a number of bytes holds.
    """
    from attendre_core.evaluation.controls import label_of
    from attendre_core.evaluation.sweep import Cell

    size = size if parsed.size is None else parsed.size
    if isinstance(size, int):
        if isinstance(wait, int) and wait >= size and not parsed.has("wait"):
            return []
        top_k = None if top_k is None else min(top_k, size)
    full = parsed.with_defaults(size, wait=wait, chunk=chunk, k=top_k)
    memory = model.with_memory(str(full)).memory
    return [] if memory is None else [Cell(label_of(str(parsed)), memory.kv_size, memory.q_size)]
