"""An array library whose values cannot be read: array-api-strict behind a wall.

The core, and every policy, must run without reading a value in Python: inside a compiled function
there is none, and on an accelerator reading one waits for the device. Arrays of this library have
shapes and dtypes and take part in every operation of the standard, but ``bool(x)``, ``int(x)``,
``float(x)``, ``x.item()``, iterating, converting to NumPy, boolean indexing and writing into an
array raise `ValueReadError`.

>>> import numpy as np
>>> from attendre_conformance import no_reads
>>> x = no_reads.backend().from_numpy(np.asarray([1.0, 2.0]))
>>> if no_reads.xp.any(x > 1.0):
...     pass
Traceback (most recent call last):
    ...
attendre_conformance.no_reads.ValueReadError: bool(x) reads a value of an array of shape ().
>>> no_reads.reveal(x + 1.0).tolist()
[2.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any, NoReturn

import array_api_strict
import numpy as np

import attendre_core as at
from attendre_core.backend import Backend, register_backend

__all__ = ["Array", "ValueReadError", "backend", "forbidden", "reveal", "xp"]

_Strict = type(array_api_strict.zeros(1))


class ValueReadError(RuntimeError):
    """A value of an array was read where only shapes and dtypes may be."""


class Array:
    """An array of array-api-strict that keeps its values to itself."""

    __slots__ = ("_inner",)
    #: Comparing makes arrays, so arrays cannot be found in a set.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"no_reads.Array(shape={self.shape}, dtype={self.dtype})"

    shape = property(lambda self: self._inner.shape)
    ndim = property(lambda self: self._inner.ndim)
    size = property(lambda self: self._inner.size)
    dtype = property(lambda self: self._inner.dtype)
    device = property(lambda self: self._inner.device)
    T = property(lambda self: _wrapped(self._inner.T))
    mT = property(lambda self: _wrapped(self._inner.mT))  # noqa: N815

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return xp

    def to_device(self, device: Any) -> Array:
        """Return the array on another device."""
        return Array(self._inner.to_device(device))

    def __getitem__(self, index: Any) -> Any:
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, Array) and part.dtype == array_api_strict.bool:
                raise ValueReadError(
                    f"x[flags] has as many entries as there are True flags, which are values: "
                    f"x of shape {self.shape}, flags of shape {part.shape}. Use xp.where."
                )
        return _wrapped(self._inner[_unwrapped(index)])

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise ValueReadError(
            f"x[...] = y writes into an array of shape {self.shape}: arrays of some libraries "
            "cannot be written to. Make a new one, for example with xp.where."
        )


def _refusing(name: str, what: str) -> Callable[..., NoReturn]:
    def refuse(self: Array, *arguments: Any, **options: Any) -> NoReturn:
        raise ValueReadError(f"{what} reads a value of an array of shape {self.shape}.")

    refuse.__name__ = name
    return refuse


def _operating(name: str) -> Callable[..., Any]:
    def operate(self: Array, *others: Any) -> Any:
        others = tuple(_unwrapped(other) for other in others)
        return _wrapped(getattr(self._inner, name)(*others))

    operate.__name__ = name
    return operate


for _name, _what in {
    "__bool__": "bool(x)",
    "__int__": "int(x)",
    "__float__": "float(x)",
    "__complex__": "complex(x)",
    "__index__": "x as an index",
    "__iter__": "iterating over x",
    "__contains__": "y in x",
    "__array__": "numpy.asarray(x)",
    "__dlpack__": "x.__dlpack__()",
    "item": "x.item()",
    "tolist": "x.tolist()",
    "numpy": "x.numpy()",
}.items():
    setattr(Array, _name, _refusing(_name, _what))

for _name in (
    *("lt", "le", "eq", "ne", "gt", "ge", "neg", "pos", "abs", "invert"),
    *(
        side + name
        for side in ("", "r")
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
            *("and", "or", "xor", "lshift", "rshift"),
        )
    ),
):
    setattr(Array, f"__{_name}__", _operating(f"__{_name}__"))


def _unwrapped(tree: Any) -> Any:
    if isinstance(tree, Array):
        return tree._inner
    if isinstance(tree, (list, tuple)):
        return type(tree)(_unwrapped(part) for part in tree)
    return tree


def _wrapped(tree: Any) -> Any:
    if isinstance(tree, _Strict):
        return Array(tree)
    if isinstance(tree, (list, tuple)):
        parts = [_wrapped(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


class _Namespace(ModuleType):
    """The functions of array-api-strict, for wrapped arrays."""

    #: Their results have a shape that depends on values.
    _BY_VALUE = frozenset(
        {"nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"}
    )

    def __getattr__(self, name: str) -> Any:
        found = getattr(array_api_strict, name)
        if isinstance(found, (type, ModuleType)) or not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            if name in self._BY_VALUE:
                raise ValueReadError(f"xp.{name} gives an array whose shape depends on values.")
            options = {key: _unwrapped(option) for key, option in options.items()}
            return _wrapped(found(*_unwrapped(arguments), **options))

        call.__name__ = name
        setattr(self, name, call)
        return call


#: The namespace of this library.
xp = _Namespace("no_reads")


def reveal(tree: Any) -> Any:
    """Read the values after all, as NumPy arrays: for a test, when everything else is done."""
    if isinstance(tree, Array):
        return np.asarray(tree._inner)
    if isinstance(tree, dict):
        return {name: reveal(part) for name, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [reveal(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def _refuse_numpy(array: Array) -> NoReturn:
    raise ValueReadError(f"to_numpy reads all values of an array of shape {array.shape}.")


def _from_numpy(array: Any, device: Any = None) -> Array:
    return Array(array_api_strict.asarray(array, device=device))


def _always(array: Array) -> bool:
    """Pretend that values may be read, so that code which asks first is caught as well."""
    return True


@lru_cache(maxsize=1)
def backend() -> Backend:
    """Return the backend of this library and make it known."""
    return register_backend(
        Backend(
            name="no_reads",
            xp=xp,
            array_types=(Array,),
            to_numpy=_refuse_numpy,
            from_numpy=_from_numpy,
            is_concrete=_always,
            capabilities=frozenset({"float64"}),
        )
    )


@contextmanager
def forbidden() -> Iterator[Backend]:
    """Run on the plain path without checks of values; what still reads one then has no excuse."""
    with at.force_generic(), at.value_checks(False):
        yield backend()
