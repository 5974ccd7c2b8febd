"""Checks of arguments, with their messages.

Shapes and dtypes are always checked. Values (NaN, infinity, too many pins) are checked where they
can be read without stalling a device: in eager code on the CPU. `value_checks` turns that off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from attendre_core.backend import (
    Array,
    Namespace,
    backend_of,
    known_array_types,
    namespace_of,
    numbers,
)
from attendre_core.errors import ConfigError, DTypeError, NonFiniteError, ShapeError, StateError
from attendre_core.ops.counting import LARGEST, finite_entries, running_count
from attendre_core.tree import same_nesting, tree_leaves

__all__ = ["FIRST_POSITION", "LAST_POSITION", "value_checks"]

#: Positions and counters are int32; the largest number marks empty slots in masks.
LAST_POSITION = 2**31 - 2
#: Negative positions are for what a caller puts before a stream.
FIRST_POSITION = -(2**30)
_BITS = 32

_ONE_EACH = "Give one number to each entry of each row."

_VALUES: ContextVar[bool] = ContextVar("value_checks", default=True)


@contextmanager
def value_checks(on: bool) -> Iterator[None]:
    """Turn the checks that read array values on or off inside a ``with`` block.

    It applies to this thread or task only. The checks are on by default, run only in eager code
    on the CPU, and take one pass over the new chunk. With them off, and in compiled code, an entry
    with NaN or infinity is refused (returned as evicted), and such a query gets NaN as its output
    and does not change any score.

    Examples
    --------
    >>> with value_checks(False):
    ...     pass
    """
    token = _VALUES.set(on)
    try:
        yield
    finally:
        _VALUES.reset(token)


def may_read(array: Array) -> bool:
    """Return whether a check may read the values of this array now."""
    # In this order, because compilers can trace the first part but not the second.
    return bool(backend_of(array).is_concrete(array)) and _VALUES.get()


def whole_number(where: str, name: str, value: Any, *, least: int, hint: str) -> None:
    """Refuse anything but an int of at least ``least`` that int32 can count."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{where}: {name} is {value!r}, expected a whole number of at least {least}. {hint}"
        )
    if value > LAST_POSITION + 1:
        raise ConfigError(
            f"{where}: {name} is {value}, expected at most {LAST_POSITION + 1}, the largest number "
            f"that int32 can hold. {hint}"
        )


def dtype_named(xp: Namespace, dtype: Any) -> Any:
    """Translate a dtype of any library, or its name, to the dtype of this namespace."""
    if dtype is None:
        return xp.float32
    name = dtype if isinstance(dtype, str) else dtype_name(dtype)
    found = getattr(xp, name, None)
    if found is None:
        raise DTypeError(f"dtype: {xp.__name__} has no dtype {name!r}. Use float32.")
    return found


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, the same on every library: ``"float32"``."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).rpartition(".")[2]


def shape(
    where: str, name: str, array: Array, axes: str, expected: tuple[Any, ...], hint: str
) -> None:
    """Compare a shape with the expected one; None = any length."""
    given = tuple(array.shape)
    if given == expected or _fits(given, expected):
        return
    lengths = ", ".join(["any" if e is None else str(e) for e in expected])
    lengths += "," if len(expected) == 1 else ""
    raise ShapeError(f"{where}: {name} has shape {given}, expected ({axes}) = ({lengths}). {hint}")


def heads(where: str, name: str, array: Array, expected: tuple[Any, ...]) -> None:
    """Check an array (batch, seq, heads, head_dim), and say what another one looks like."""
    given = tuple(array.shape)
    if not _fits(given, expected):
        hint = _layout(name, given, expected)
        shape(where, name, array, "batch, seq, heads, head_dim", expected, hint)


def query_heads(where: str, query: Array, batch: int, kv_heads: int, dim: int) -> None:
    """Check queries: like `heads`, but there may be several for each K/V head."""
    heads(where, "query", query, (batch, None, None, dim))
    given = tuple(query.shape)
    if given[2] % kv_heads or not given[2]:
        swapped = given[1] and not given[1] % kv_heads
        raise ShapeError(
            f"{where}: query has {given[2]} heads, expected a multiple of {kv_heads} K/V heads. "
            + (_swapped("query") if swapped else "Each serves the same number of query heads.")
        )


def _layout(name: str, given: tuple[int, ...], expected: tuple[Any, ...]) -> str:
    """Recognise a wrong layout of heads, and return what to do about it."""
    if len(given) != 4:
        return "Split the heads: reshape the last axis to (heads, head_dim)."
    if _fits(given[1:], expected[1:]):
        return (
            f"The state has {expected[0]} rows, but {given[0]} were passed. Pass the rows that it "
            f"was made for, or make one with init(batch={given[0]})."
        )
    if _fits((given[2], given[1], given[3]), expected[1:]):
        return _swapped(name)
    if expected[1] not in (None, given[1]):
        return "Give one value to each key."
    return "init has fixed these sizes. Check the projection, or make a state for other sizes."


def _swapped(name: str) -> str:
    return (
        "This looks like (batch, heads, seq, head_dim), the layout of "
        f"scaled_dot_product_attention. Transpose it: {name}.swapaxes(1, 2)."
    )


def _fits(given: tuple[int, ...], expected: tuple[Any, ...]) -> bool:
    if len(given) != len(expected):
        return False
    for length, wanted in zip(given, expected, strict=True):
        if wanted is not None and length != wanted:
            return False
    return True


def boolean(where: str, name: str, array: Array) -> None:
    """Refuse anything but bool."""
    xp = namespace_of(array)
    if not xp.isdtype(array.dtype, "bool"):
        raise DTypeError(
            f"{where}: {name} has dtype {dtype_name(array.dtype)}, expected bool. "
            f"True marks what is real; write {name} != 0 to convert."
        )


def within_range(where: str, last: int) -> None:
    """Refuse a position or a number of entries that int32 cannot count."""
    if last > LAST_POSITION:
        raise StateError(
            f"{where}: position {last} is beyond {LAST_POSITION}, the last that a stream can have. "
            "Begin a new stream, or reset this row. Nothing was stored."
        )


def positions(where: str, name: str, array: Array, valid: Array | None = None) -> Array:
    """Refuse anything but signed integers, and return them as int32.

    Where values may be read, a valid position beyond the first or the last one is refused.
    Elsewhere a wider one that int32 cannot hold becomes the nearest that it can.
    """
    backend = backend_of(array)
    xp = backend.xp
    if not xp.isdtype(array.dtype, "signed integer"):
        raise DTypeError(
            f"{where}: {name} has dtype {dtype_name(array.dtype)}, expected int32. "
            "Positions are whole numbers."
        )
    read = may_read(array)
    if read and array.shape[0] and array.shape[1]:
        given = backend.to_numpy(array)
        if given.min() < FIRST_POSITION or given.max() > LAST_POSITION:
            _refuse_positions(where, given, valid)
    if array.dtype == xp.int32:
        return array
    if not read and xp.iinfo(array.dtype).bits > _BITS:
        array = xp.clip(array, FIRST_POSITION, LAST_POSITION)
    return xp.astype(array, xp.int32)


def _refuse_positions(where: str, given: Any, valid: Array | None) -> None:
    """Refuse the first valid position that no entry can have; padding may have any."""
    if valid is not None:
        if not may_read(valid):
            return
        given = given[backend_of(valid).to_numpy(valid)]
    for last in given[given > LAST_POSITION][:1]:
        within_range(where, int(last))
    for first in given[given < FIRST_POSITION][:1]:
        raise StateError(
            f"{where}: position {first} is before {FIRST_POSITION}, the first that a stream can "
            "have. Mark padding with valid=False, or count from a later position. Nothing was "
            "stored."
        )


def same_dtype(where: str, name: str, array: Array, dtype: Any) -> None:
    """Refuse an array whose dtype is not that of the memory."""
    if array.dtype != dtype:
        wanted = dtype_name(dtype)
        raise DTypeError(
            f"{where}: {name} has dtype {dtype_name(array.dtype)}, expected {wanted}, the dtype "
            f"of the memory. Cast it, or make the memory with init(..., dtype={wanted!r})."
        )


def finite_rows(
    where: str,
    name: str,
    array: Array,
    valid: Array,
    keep: tuple[int, ...],
    below: float = LARGEST,
) -> Array:
    """Return which entries are all finite and not too large; raise if a valid one is not.

    Parameters
    ----------
    valid
        Boolean, shaped as the result: the entries that must be finite.
    keep
        The axes of ``array`` that the result keeps.
    below
        Numbers of this size count as infinity: products of them would not fit into float32.
    """
    finite = finite_entries(array, keep, below)
    if may_read(finite):
        bad = valid & ~finite
        if bool(namespace_of(bad).any(bad)):
            more = "" if below == math.inf else f", or a number of {below:.0e} or more,"
            raise NonFiniteError(
                f"{where}: {name} has NaN or infinity{more} at (batch, seq) = {_first_true(bad)}, "
                "expected finite numbers. Look for an overflow before this call, or mark the entry "
                "with valid=False. Nothing was stored."
            )
    return finite


def finite_scores(where: str, score: Array, counted: Array) -> Array:
    """Return which scores are finite; raise if a counted one is not."""
    finite = finite_entries(score, tuple(range(score.ndim)))
    if may_read(finite) and bool(namespace_of(finite).any(counted & ~finite)):
        raise NonFiniteError(
            f"{where} scored an entry with NaN or infinity, expected finite scores. Check the "
            "policy, or scale queries and keys down. The state passed in is unchanged."
        )
    return finite


def finite_logits(where: str, logits: Any) -> None:
    """Refuse logits of a model, in NumPy, of which nothing can be chosen."""
    if not np.isfinite(logits).all():
        raise _not_finite(where, "a logit", ": nothing can be chosen")


def finite_results(where: str, name: str, found: Array) -> None:
    """Refuse NaN or infinity in what a model made of a text, where values may be read."""
    xp = namespace_of(found)
    if may_read(found) and not bool(xp.all(xp.isfinite(found))):
        raise _not_finite(where, name)


def _not_finite(where: str, name: str, so: str = "") -> NonFiniteError:
    return NonFiniteError(
        f"{where}: {name} is NaN or infinity, expected finite numbers{so}. Look for such weights "
        "in the checkpoint, or take a wider dtype."
    )


def _first_true(flags: Array) -> tuple[int, ...]:
    flat = backend_of(flags).to_numpy(flags)
    return tuple(int(i) for i in zip(*flat.nonzero(), strict=True).__next__())


def belongs(
    where: str, state: Any, kind: type, fields: dict[str, tuple[Any, ...]], spec: object
) -> None:
    """Refuse a state that was made by another kind of memory or for other sizes."""
    if not isinstance(state, kind):
        raise StateError(
            f"{where}: the state is a {type(state).__name__}, expected a {kind.__name__}. "
            "Pass the state that init or the last call of this memory returned."
        )
    for name, expected in fields.items():
        given = tuple(getattr(state, name).shape)
        if not _fits(given, expected):
            lengths = ", ".join("any" if e is None else str(e) for e in expected)
            raise StateError(
                f"{where}: the state's {name} has shape {given}, expected ({lengths}) for "
                f"{spec!r}. "
                "This state was made by another memory; make one with this memory's init."
            )


def key_value_state(where: str, memory: Any, state: Any) -> None:
    """Refuse a state that was not made by this key-value memory."""
    if type(state).__name__ != "KeyValueState":
        raise StateError(
            f"{where}: the state is a {type(state).__name__}, expected a KeyValueState. "
            "Pass the state that init or the last call of this memory returned."
        )
    slots = state.key.shape[2]
    if slots < memory.size or memory.present == "compete":
        slots = memory.size
    heads = (None,) if memory.per_head else ()
    record = (None, *heads, slots)
    fields = {"key": (None, None, slots, None), "position": record, "score": record}
    belongs(where, state, type(state), fields, memory)


def same_library(where: str, *trees: Any) -> Namespace:
    """Return the namespace that all arrays share; raise if they are of two libraries."""
    found = None
    for tree in trees:
        for part in tree if type(tree) is tuple else (tree,):
            if part is None:
                continue
            this = known_array_types.get(type(part))
            if this is None or this is not (found or this):
                return namespace_of(*tree_leaves(trees))
            found = this
    return namespace_of() if found is None else found.xp


def row_index(where: str, index: Array, batch: int) -> None:
    """Refuse anything but a one-dimensional array of row numbers."""
    xp = namespace_of(index)
    if not xp.isdtype(index.dtype, "integral"):
        raise DTypeError(
            f"{where}: index has dtype {dtype_name(index.dtype)}, expected integers. "
            "It names the row to take for each row of the result."
        )
    if index.ndim != 1:
        raise ShapeError(
            f"{where}: index has shape {tuple(index.shape)}, expected (new batch,). "
            "It names the row to take for each row of the result."
        )
    some = may_read(index) and index.shape[0] > 0
    if some and (int(xp.min(index)) < 0 or int(xp.max(index)) >= batch):
        raise ShapeError(
            f"{where}: index names a row outside 0..{batch - 1}. Take rows that exist."
        )


def flags(
    where: str,
    name: str,
    given: Array | None,
    expected: tuple[int, int],
    like: Array,
    *,
    default: bool,
) -> Array:
    """Check boolean flags, (batch, seq); if None, fill them with the default."""
    if given is None:
        found = backend_of(like)
        return found.xp.full(expected, default, dtype=found.xp.bool, device=found.device_of(like))
    boolean(where, name, given)
    shape(where, name, given, "batch, seq", expected, "Give one flag to each entry.")
    return given


def metadata(where: str, stored: Any, given: Any, lead: tuple[int, int], record_axes: int) -> None:
    """Refuse metadata that differs in structure, shape or dtype from init's example."""
    if stored is None and given is None:
        return
    if (stored is None) != (given is None):
        told = "none was given to init" if stored is None else "init was given an example"
        raise ConfigError(
            f"{where}: aux was {'left out' if given is None else 'passed'}, but {told}. Pass the "
            "same nested arrays to init(aux=...) and to every insert."
        )
    try:
        same_nesting(stored, given)
        pairs = list(zip(tree_leaves(stored), tree_leaves(given), strict=True))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ConfigError(
            f"{where}: the metadata is nested in another way than what init was shown. "
            "Pass the same structure of tuples and dicts."
        ) from error
    for old, new in pairs:
        expected = (*lead, *old.shape[record_axes:])
        if tuple(new.shape) != expected:
            raise ShapeError(
                f"{where}: an array of the metadata has shape {tuple(new.shape)}, expected "
                f"{expected}. All that travels with the entries starts with (batch, seq)."
            )
        same_dtype(where, "an array of the metadata", new, old.dtype)


def room_for_pins(where: str, size: int, held: Array, pins: Array) -> None:
    """Refuse more pinned entries than the memory holds, where values may be read."""
    if not may_read(pins):
        return
    to_numpy = backend_of(pins).to_numpy
    before = to_numpy(held)
    before = before[:, 0, :] if before.ndim == 3 else before
    most = int((before.sum(axis=1) + to_numpy(pins).sum(axis=1)).max())
    if most > size:
        raise ConfigError(
            f"{where}: {most} entries of a row would be pinned, but the memory holds {size}. "
            "Pin fewer, or enlarge the memory. Nothing was stored."
        )


def numbered(clock: Array, valid: Array | None, like: Array) -> Array:
    """Return the arrival numbers of a chunk, (batch, seq); without flags, all are valid."""
    if may_read(clock):
        for count in backend_of(clock).to_numpy(clock).tolist():
            if not 0 <= count <= LAST_POSITION + 1 - like.shape[1]:
                _refuse_count(count, like.shape[1])
    if valid is None:
        return clock[:, None] + numbers(like.shape[1], like)
    return clock[:, None] + running_count(valid) - 1


def _refuse_count(count: int, new: int) -> None:
    within_range("insert", count + new - 1)
    raise StateError(
        f"insert: a row has counted {count} entries: its state is damaged, or compiled code, which "
        "cannot look, went on beyond the last position. Reset the row."
    )


def in_spans(position: Array, spans: tuple[tuple[int, int], ...]) -> Array:
    """Return which positions are in one of the spans, whose ends int32 may not hold."""
    inside = namespace_of(position).zeros_like(position) > 0
    for span in spans:
        first, stop = (min(place, LAST_POSITION + 1) for place in span)
        inside = inside | ((position >= first) & (position < stop))
    return inside


class Entries(NamedTuple):
    """New entries as checked by `entries`; all arrays are (batch, seq)."""

    position: Array
    valid: Array
    enter: Array
    score: Array
    pinned: Array
    arrival: Array


def entries(
    where: str,
    memory: Any,
    state: Any,
    key: Array,
    value: Array,
    position: Array | None,
    valid: Array | None,
    aux: Any,
    pinned: Array | None,
    score: Array | None,
) -> Entries:
    """Check a chunk to be inserted into a key-value memory, and number its entries."""
    xp = namespace_of(state.key)
    batch, kv_heads, _, dim = state.key.shape
    heads(where, "key", key, (batch, None, kv_heads, dim))
    lead = (batch, key.shape[1])
    heads(where, "value", value, (*lead, kv_heads, state.value.shape[3]))
    same_dtype(where, "key", key, state.key.dtype)
    same_dtype(where, "value", value, state.value.dtype)
    arrival, full = numbered(state.clock, valid, key), valid is None
    valid = flags(where, "valid", valid, lead, key, default=True)
    if position is None:
        position = arrival
    else:
        shape(where, "position", position, "batch, seq", lead, _ONE_EACH)
        position = positions(where, "position", position, valid)
    enter = finite_rows(where, "key", key, valid, (0, 1))
    enter = enter & finite_rows(where, "value", value, valid, (0, 1))
    if not full:
        enter = valid & enter
    start = xp.zeros_like(valid, dtype=state.score.dtype)
    if score is not None:
        shape(where, "score", score, "batch, seq", lead, _ONE_EACH)
        enter = enter & finite_rows(where, "score", score, valid, (0, 1), math.inf)
        start = xp.where(enter, xp.astype(score, start.dtype), start)
    pins = flags(where, "pinned", pinned, lead, key, default=False)
    if memory.pin:
        pins = pins | in_spans(position, memory.pin)
    if memory.pin or pinned is not None:
        pins = pins & enter
        room_for_pins(where, memory.size, state.pinned & state.valid, pins)
    metadata(where, state.aux, aux, lead, state.valid.ndim)
    return Entries(position, valid, enter, start, pins, arrival)
