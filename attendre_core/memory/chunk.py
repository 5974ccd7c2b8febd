"""A chunk on its way into a key-value memory: checked, numbered, in the memory's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core import checks
from attendre_core.backend import Array, backend_of, numbers
from attendre_core.errors import ConfigError, ShapeError
from attendre_core.memory.state import KeyValueState
from attendre_core.ops.branches import all_true
from attendre_core.ops.counting import count_true, running_count
from attendre_core.ops.finite import surely_finite
from attendre_core.tree import tree_leaves, tree_map

if TYPE_CHECKING:
    from attendre_core.memory.key_value import KeyValueMemory

__all__ = ["NewEntries", "check_metadata", "new_entries"]


class NewEntries(NamedTuple):
    """New entries in the layout of the state: records are (batch, seq) [(batch, G, seq)].

    ``enter`` is what may enter: valid and finite. ``count`` and ``clock`` are (batch,): how many
    may enter, and the clock after them. ``scored``: the caller gave the scores. ``plain``: all
    are known to be real, finite and not pinned, and they stand in the order of arrival.
    """

    key: Array
    value: Array
    position: Array
    valid: Array
    enter: Array
    score: Array
    arrival: Array
    pinned: Array
    observed: Array
    aux: Any
    count: Array
    clock: Array
    scored: bool
    plain: bool = False

    def padded(self, other: NewEntries) -> NewEntries:
        """Put padding entries behind."""
        xp = backend_of(self.key).xp
        axis = self.valid.ndim - 1

        def joined(name: str) -> Array:
            at = 2 if name in ("key", "value") else axis
            return xp.concat([getattr(self, name), getattr(other, name)], axis=at)

        return self._replace(
            plain=False,
            aux=tree_map(lambda a, b: xp.concat([a, b], axis=axis), self.aux, other.aux),
            **{name: joined(name) for name in self._fields[:9]},
        )

    @property
    def broken(self) -> Array:
        """Boolean, shaped as the records: real, but with NaN or infinity, so it may not enter."""
        return self.valid & ~self.enter

    def cleared(self, slot: Array, slots: int) -> NewEntries:
        """Make padding fit to be written: what it leaves behind is an empty slot of zeros."""
        xp = backend_of(self.key).xp
        empty = xp.astype(slot, xp.int32) - slots
        real = self.valid if self.valid.ndim == 3 else self.valid[:, None, :]

        def blank(x: Array) -> Array:
            # Not only hidden: a weight of zero times NaN is NaN.
            return xp.where(real[..., None], x, xp.zeros_like(x))

        return self._replace(
            key=blank(self.key),
            value=blank(self.value),
            position=xp.where(self.valid, self.position, xp.full_like(self.position, -1)),
            score=xp.where(self.valid, self.score, xp.zeros_like(self.score)),
            arrival=xp.where(self.valid, self.arrival, empty),
        )


def new_entries(
    where: str,
    memory: KeyValueMemory,
    state: KeyValueState,
    key: Array,
    value: Array,
    position: Array | None,
    valid: Array | None,
    aux: Any,
    pinned: Array | None,
    score: Array | None,
) -> NewEntries:
    """Check what a caller inserts and bring it into the layout of the state."""
    xp = backend_of(state.key).xp
    batch, heads, _, dim = state.key.shape
    axes = "batch, seq, heads, head_dim"
    hint = "Split the heads before inserting."
    checks.shape(where, "key", key, axes, (batch, None, heads, dim), hint)
    seq = key.shape[1]
    checks.shape(where, "value", value, axes, (batch, seq, heads, state.value.shape[3]), hint)
    checks.same_dtype(where, "key", key, state.key.dtype)
    checks.same_dtype(where, "value", value, state.value.dtype)
    valid = check_flags(where, "valid", valid, (batch, seq), key, default=True)
    whole = all_true(valid)
    if whole:
        arrival = state.clock[:, None] + numbers(seq, key)
    else:
        number = running_count(valid)
        arrival = state.clock[:, None] + number - 1
    if position is None:
        position = arrival
    else:
        checks.shape(where, "position", position, "batch, seq", (batch, seq), _ONE_EACH)
        position = checks.positions(where, "position", position)
    plain = whole and score is None and surely_finite(key) and surely_finite(value)
    enter = valid
    if not plain:
        finite = checks.finite_rows(where, "key", key, valid, (0, 1))
        finite = finite & checks.finite_rows(where, "value", value, valid, (0, 1))
        if score is not None:
            checks.shape(where, "score", score, "batch, seq", (batch, seq), _ONE_EACH)
            finite = finite & checks.finite_rows(where, "score", score, valid, (0, 1))
        enter = valid & finite
    pins = check_flags(where, "pinned", pinned, (batch, seq), key, default=False)
    if memory.pin or pinned is not None:
        for start, stop in memory.pin:
            pins = pins | ((position >= start) & (position < stop))
        pins = pins & enter
        plain = False
        _check_pins(where, memory.size, state, pins)
    kind = state.score.dtype
    if score is not None:
        score = xp.where(enter, xp.astype(score, kind), xp.zeros_like(score, dtype=kind))
    check_metadata(where, state.aux, aux, (batch, seq), state.valid.ndim)
    if not whole:
        padding = -1 - numbers(seq, key)
        arrival = xp.where(valid, arrival, xp.zeros_like(arrival) + padding)

    def record(x: Array) -> Array:
        """Give a (batch, seq, ...) array the axes of the state's records."""
        if not memory.per_head:
            return x
        return xp.broadcast_to(x[:, None, ...], (batch, heads, *x.shape[1:]))

    return NewEntries(
        key=xp.permute_dims(key, (0, 2, 1, 3)),
        value=xp.permute_dims(value, (0, 2, 1, 3)),
        position=record(position),
        valid=record(valid),
        enter=record(enter),
        score=record(xp.zeros_like(valid, dtype=kind) if score is None else score),
        arrival=record(arrival),
        pinned=record(pins),
        observed=record(xp.zeros_like(valid)),
        aux=tree_map(record, aux),
        count=xp.full_like(state.clock, seq) if plain else count_true(enter, axis=1),
        clock=state.clock + (seq if whole else count_true(valid, axis=1)),
        scored=score is not None,
        plain=plain,
    )


_ONE_EACH = "Give one number to each entry of each row."


def check_flags(
    where: str,
    name: str,
    flags: Array | None,
    expected: tuple[int, int],
    like: Array,
    *,
    default: bool,
) -> Array:
    """Check boolean flags, (batch, seq), or make them all the default."""
    if flags is None:
        found = backend_of(like)
        return found.xp.full(expected, default, dtype=found.xp.bool, device=found.device_of(like))
    checks.boolean(where, name, flags)
    checks.shape(where, name, flags, "batch, seq", expected, "Give one flag to each entry.")
    return flags


def check_metadata(
    where: str, stored: Any, given: Any, lead: tuple[int, int], record_axes: int
) -> None:
    """Refuse metadata that differs in structure, shape or dtype from what init was shown."""
    if (stored is None) != (given is None):
        told = "none was given to init" if stored is None else "init was given an example"
        raise ConfigError(
            f"{where}: aux was {'left out' if given is None else 'passed'}, but {told}. Pass the "
            "same nested arrays to init(aux=...) and to every insert."
        )
    try:
        pairs = list(zip(tree_leaves(stored), tree_leaves(given), strict=True))
        tree_map(lambda a, b: None, stored, given)
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
        checks.same_dtype(where, "an array of the metadata", new, old.dtype)


def _check_pins(where: str, size: int, state: KeyValueState, pins: Array) -> None:
    """Refuse more pinned entries than slots, where values may be read."""
    xp = backend_of(pins).xp
    if not checks.may_read(pins):
        return
    held = state.pinned & state.valid
    if held.ndim == 3:
        held = held[:, 0, :]
    total = count_true(held, axis=1) + count_true(pins, axis=1)
    most = int(xp.max(total))
    if most > size:
        raise ConfigError(
            f"{where}: {most} entries of a row would be pinned, but the memory holds {size}. "
            "Pin fewer, or enlarge the memory. Nothing was stored."
        )
