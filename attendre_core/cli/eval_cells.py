"""The cells that ``attendre eval`` measures, from names, sizes and waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.presets import MemoryConfig, ParsedName, parse, recommended

if TYPE_CHECKING:
    from attendre_core.evaluation.sweep import Cell
    from attendre_core.zoo import Model

__all__ = ["MODES", "POLICIES", "Wanted", "cells_for", "is_control", "names_of"]

#: Compared by default, in addition to the system recommended for the model.
POLICIES = ("MT", "AS", "LRA-sum", "LFA-1e-3")
#: How a context is read: through the memory, or with full attention before M entries are kept.
MODES = ("bounded", "oracle")


class Wanted(NamedTuple):
    """A parsed name, and whether it had ``+oracle``."""

    parsed: ParsedName
    oracle: bool = False


def names_of(texts: Sequence[str]) -> list[Wanted]:
    """Parse the names of memories and controls."""
    from attendre_core.evaluation.controls import CONTROLS, PIECEWISE, label_of, split_oracle

    for text in texts:
        label_of(text)  # Raises for options that do not apply.
    split = (split_oracle(text) for text in texts)
    known = (*CONTROLS, *PIECEWISE)
    return [Wanted(parse(bounded, known), oracle) for bounded, oracle in split]


def is_control(wanted: Wanted) -> bool:
    """Whether a name is just that of a control, to be measured at every size."""
    from attendre_core.evaluation.controls import CONTROLS, PIECEWISE

    parsed, oracle = wanted
    bare = not oracle and not parsed.options and parsed.size is None
    return bare and parsed.name in (*CONTROLS, *PIECEWISE)


def cells_for(
    model: Model,
    names: Sequence[Wanted],
    controls: Sequence[str],
    sizes: Sequence[int | str | None],
    waits: Sequence[int | Literal["half"]] | None,
    chunk: int,
    top_k: int | None,
    *,
    equal_bytes: bool = False,
    baseline: Wanted | None = None,
    modes: Sequence[str] = ("bounded",),
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
    equal_bytes, baseline
        Take ``sizes`` as those of the baseline (by default the first memory), and give every other
        name and control the most entries that fit into the bytes that the baseline takes.
    modes
        From `MODES`: how contexts are read with the names that do not say ``+oracle``. Controls
        are always bounded. At equal bytes, an oracle has as many entries as a control.
    """
    from attendre_core.evaluation.controls import ORACLE, SIZELESS
    from attendre_core.evaluation.sweep import Cell

    if not names:
        more = () if model.causal or waits is not None else ("wait=half",)
        names = [Wanted(parse("+".join((name, *more)))) for name in POLICIES]
        names = [*names, Wanted(parse(recommended(model.causal)))]
    plain = [wanted.parsed.name for wanted in names if is_control(wanted)]
    plain = list(dict.fromkeys([*plain, *controls]))
    memories = [wanted for wanted in names if not is_control(wanted)] or [Wanted(ParsedName("MT"))]
    first = memories[0] if baseline is None or baseline.parsed.name in SIZELESS else baseline
    reference = first.parsed
    # The control is a plain memory with a pin.
    reference = ParsedName("MT") if reference.name == "pinned" else reference
    #: Each cell, and the M and N of the controls that are measured with it.
    measured: dict[Cell, tuple[int, int]] = {}
    for number, size in enumerate(sizes):
        for wait in (None,) if waits is None else waits:
            grid = _Grid(model, wait, chunk, top_k)
            group = _equal(grid, reference, size) if equal_bytes else None
            for parsed, oracle in memories:
                if parsed.size is not None and number:
                    continue
                if group is None or parsed == reference or parsed.size is not None:
                    found = grid.memory(parsed, size)
                else:
                    found = _fitted(grid, parsed, reference, group[0])
                if found is None:
                    continue
                cell = grid.cell(parsed, found)
                beside = (cell.kv, cell.q) if group is None else group[1]
                for mode in ("oracle",) if oracle else modes:
                    if mode == "oracle":
                        fair = cell if group is None else cell._replace(kv=beside[0])
                        cell = fair._replace(policy=cell.policy + ORACLE)
                    measured.setdefault(cell, beside)
    if not measured:
        raise ConfigError(
            f"eval: every N of {list(waits or ())} is as large as every M, expected N < M. Use "
            "--wait 0 or --wait half."
        )
    cells = [Cell(name, 0, 0) for name in SIZELESS if name in plain]
    asked = not all(is_control(wanted) for wanted in names)
    for kv, q in dict.fromkeys(measured.values()):
        cells += [cell for cell, beside in measured.items() if beside == (kv, q) and asked]
        cells += [Cell(name, kv, q) for name in plain if name not in SIZELESS]
    return cells


class _Grid(NamedTuple):
    """What the names of a grid have in common; makes memories from them."""

    model: Model
    wait: int | Literal["half"] | None
    chunk: int
    top_k: int | None

    def memory(self, parsed: ParsedName, size: int | str | None) -> MemoryConfig | None:
        """Return a memory, with the entries that a number of bytes holds; None if N >= M.

        Making it reports mistakes in its name.
        """
        size = size if parsed.size is None else parsed.size
        top_k = None
        if isinstance(size, int):
            if isinstance(self.wait, int) and self.wait >= size and not parsed.has("wait"):
                return None
            top_k = None if self.top_k is None else min(self.top_k, size)
        full = parsed.with_defaults(size, wait=self.wait, chunk=self.chunk, k=top_k)
        return self.model.with_memory(str(full)).memory

    def cell(self, parsed: ParsedName, memory: MemoryConfig) -> Cell:
        """Return the cell of a memory."""
        from attendre_core.evaluation.controls import label_of
        from attendre_core.evaluation.sweep import Cell

        return Cell(label_of(str(parsed)), memory.kv_size, memory.q_size)


def _fitted(
    grid: _Grid, parsed: ParsedName, reference: ParsedName, budget: str
) -> MemoryConfig | None:
    """Return the largest memory in the bytes of the reference."""
    try:
        return grid.memory(parsed, budget)
    except ConfigError as error:
        raise ConfigError(
            f"eval: --equal-bytes gives {parsed} the {budget[:-1]} bytes that {reference} takes, "
            f"too few for it. Give a larger --size or a shorter --chunk. ({error})"
        ) from error


def _equal(
    grid: _Grid, reference: ParsedName, size: int | str | None
) -> tuple[str, tuple[int, int]] | None:
    """Return the bytes that the reference takes, and the M and N of controls in as many bytes."""
    from attendre_core.zoo.memories import shape_of

    memory = grid.memory(reference, size)
    if memory is None:
        return None
    part = grid.model.reading_part
    budget = f"{memory.nbytes(**shape_of(part, grid.model.dtype))}B"
    control = grid._replace(wait=memory.q_size).memory(ParsedName("MT"), budget)
    return budget, (memory.kv_size if control is None else control.kv_size, memory.q_size)
