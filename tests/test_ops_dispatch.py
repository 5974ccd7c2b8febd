"""How a call of an op finds its kernel, and what leaves it to the plain body."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core import numba_kernels, ops
from attendre_core.backend import (
    OPS,
    Backend,
    backend,
    machine_code,
    machine_code_allowed,
    op,
    register_backend,
)

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]


class Boxed:
    """An array of a library of its own, that has nothing but a number."""

    def __init__(self, number: float) -> None:
        self.number = number


class Special(Boxed):
    """A type that the library did not name."""


@pytest.fixture
def double() -> Iterator[Any]:
    """An op that tells how it was computed."""

    @op
    def double(x: Any, other: Any = None, *, how: str = "positional") -> tuple[str, str]:
        """Say that the plain body ran."""
        return ("plain", how)

    yield double
    del OPS["double"]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, Any]], Backend]:
    """Register a library of boxed numbers, and forget it after the test."""
    from attendre_core import backend as module

    monkeypatch.setattr(module, "_BY_NAME", dict(module._BY_NAME))
    kept = dict(module._BY_TYPE)

    def make(kernels: Mapping[str, Any]) -> Backend:
        return register_backend(
            Backend("boxed", np, (Boxed,), lambda x: x.number, Boxed, kernels=kernels)
        )

    yield make
    module._BY_TYPE.clear()
    module._BY_TYPE.update(kept)


def kernel(x: Any, other: Any = None, *, how: str = "positional") -> Any:
    first = x
    while isinstance(first, (tuple, list)):
        first = first[0]
    declined = isinstance(first, Boxed) and first.number < 0
    return NotImplemented if declined else ("kernel", how)


def test_the_kernel_of_the_first_arrays_library_is_called(double: Any, registered: Any) -> None:
    registered({"double": kernel})
    assert double(Boxed(1.0)) == ("kernel", "positional")
    assert double(Boxed(1.0), how="told") == ("kernel", "told")
    assert double(np.ones(2)) == ("plain", "positional"), "numpy has no such kernel"
    assert double(np.ones(2), Boxed(1.0)) == ("plain", "positional"), "the first one decides"
    assert double(Special(1.0)) == ("kernel", "positional"), "a subclass belongs to its library"


def test_the_first_array_may_be_nested_or_come_after_none(double: Any, registered: Any) -> None:
    registered({"double": kernel})
    assert double([Boxed(1.0), Boxed(2.0)]) == ("kernel", "positional")
    assert double(((Boxed(1.0),),)) == ("kernel", "positional")
    assert double(None, Boxed(1.0)) == ("kernel", "positional")
    # Kernels may be functions of a library, whose arguments have names of their own.
    assert double(x=Boxed(1.0)) == ("plain", "positional")


def test_a_kernel_that_declines_leaves_the_call_to_the_body(double: Any, registered: Any) -> None:
    registered({"double": kernel})
    assert double(Boxed(-1.0), how="told") == ("plain", "told")


def test_the_body_is_there_as_plain(double: Any, registered: Any) -> None:
    registered({"double": kernel})
    assert double.plain(Boxed(1.0)) == ("plain", "positional")
    assert OPS["double"] is double.plain
    assert double.__doc__ == "Say that the plain body ran."


def test_force_generic_holds_inside_the_block_and_for_this_thread(
    double: Any, registered: Any
) -> None:
    registered({"double": kernel})
    elsewhere = []
    with at.force_generic():
        assert double(Boxed(1.0)) == ("plain", "positional")
        thread = threading.Thread(target=lambda: elsewhere.append(double(Boxed(1.0))))
        thread.start()
        thread.join()
        with at.force_generic():
            pass
        assert double(Boxed(1.0)) == ("plain", "positional"), "an inner block ended the outer one"
    assert double(Boxed(1.0)) == ("kernel", "positional")
    assert elsewhere == [("kernel", "positional")]
    with pytest.raises(ZeroDivisionError), at.force_generic():
        1 / 0  # noqa: B018
    assert double(Boxed(1.0)) == ("kernel", "positional"), "an error left it switched on"


def test_what_is_no_array_is_refused(double: Any) -> None:
    with pytest.raises(at.LibraryMixError, match=r"builtins.str is not an array of a known"):
        double("no array")


def test_kernels_for_unknown_ops_are_refused() -> None:
    with pytest.raises(at.ConfigError, match=r"'mine' brings kernels for lowst, which are no ops"):
        Backend("mine", np, (), np.asarray, np.asarray, kernels={"lowst": ops.lowest})
    with pytest.raises(at.ConfigError, match=r"Known ops are .*lowest.*write_slots"):
        Backend("mine", np, (), np.asarray, np.asarray, kernels={"no_such_op": ops.lowest})
    named = [name for name in ops.__all__ if hasattr(getattr(ops, name), "plain")]
    kernels = {name: getattr(ops, name) for name in named}
    assert Backend("mine", np, (), np.asarray, np.asarray, kernels=kernels).kernels == kernels


def test_every_op_is_public_and_documented() -> None:
    assert set(OPS) == {name for name in ops.__all__ if hasattr(getattr(ops, name), "plain")}
    for name in OPS:
        assert getattr(ops, name).__doc__, f"ops.{name} has no docstring"


@pytest.mark.parametrize("name", LIBRARIES)
def test_kernels_of_shipped_libraries_are_named_as_their_ops_take_them(name: str) -> None:
    """Each can be called as the plain body is: the same names, or names that it does not show."""
    import inspect

    if name != "numpy":
        pytest.importorskip(name)
    for kernel_name, own in backend(name).kernels.items():
        body = inspect.signature(OPS[kernel_name])
        try:
            given = inspect.signature(own)
        except ValueError:  # a function of the library itself
            continue
        required = [
            p for p in given.parameters.values()
            if p.default is p.empty and p.kind is not p.VAR_POSITIONAL
        ]  # fmt: skip
        assert len(required) <= len(body.parameters), f"{name}: {kernel_name}"
        words = [p.name for p in body.parameters.values() if p.kind is p.KEYWORD_ONLY]
        assert set(words) <= set(given.parameters), f"{name}: {kernel_name}"


@pytest.mark.skipif(not numba_kernels.installed(), reason="needs numba")
def test_machine_code_can_be_switched_off() -> None:
    score, yes = np.ones((1, 4), dtype=np.float32), np.ones((1, 4), dtype=bool)
    assert numba_kernels.mean_less_deviations(score, yes, 1.0) is not NotImplemented
    with machine_code(False):
        assert not machine_code_allowed()
        assert numba_kernels.mean_less_deviations(score, yes, 1.0) is NotImplemented
        with machine_code(True):
            assert machine_code_allowed()
        assert not machine_code_allowed()
        assert ops.mean_less_deviations(score, yes, 1.0).tolist() == [1.0]
    assert machine_code_allowed()
