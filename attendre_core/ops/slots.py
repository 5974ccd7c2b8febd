"""Read and write single slots of a memory without copying the rest more than needed.

A slot axis stands behind some leading axes::

    array   (*lead, slots, *rest)      index   (*lead, count)

`index` may have fewer leading axes or axes of length one; it is then shared by them.
"""

from __future__ import annotations

from attendre_core.backend import Array, kernel, namespace_of, numbers

__all__ = ["exchange_slots", "gather_slots", "slot_sources"]


def _aligned_index(index: Array, lead: tuple[int, ...]) -> Array:
    """Broadcast an index to the leading axes of an array: (B, S) to (B, 1, S) to (B, G, S)."""
    xp = namespace_of(index)
    missing = len(lead) + 1 - index.ndim
    shape = index.shape[:-1] + (1,) * missing + index.shape[-1:]
    return xp.broadcast_to(xp.reshape(index, shape), (*lead, index.shape[-1]))


def gather_slots(array: Array, index: Array, *, axis: int) -> Array:
    """Take the slots that ``index`` names.

    Parameters
    ----------
    array
        (lead..., slots, rest...), with the slots on ``axis``.
    index
        Integer, (lead..., count), or fewer leading axes (the first ones).

    Returns
    -------
    array
        (lead..., count, rest...).

    Examples
    --------
    >>> import numpy as np
    >>> gather_slots(np.asarray([[10, 20, 30]]), np.asarray([[2, 0]]), axis=1).tolist()
    [[30, 10]]
    """
    fast = kernel("gather_slots", array)
    if fast is not None:
        return fast(array, index, axis=axis)
    xp = namespace_of(array, index)
    where = _aligned_index(index, array.shape[:axis])
    rest = array.shape[axis + 1 :]
    where = xp.reshape(where, where.shape + (1,) * len(rest))
    where = xp.broadcast_to(where, (*array.shape[:axis], index.shape[-1], *rest))
    return xp.take_along_axis(array, where, axis=axis)


def slot_sources(index: Array, write: Array, slots: int) -> tuple[Array, Array]:
    """Turn "entry i goes to slot index[i]" around: which entry each slot takes, and whether.

    Parameters
    ----------
    index, write
        As in `exchange_slots`, (lead..., count).

    Returns
    -------
    source
        Integer, (lead..., slots): the entry; 0 where there is none.
    changed
        Boolean, (lead..., slots): there is one.
    """
    xp = namespace_of(index, write)
    slot = xp.astype(numbers(slots, index), index.dtype)
    turn = xp.astype(numbers(index.shape[-1], index), index.dtype)
    hit = (index[..., None, :] == slot[:, None]) & write[..., None, :]
    source = xp.sum(xp.where(hit, turn, xp.zeros_like(turn)), axis=-1, dtype=index.dtype)
    return source, xp.any(hit, axis=-1)


def exchange_slots(
    array: Array,
    index: Array,
    new: Array,
    write: Array,
    *,
    axis: int,
    donate: bool = False,
    sources: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Put new entries into slots and hand back what stood there.

    Parameters
    ----------
    array
        (lead..., slots, rest...), with the slots on ``axis``.
    index
        Integer, (lead..., count) or fewer leading axes. No slot may be named twice in a row.
    new
        (lead..., count, rest...), of the dtype of ``array``.
    write
        Boolean, shaped as ``index``: where False, the slot keeps what it holds.
    donate
        The caller gives ``array`` away: a kernel may write into it.
    sources
        `slot_sources` of the same index, if several arrays exchange by it.

    Returns
    -------
    array
        The array after writing. Unless donated, the argument is unchanged.
    displaced
        (lead..., count, rest...): what the named slots held before, written or not.

    Examples
    --------
    >>> import numpy as np
    >>> a, i, n = np.asarray([[10, 20, 30]]), np.asarray([[2, 0]]), np.asarray([[7, 8]])
    >>> after, before = exchange_slots(a, i, n, np.asarray([[True, False]]), axis=1)
    >>> after.tolist(), before.tolist()
    ([[10, 20, 7]], [[30, 10]])
    """
    fast = kernel("exchange_slots", array)
    if fast is not None:
        result: tuple[Array, Array] = fast(array, index, new, write, axis=axis, donate=donate)
        return result
    xp = namespace_of(array, index, new, write)
    displaced = gather_slots(array, index, axis=axis)
    lead, slots, rest = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    source, changed = slot_sources(index, write, slots) if sources is None else sources
    taken = gather_slots(new, source, axis=axis)
    missing = len(lead) + 1 - index.ndim
    changed = xp.reshape(changed, changed.shape[:-1] + (1,) * missing + (slots,) + (1,) * len(rest))
    return xp.where(changed, taken, array), displaced
