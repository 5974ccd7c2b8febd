"""Read and write slots of a memory.

The axis of slots follows some leading axes::

    array   (*lead, slots, *rest)      index   (*lead, count)

`index` may have fewer leading axes, or axes of length one; it is then shared along the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from attendre_core.backend import Array, namespace_of, numbers, op
from attendre_core.ops.counting import count_true
from attendre_core.ops.selection import lowest

__all__ = [
    "count_evicted", "displaced", "fill", "gather_slots", "push_slots", "take_slots", "write_slots",
]  # fmt: skip

Two = tuple[Array, Array]


def _aligned_index(index: Array, lead: tuple[int, ...]) -> Array:
    """Broadcast an index to the leading axes of an array: (B, S) to (B, 1, S) to (B, G, S)."""
    xp = namespace_of(index)
    missing = len(lead) + 1 - index.ndim
    shape = index.shape[:-1] + (1,) * missing + index.shape[-1:]
    return xp.broadcast_to(xp.reshape(index, shape), (*lead, index.shape[-1]))


@op
def gather_slots(array: Array, index: Array, *, axis: int) -> Array:
    """Take the slots given by ``index``.

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
    xp = namespace_of(array, index)
    where = _aligned_index(index, array.shape[:axis])
    rest = array.shape[axis + 1 :]
    where = xp.reshape(where, where.shape + (1,) * len(rest))
    where = xp.broadcast_to(where, (*array.shape[:axis], index.shape[-1], *rest))
    return xp.take_along_axis(array, where, axis=axis)


@op
def take_slots(arrays: Sequence[Array], index: Array, *, axis: int) -> list[Array]:
    """Take the slots given by ``index`` from several arrays; as `gather_slots` from each.

    Examples
    --------
    >>> import numpy as np
    >>> take_slots([np.asarray([[10, 20, 30]])], np.asarray([[2, 0]]), axis=1)[0].tolist()
    [[30, 10]]
    """
    return [gather_slots(array, index, axis=axis) for array in arrays]


@op
def displaced(
    arrays: Sequence[Array], index: Array, new: Sequence[Array], write: Array, *, axis: int
) -> list[Array]:
    """Return what `write_slots` takes away: a slot's entry, or the new one that is not written.

    Parameters
    ----------
    arrays, index, new, write, axis
        As in `write_slots`.

    Returns
    -------
    arrays
        Each (lead..., count, rest...).

    Examples
    --------
    >>> import numpy as np
    >>> a, i, n = np.asarray([[10, 20, 30]]), np.asarray([[2, 0]]), np.asarray([[7, 8]])
    >>> displaced([a], i, [n], np.asarray([[True, False]]), axis=1)[0].tolist()
    [[30, 8]]
    """
    xp, gone = namespace_of(write), []
    for held, entries in zip(take_slots(arrays, index, axis=axis), new, strict=True):
        gone.append(xp.where(_aligned_flags(write, axis, held.ndim), held, entries))
    return gone


@op
def write_slots(
    arrays: Sequence[Array],
    index: Array,
    new: Sequence[Array],
    write: Array,
    *,
    axis: int,
    donate: bool = False,
) -> list[Array]:
    """Write new entries into slots of several arrays.

    Parameters
    ----------
    arrays
        At least one, each (lead..., slots, rest...), with the slots on ``axis``; leading axes and
        slots are the same for all.
    index
        Integer, (lead..., count) or fewer leading axes. No slot may occur twice in a row.
    new
        The entries for each array, (lead..., count, rest...), in its dtype.
    write
        Boolean, shaped as ``index``: where False, the slot keeps its entry.
    donate
        The caller will not use ``arrays`` again: a kernel may write into them.

    Returns
    -------
    arrays
        After writing. Unless donated, the arguments are unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> a, i, n = np.asarray([[10, 20, 30]]), np.asarray([[2, 0]]), np.asarray([[7, 8]])
    >>> write_slots([a], i, [n], np.asarray([[True, False]]), axis=1)[0].tolist()
    [[10, 20, 7]]
    """
    xp = namespace_of(index, write)
    # Inverted: which entry each slot takes, and whether it takes one.
    slot = xp.astype(numbers(arrays[0].shape[axis], index), index.dtype)
    entry = xp.astype(numbers(index.shape[-1], index), index.dtype)
    hit = (index[..., None, :] == slot[:, None]) & write[..., None, :]
    source = xp.sum(xp.where(hit, entry, xp.zeros_like(entry)), axis=-1, dtype=index.dtype)
    changed = xp.any(hit, axis=-1)
    after = []
    for array, entries in zip(arrays, new, strict=True):
        taken = gather_slots(entries, source, axis=axis)
        after.append(xp.where(_aligned_flags(changed, axis, array.ndim), taken, array))
    return after


@op
def fill(x: Array, flags: Array, number: float) -> Array:
    """Replace ``x`` by a number where ``flags``, broadcastable to ``x``, is True.

    Examples
    --------
    >>> import numpy as np
    >>> fill(np.asarray([1.0, 2.0]), np.asarray([True, False]), 0.0).tolist()
    [0.0, 2.0]
    """
    return namespace_of(x, flags).where(flags, number, x)


@op
def push_slots(
    arrays: Sequence[Array], new: Sequence[Array], primary: Array | None, order: Array
) -> tuple[list[Array], list[Array]]:
    """Append new entries to the stored ones and push as many out, lowest rank first.

    Parameters
    ----------
    arrays, new
        Each (batch, slots, ...) and (batch, count, ...).
    primary, order
        (batch, slots + count), as in `lowest`, of the stored and the new entries.

    Returns
    -------
    kept, gone
        Each (batch, slots, ...) and (batch, count, ...), sorted by rank.

    Examples
    --------
    >>> import numpy as np
    >>> kept, gone = push_slots(
    ...     [np.asarray([[10, 20]])], [np.asarray([[30]])], None, np.asarray([[7, 3, 8]])
    ... )
    >>> kept[0].tolist(), gone[0].tolist()
    ([[10, 30]], [[20]])
    """
    xp = namespace_of(order, *arrays)
    index = lowest(primary, order, order.shape[-1])
    count = order.shape[-1] - arrays[0].shape[1]
    both = [xp.concat([a, b], axis=1) for a, b in zip(arrays, new, strict=True)]
    kept = [gather_slots(array, index[:, count:], axis=1) for array in both]
    return kept, [gather_slots(array, index[:, :count], axis=1) for array in both]


@op
def count_evicted(counts: Two, held: Two, slot: Array, new: Two, write: Array, since: Array) -> Two:
    """Add what new entries evict to the counts of evictions and of refusals.

    A new entry evicts what its slot held, or itself if it is not written.

    Parameters
    ----------
    counts
        int32, (batch,): evictions and refusals so far.
    held, new
        ``valid`` and ``arrival``, (batch, ..., slots) and (batch, ..., count).
    slot, write
        (batch, ..., count), as `attendre_core.ops.admit` returns them.
    since
        int32, (batch,): evicted entries with at least this arrival number are refused ones.

    Examples
    --------
    >>> import numpy as np
    >>> none, yes = np.zeros(1, dtype=np.int32), np.ones((1, 2), dtype=bool)
    >>> held, new = (yes, np.asarray([[0, 1]])), (yes, np.asarray([[2, 3]]))
    >>> slot, write = np.asarray([[1, 0]]), np.asarray([[True, False]])
    >>> count_evicted((none, none), held, slot, new, write, np.asarray([2]))
    (array([2], dtype=int32), array([1], dtype=int32))
    """
    xp, axis = namespace_of(slot, write), slot.ndim - 1
    gone, arrival = (
        xp.where(write, gather_slots(x, slot, axis=axis), y) for x, y in zip(held, new, strict=True)
    )
    late = arrival >= xp.reshape(since, since.shape + (1,) * axis)
    axes = tuple(range(1, axis + 1))
    return counts[0] + count_true(gone, axis=axes), counts[1] + count_true(gone & late, axis=axes)


def _aligned_flags(flags: Array, axis: int, ndim: int) -> Array:
    """Reshape (B, S) to broadcast against (B, G, S, ...), with S on ``axis`` of ``ndim`` axes."""
    xp = namespace_of(flags)
    missing = axis + 1 - flags.ndim
    shape = flags.shape[:-1] + (1,) * missing + flags.shape[-1:] + (1,) * (ndim - axis - 1)
    return xp.reshape(flags, shape)
