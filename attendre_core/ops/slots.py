"""Read and write single slots of a memory without copying the rest more than needed.

A slot axis stands behind some leading axes::

    array   (*lead, slots, *rest)      index   (*lead, count)

`index` may have fewer leading axes or axes of length one; it is then shared by them.
"""

from __future__ import annotations

from collections.abc import Sequence

from attendre_core.backend import Array, kernel, namespace_of, numbers

__all__ = ["exchange_slots", "gather_slots", "slot_sources", "write_slots"]


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
    arrays: Sequence[Array],
    index: Array,
    new: Sequence[Array],
    write: Array,
    *,
    axis: int,
    donate: bool = False,
    sources: tuple[Array, Array] | None = None,
) -> tuple[list[Array], list[Array]]:
    """Put new entries into slots of several arrays and hand back what they displaced.

    Parameters
    ----------
    arrays
        Each (lead..., slots, rest...), with the slots on ``axis``; the leading axes and the
        slots are the same for all.
    index
        Integer, (lead..., count) or fewer leading axes. No slot may be named twice in a row.
    new
        For each array its entries, (lead..., count, rest...), of its dtype.
    write
        Boolean, shaped as ``index``: where False, the slot keeps what it holds.
    donate
        The caller gives ``arrays`` away: a kernel may write into them.
    sources
        `slot_sources` of the same index, if it is used more than once.

    Returns
    -------
    arrays
        After writing. Unless donated, the arguments are unchanged.
    back
        For each array (lead..., count, rest...): what the slot held, or the new entry itself
        where it was not written.

    Examples
    --------
    >>> import numpy as np
    >>> a, i, n = np.asarray([[10, 20, 30]]), np.asarray([[2, 0]]), np.asarray([[7, 8]])
    >>> after, back = exchange_slots([a], i, [n], np.asarray([[True, False]]), axis=1)
    >>> after[0].tolist(), back[0].tolist()
    ([[10, 20, 7]], [[30, 8]])
    """
    if not arrays:
        return [], []
    fast = kernel("exchange_slots", index)
    if fast is not None:
        result: tuple[list[Array], list[Array]] = fast(
            arrays, index, new, write, axis=axis, donate=donate
        )
        return result
    xp = namespace_of(index, write)
    slots = arrays[0].shape[axis]
    source, changed = slot_sources(index, write, slots) if sources is None else sources
    after, back = [], []
    for array, entries in zip(arrays, new, strict=True):
        displaced = gather_slots(array, index, axis=axis)
        taken = gather_slots(entries, source, axis=axis)
        after.append(xp.where(_aligned_flags(changed, axis, array.ndim), taken, array))
        back.append(xp.where(_aligned_flags(write, axis, array.ndim), displaced, entries))
    return after, back


def write_slots(
    arrays: Sequence[Array],
    index: Array,
    new: Sequence[Array],
    write: Array,
    *,
    axis: int,
    donate: bool = False,
) -> list[Array]:
    """Put new entries into slots of several arrays, without asking what was there.

    Parameters and the first result are those of `exchange_slots`.

    Examples
    --------
    >>> import numpy as np
    >>> a, i, n = np.asarray([[10, 20, 30]]), np.asarray([[2, 0]]), np.asarray([[7, 8]])
    >>> write_slots([a], i, [n], np.asarray([[True, False]]), axis=1)[0].tolist()
    [[10, 20, 7]]
    """
    if not arrays:
        return []
    fast = kernel("write_slots", index)
    if fast is not None:
        result: list[Array] = fast(arrays, index, new, write, axis=axis, donate=donate)
        return result
    return exchange_slots(arrays, index, new, write, axis=axis, donate=donate)[0]


def _aligned_flags(flags: Array, axis: int, ndim: int) -> Array:
    """Shape (B, S) so that it meets (B, G, S, ...): the slots on ``axis`` of ``ndim`` axes."""
    xp = namespace_of(flags)
    missing = axis + 1 - flags.ndim
    shape = flags.shape[:-1] + (1,) * missing + flags.shape[-1:] + (1,) * (ndim - axis - 1)
    return xp.reshape(flags, shape)
