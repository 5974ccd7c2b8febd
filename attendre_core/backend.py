"""Backends: what the core knows about an array library.

The core is written against the Python array API. A `Backend` names a library and its array types,
and may have *kernels*, faster versions of an `op`. Backends that do not ship with this package are
found through the entry-point group ``attendre.backends``. A library is imported only when one of
its arrays is passed in, or when it is requested by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from attendre_core.errors import ConfigError, LibraryMixError

__all__ = [
    "Backend",
    "available_backends",
    "backend",
    "backend_of",
    "beside",
    "force_generic",
    "fused_kernels",
    "fused_mode",
    "machine_code",
    "machine_code_allowed",
    "namespace_of",
    "numbers",
    "op",
    "register_backend",
    "resolve",
    "wide",
]

Array = Any
Namespace = Any


def _same(array: Array) -> Array:
    return array


def _as_it_is(function: Callable[..., Any], donate: tuple[int, ...] = ()) -> Callable[..., Any]:
    return function


def _default_device(array: Array) -> None:
    return None


def _as_given(device: Any) -> Any:
    return device


def _always(array: Array) -> bool:
    return True


@dataclass(frozen=True, eq=False)
class Backend:
    """One array library, as the core sees it.

    Attributes
    ----------
    name
        What users type, e.g. ``"torch"``.
    xp
        The array-API namespace.
    array_types
        The types of its arrays. Other types of a shipped library's modules, such as tracers, are
        recognised too, and so are subclasses.
    to_numpy, from_numpy
        Conversions to and from `numpy.ndarray`; ``from_numpy(x, device=None)``.
    is_concrete
        Whether the array's values may be read now without stalling a device: not while
        compiling, not on an accelerator. Always, by default.
    compile
        Compiles a pure function of arrays; the identity if the library has no compiler.
        ``compile(function, donate=(0,))`` may overwrite the arrays of argument 0.
    run_step
        Runs a step of a layer, e.g. as a compiled program: ``run_step(layer, step, state, chunk,
        encoding_params, policy_params, donate)`` returns what ``step`` does with all arguments
        after it, or ``NotImplemented``; None = steps run as they are.
    share
        Like ``from_numpy``, but the result may share memory with the `numpy.ndarray`, which is
        never written to; ``share(x, "bfloat16", device)`` interprets the bits of a uint16 array.
    alignment
        ``share`` copies memory whose address this number of bytes does not divide.
    stop_gradient
        Returns the array without its gradient.
    device_of
        The device of an array, on which new arrays are made to work with it; None = default.
    find_device
        Turns what users pass as ``device=``, such as ``"cpu"``, into what the library takes, and
        raises a `ConfigError` if there is no such device. Passed on as it is, by default.
    kernels
        Op name to callable with the op's signature. Laws: a kernel returns the same as the plain
        body, the same indices for ties included, and writes into its arguments only if the op
        has a ``donate`` that is True. It may decline by returning ``NotImplemented``.
    transforms
        Other transforms of functions of (nested) arrays, name to callable:
        ``grad(function)`` differentiates a number by the first argument; ``vmap(function)`` maps
        over the first axis of all arguments; ``scan(step, state, chunks)`` runs steps over the
        first axis of the chunks; ``export(function, *arguments)`` writes the compiled function
        out, reads it back and returns it. Law: each gives the same as a plain call or loop.
    capabilities
        Any of ``"compile"``, ``"eager"`` (about as fast without compiling, and starts at once),
        ``"grad"``, ``"float64"``, ``"bfloat16"``.
    """

    name: str
    xp: Namespace
    array_types: tuple[type, ...]
    to_numpy: Callable[[Array], Any]
    from_numpy: Callable[..., Array]
    is_concrete: Callable[[Array], bool] = _always
    compile: Callable[..., Callable[..., Any]] = _as_it_is
    run_step: Callable[..., Any] | None = None
    share: Callable[..., Array] | None = None
    stop_gradient: Callable[[Array], Array] = _same
    device_of: Callable[[Array], Any] = _default_device
    find_device: Callable[[Any], Any] = _as_given
    alignment: int = 1
    kernels: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    transforms: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    capabilities: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kernels) - set(OPS))
        if unknown:
            raise ConfigError(
                f"Backend: {self.name!r} brings kernels for {', '.join(unknown)}, which are no "
                f"ops. Known ops are {', '.join(sorted(OPS))}."
            )

    def __repr__(self) -> str:
        return f"Backend({self.name!r})"


class _Shipped(NamedTuple):
    """A library whose backend ships with this package.

    ``modules`` are the top-level modules of its array types, ``install`` says how to get it.
    """

    target: str
    modules: tuple[str, ...]
    install: str = ""


#: Every shipped library; others are found through entry points.
_SHIPPED = {
    "numpy": _Shipped("attendre_core.builtin_backends:numpy_backend", ("numpy",)),
    "array_api_strict": _Shipped(
        "attendre_core.builtin_backends:strict_backend",
        ("array_api_strict",),
        "Install it with: pip install array-api-strict.",
    ),
    "torch": _Shipped(
        "attendre_torch:backend",
        ("torch",),
        "Install it with: pip install 'attendre-core[torch]'.",
    ),
    "jax": _Shipped(
        "attendre_jax:backend",
        ("jax", "jaxlib"),
        "Install it with: pip install 'attendre-core[jax]'.",
    ),
}
_OF_MODULE = {module: name for name, shipped in _SHIPPED.items() for module in shipped.modules}
_BY_NAME: dict[str, Backend] = {}
_BY_TYPE: dict[type, Backend] = {}
#: The array types seen so far, and their backends.
known_array_types: Mapping[type, Backend] = _BY_TYPE
#: Op name to plain body.
OPS: dict[str, Callable[..., Any]] = {}
_GENERIC: ContextVar[bool] = ContextVar("force_generic", default=False)
_MACHINE_CODE: ContextVar[bool] = ContextVar("machine_code", default=True)
_FUSED: ContextVar[str] = ContextVar("fused_kernels", default="auto")
F = TypeVar("F", bound=Callable[..., Any])


def register_backend(new: Backend) -> Backend:
    """Register a backend for this process, without an entry point.

    It is then found by its name and by its array types.
    """
    _BY_NAME[new.name] = new
    for array_type in new.array_types:
        _BY_TYPE[array_type] = new
    return new


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group="attendre.backends")}


def available_backends() -> tuple[str, ...]:
    """Return the names that `backend` accepts, whether or not the library is installed.

    Examples
    --------
    >>> "numpy" in available_backends()
    True
    """
    return tuple(sorted({*_SHIPPED, *_entry_points(), *_BY_NAME}))


def backend(name: str | Backend) -> Backend:
    """Look up a backend by name, importing its library.

    Parameters
    ----------
    name
        A name from `available_backends`, or ``"module:attribute"`` of a `Backend` or of a
        function that returns one.

    Examples
    --------
    >>> backend("numpy").name
    'numpy'
    """
    if isinstance(name, Backend):
        return name
    if name in _BY_NAME:
        return _BY_NAME[name]
    shipped = _SHIPPED.get(name)
    if shipped is not None:
        target: str | None = shipped.target
    else:
        target = name if ":" in name else _entry_points().get(name)
    if target is None:
        raise ConfigError(
            f"backend: {name!r} is not known; known are {', '.join(available_backends())}. "
            "Install the package that brings it, or name it as 'module:attribute'."
        )
    module_name, _, attribute = target.partition(":")
    try:
        value = getattr(importlib.import_module(module_name), attribute)
        result = value() if callable(value) else value
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"backend: {name!r} needs the module {error.name!r}, which is not installed. "
            f"{shipped.install if shipped else 'Install the package that brings it.'}"
        ) from error
    except AttributeError as error:
        raise ConfigError(
            f"backend: module {module_name!r} has no attribute {attribute!r}. "
            "Name a Backend, or a function that returns one."
        ) from error
    if not isinstance(result, Backend):
        raise ConfigError(
            f"backend: {target!r} gave a {type(result).__name__}, expected a Backend."
        )
    return register_backend(result)


def _backend_of_new_type(array_type: type) -> Backend:
    """Find the backend of a type by its base classes and their modules, and remember it."""
    for base in array_type.__mro__:
        if base in _BY_TYPE:
            found = _BY_TYPE[base]
            break
        name = _OF_MODULE.get(base.__module__.partition(".")[0])
        if name is not None:
            found = backend(name)
            break
    else:
        raise LibraryMixError(
            f"namespace_of: {array_type.__module__}.{array_type.__qualname__} is not an array of "
            "a known library. Convert it first, for example with numpy.asarray, or register a "
            "Backend for it."
        )
    _BY_TYPE[array_type] = found
    return found


def backend_of(array: Array) -> Backend:
    """Return the backend of an array, by its type.

    Examples
    --------
    >>> import numpy as np
    >>> backend_of(np.zeros(3)).name
    'numpy'
    """
    kind = type(array)
    return _BY_TYPE[kind] if kind in _BY_TYPE else _backend_of_new_type(kind)


def namespace_of(*arrays: Array) -> Namespace:
    """Return the array-API namespace that some arrays share; ``None`` is skipped.

    Raises
    ------
    LibraryMixError
        If the arrays come from two libraries, or one of them is not an array.

    Examples
    --------
    >>> import numpy as np
    >>> namespace_of(np.zeros(3), None) is np
    True
    """
    found: Backend | None = None
    for array in arrays:
        if array is None:
            continue
        kind = type(array)
        this = _BY_TYPE[kind] if kind in _BY_TYPE else _backend_of_new_type(kind)
        if found is None:
            found = this
        elif this is not found:
            raise LibraryMixError(
                f"namespace_of: arrays of two libraries in one call, {found.name} and "
                f"{this.name}. Convert one side, for example with attendre_core.convert."
            )
    if found is None:
        raise LibraryMixError("namespace_of: no array was given. Pass at least one array.")
    return found.xp


def numbers(count: int, like: Array) -> Array:
    """Return 0, 1, ... as int32, on the device of ``like``."""
    found = backend_of(like)
    return found.xp.arange(count, dtype=found.xp.int32, device=found.device_of(like))


def beside(values: Any, like: Array) -> Array:
    """Return values of NumPy in the library of ``like``, on its device."""
    found = backend_of(like)
    return found.from_numpy(values, device=found.device_of(like))


def wide(x: Array) -> Array:
    """Return half precision as float32, anything else as it is.

    Examples
    --------
    >>> import numpy as np
    >>> str(wide(np.zeros(1, dtype=np.float16)).dtype)
    'float32'
    """
    xp = backend_of(x).xp
    return xp.astype(x, xp.float32) if xp.finfo(x.dtype).bits < 32 else x


def resolve(xp: Namespace | str | Backend) -> Backend:
    """Return the backend of a namespace (``numpy``, ``torch``, ``jax.numpy``) or a name."""
    if isinstance(xp, (str, Backend)):
        return backend(xp)
    for known in reversed(_BY_NAME.values()):  # the one registered last wins
        if known.xp is xp:
            return known
    parts = getattr(xp, "__name__", "").split(".")
    name = parts[1] if parts[0] == "array_api_compat" and len(parts) > 1 else parts[0]
    if name in _OF_MODULE:
        return backend(_OF_MODULE[name])
    raise ConfigError(
        f"backend: {xp!r} is not the namespace of a known array library. "
        f"Pass a module such as numpy, or one of the names {', '.join(available_backends())}."
    )


def _backend_of_first(args: tuple[Any, ...]) -> Backend:
    """Return the backend of the first array among arguments, looking into tuples and lists."""
    for first in args:
        while isinstance(first, (tuple, list)):
            first = first[0]
        if first is not None:
            break
    return backend_of(first)


def op(body: F) -> F:
    """Make a function an op: its body is the plain version, and a backend may have a kernel.

    A call goes to the kernel of the backend of the first array among the positional arguments
    (looking into tuples and lists). The body runs if there is no kernel, if the kernel declines by
    returning ``NotImplemented``, and inside `force_generic`. It is also available as ``.plain``.

    Examples
    --------
    >>> import numpy as np
    >>> @op
    ... def twice(x):
    ...     return x + x
    >>> int(twice(np.asarray(3)))
    6
    >>> _ = OPS.pop("twice")
    """
    name = body.__name__

    @wraps(body)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and not generic_only():
            kind = type(args[0])
            kernels = (_BY_TYPE[kind] if kind in _BY_TYPE else _backend_of_first(args)).kernels
            if name in kernels:
                result = kernels[name](*args, **kwargs)
                if result is not NotImplemented:
                    return result
        return body(*args, **kwargs)

    OPS[name] = body
    call.plain = body  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


@contextmanager
def _switched(switch: ContextVar[Any], on: Any) -> Iterator[None]:
    token = switch.set(on)
    try:
        yield
    finally:
        switch.reset(token)


def generic_only() -> bool:
    """Return whether kernels are turned off; an adapter may treat it as constant in a trace."""
    return _GENERIC.get()


def machine_code_allowed() -> bool:
    """Return whether Numba kernels may run; an adapter may treat it as constant in a trace."""
    return _MACHINE_CODE.get()


def force_generic() -> Any:
    """Run the plain body of every op inside a ``with`` block, to compare kernels with it.

    It applies to this thread or task only. Functions that were compiled before are not affected.
    """
    return _switched(_GENERIC, True)


def machine_code(on: bool) -> Any:
    """Turn the Numba kernels on or off inside a ``with`` block.

    They are on by default, if Numba is installed. It applies to this thread or task only;
    functions that were compiled before are not affected.

    Examples
    --------
    >>> with machine_code(False):
    ...     machine_code_allowed()
    False
    """
    return _switched(_MACHINE_CODE, on)


def fused_mode() -> str:
    """Return which fused kernels may run; an adapter may treat it as constant in a trace."""
    return _FUSED.get()


def fused_kernels(mode: str) -> Any:
    """Choose inside a ``with`` block where the kernels for accelerators run (Triton, Pallas).

    They attend and score at once, without the matrix of all pairs. It applies to this thread or
    task only; functions that were compiled before are not affected.

    Parameters
    ----------
    mode
        ``"auto"``, the default: on an accelerator, where a policy pools softmax weights or no
        other kernel sums logits, and in eager PyTorch for the records of a memory. ``"on"``:
        wherever they can run, also to attend only. ``"off"``: nowhere. ``"interpreted"``: on the
        CPU, step by step and very slowly, for tests.

    Examples
    --------
    >>> with fused_kernels("off"):
    ...     fused_mode()
    'off'
    """
    if mode not in ("auto", "on", "off", "interpreted"):
        raise ConfigError(
            f"fused_kernels: mode is {mode!r}, expected 'auto', 'on', 'off' or 'interpreted'."
        )
    return _switched(_FUSED, mode)
