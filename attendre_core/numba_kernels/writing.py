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
        (batch, count, heads, dim): as entries arrive, the heads of one side by side.
    slot, write
        (batch, count): where an entry goes, and whether it goes there.
    """
    for row in range(array.shape[0]):
        for i in range(slot.shape[1]):
            if write[row, i]:
                here = slot[row, i]
                for head in range(array.shape[1]):
                    for d in range(array.shape[3]):
                        array[row, head, here, d] = new[row, i, head, d]
