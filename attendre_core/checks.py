"""Every check of what a caller passes in, and its message.

Shapes and dtypes are always checked. Values (NaN, infinity, too many pins) are checked when they
may be read without stalling anything: eager code on the CPU. `value_checks` turns that off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attendre_core.backend import (
    Array,
    Namespace,
    backend_of,
    known_array_types,
    namespace_of,
)
from attendre_core.errors import ConfigError, DTypeError, NonFiniteError, ShapeError, StateError
from attendre_core.ops.finite import surely_finite
from attendre_core.tree import tree_leaves

__all__ = ["value_checks"]

_VALUES = [True]


@contextmanager
def value_checks(on: bool) -> Iterator[None]:
    """Turn the checks that read array values on or off inside a ``with`` block.

    They are on by default, run only in eager code on the CPU and cost one pass over the new
    chunk. With them off, and in compiled code, an entry with a NaN or infinity is refused
    (handed back as evicted) and a query with one scores nothing.

    Examples
    --------
    >>> with value_checks(False):
    ...     pass
    """
    before = _VALUES[0]
    _VALUES[0] = on
    try:
        yield
    finally:
        _VALUES[0] = before


def may_read(array: Array) -> bool:
    """Whether a check may look at the values of this array now."""
    return _VALUES[0] and bool(backend_of(array).is_concrete(array))


def whole_number(where: str, name: str, value: Any, *, least: int, hint: str) -> None:
    """Refuse anything but an int of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{where}: {name} is {value!r}, expected a whole number of at least {least}. {hint}"
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
    """Name a dtype the same on every library: ``"float32"``."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).rpartition(".")[2]


def shape(
    where: str, name: str, array: Array, axes: str, expected: tuple[Any, ...], hint: str
) -> None:
    """Compare a shape with the expected one; None stands for any length."""
    given = tuple(array.shape)
    if len(given) == len(expected) and all(
        e is None or g == e for g, e in zip(given, expected, strict=True)
    ):
        return
    lengths = ", ".join("any" if e is None else str(e) for e in expected)
    lengths += "," if len(expected) == 1 else ""
    raise ShapeError(f"{where}: {name} has shape {given}, expected ({axes}) = ({lengths}). {hint}")


def boolean(where: str, name: str, array: Array) -> None:
    """Refuse anything but bool."""
    xp = namespace_of(array)
    if not xp.isdtype(array.dtype, "bool"):
        raise DTypeError(
            f"{where}: {name} has dtype {dtype_name(array.dtype)}, expected bool. "
            f"True marks what is real; write {name} != 0 to convert."
        )


def positions(where: str, name: str, array: Array) -> Array:
    """Refuse anything but signed integers, and return them as int32."""
    xp = namespace_of(array)
    if not xp.isdtype(array.dtype, "signed integer"):
        raise DTypeError(
            f"{where}: {name} has dtype {dtype_name(array.dtype)}, expected int32. "
            "Positions are whole numbers."
        )
    return array if array.dtype == xp.int32 else xp.astype(array, xp.int32)


def same_dtype(where: str, name: str, array: Array, dtype: Any) -> None:
    """Refuse an array whose dtype is not that of the memory."""
    if array.dtype != dtype:
        wanted = dtype_name(dtype)
        raise DTypeError(
            f"{where}: {name} has dtype {dtype_name(array.dtype)}, expected {wanted}, the dtype "
            f"of the memory. Cast it, or make the memory with init(..., dtype={wanted!r})."
        )


def finite_rows(where: str, name: str, array: Array, valid: Array, keep: tuple[int, ...]) -> Array:
    """Tell which entries hold only finite numbers; raise if a valid one does not.

    Parameters
    ----------
    valid
        Boolean: entries that matter, shaped as the result.
    keep
        The axes of ``array`` that the result keeps.
    """
    xp = namespace_of(array, valid)
    if surely_finite(array):
        return xp.ones_like(valid)
    axes = tuple(axis for axis in range(array.ndim) if axis not in keep)
    finite = xp.isfinite(array)
    if axes:
        finite = xp.all(finite, axis=axes)
    if may_read(finite):
        bad = valid & ~finite
        if bool(xp.any(bad)):
            first = _first_true(bad)
            raise NonFiniteError(
                f"{where}: {name} has NaN or infinity at (batch, seq) = {first}, expected finite "
                "numbers. Look for an overflow before this call, or mark the entry with "
                "valid=False. Nothing was stored."
            )
    return finite


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
        if len(given) != len(expected) or any(
            e is not None and g != e for g, e in zip(given, expected, strict=True)
        ):
            lengths = ", ".join("any" if e is None else str(e) for e in expected)
            raise StateError(
                f"{where}: the state's {name} has shape {given}, expected ({lengths}) for "
                f"{spec!r}. "
                "This state was made by another memory; make one with this memory's init."
            )


def same_library(where: str, *trees: Any) -> Namespace:
    """Find the one namespace of all arrays, or say where two libraries met."""
    leaves: list[Array] = []
    for tree in trees:
        for part in tree if type(tree) is tuple else (tree,):
            if type(part) in known_array_types:
                leaves.append(part)
            else:
                leaves.extend(tree_leaves(part))
    return namespace_of(*leaves)
