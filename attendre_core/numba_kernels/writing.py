"""Write whole entries of all heads into their slots."""

from __future__ import annotations

from attendre_core.backend import Array
from attendre_core.numba_kernels.toolchain import compiled

__all__ = ["write_entries"]


@compiled()
def write_entries(array: Array, new: Array, slot: Array, write: Array) -> None:
    """Overwrite slots.

    Parameters
    ----------
    array
        (batch, heads, slots, dim).
    new
        (batch, count, heads, dim): the layout in which entries arrive.
    slot, write
        (batch, count): the slot of each entry, and whether to write it.
    """
    for row in range(array.shape[0]):
        for i in range(slot.shape[1]):
            if write[row, i]:
                here = slot[row, i]
                for head in range(array.shape[1]):
                    for d in range(array.shape[3]):
                        array[row, head, here, d] = new[row, i, head, d]
