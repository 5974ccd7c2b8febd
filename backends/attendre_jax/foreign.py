"""Top-K attention by Numba inside functions that JAX compiles for the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendre_core import numba_kernels
from attendre_core.backend import Array, machine_code_allowed
from attendre_core.errors import ConfigError
from attendre_core.ops.dense import attend_top_k as op

__all__ = ["attend_top_k", "machine_code"]

_TARGET = "attendre_attend_top_k"
_WANTED: ContextVar[bool] = ContextVar("jax_machine_code", default=False)


@contextmanager
def machine_code() -> Iterator[None]:
    """Use the Numba kernel for top-K attention in functions traced inside a ``with`` block.

    Needs Numba: ``pip install 'attendre-core[compiled]'``. It is not the default because a program
    that contains it cannot be exported. It is used only on the CPU and for float32, and not in
    derivatives. A query with a logit that is not finite gives NaN. Functions that were traced
    before are not affected.
    """
    if not numba_kernels.installed():
        raise ConfigError(
            "machine_code: the module 'numba' is not installed. "
            "Install it with: pip install 'attendre-core[compiled]'."
        )
    token = _WANTED.set(True)
    try:
        yield
    finally:
        _WANTED.reset(token)


def attend_top_k(
    logits: Array, value: Array, allowed: Array, k: int, order: Array, passes: int | None = None
) -> Any:
    """Attend to the top K inside `machine_code`; decline symbolic shapes, and all but float32."""
    if not (_WANTED.get() and machine_code_allowed()):
        return NotImplemented
    fixed = all(isinstance(n, int) for x in (logits, value, allowed, order) for n in x.shape)
    if not fixed or logits.dtype != jnp.float32 or value.dtype != jnp.float32 or not logits.size:
        return NotImplemented
    result: tuple[Array, Array, Array] = _attend(logits, value, allowed, k, order, passes)
    return result


def _plain(*given: Any) -> tuple[Array, Array, Array]:
    result: tuple[Array, Array, Array] = op.plain(*given)  # type: ignore[attr-defined]
    return result


@partial(jax.custom_jvp, nondiff_argnums=(3, 5))
def _attend(
    logits: Array, value: Array, allowed: Array, k: int, order: Array, passes: int | None
) -> tuple[Array, Array, Array]:
    def usual(*arrays: Array) -> tuple[Array, Array, Array]:
        logits, value, allowed, order = arrays
        return _plain(logits, value, allowed, k, order, passes)

    result: tuple[Array, Array, Array] = jax.lax.platform_dependent(
        *(logits, value, allowed, order),
        cpu=partial(_called, k=k, passes=passes),
        default=usual,
    )
    return result


def _derivative(k: int, passes: int | None, primals: Any, tangents: Any) -> tuple[Any, Any]:
    logits, value, allowed, order = primals

    def usual(logits: Array, value: Array) -> tuple[Array, Array, Array]:
        return _plain(logits, value, allowed, k, order, passes)

    result: tuple[Any, Any] = jax.jvp(usual, (logits, value), tuple(tangents[:2]))
    return result


_attend.defjvp(_derivative)


@cache
def _register() -> None:
    """Compile the handler and register it with XLA, once."""
    from attendre_jax.ffi_handler import handler_of_attend_rows

    jax.ffi.register_ffi_target(_TARGET, handler_of_attend_rows(), platform="cpu")


def _called(
    logits: Array, value: Array, allowed: Array, order: Array, k: int, passes: int | None
) -> tuple[Array, Array, Array]:
    _register()
    lead, slots, dim = logits.shape[:-1], logits.shape[-1], value.shape[-1]
    count = int(np.prod(lead))
    shapes = (
        jax.ShapeDtypeStruct((count, dim), jnp.float32),
        jax.ShapeDtypeStruct((count,), jnp.float32),
        jax.ShapeDtypeStruct((count,), jnp.int32),
    )
    output, threshold, oldest = jax.ffi.ffi_call(_TARGET, shapes, vmap_method="sequential")(
        logits.reshape(count, slots),
        value.reshape(-1, slots, dim),
        *_rows_of(allowed, lead),
        *_rows_of(order.astype(jnp.int32), lead),
        np.asarray([k, passes or 0], dtype=np.int32),
        np.asarray([numba_kernels.quantile(k / slots)], dtype=np.float32),
    )
    return output.reshape(*lead, dim), threshold.reshape(*lead, 1), oldest.reshape(*lead, 1)


def _rows_of(array: Array, lead: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the rows of an array that broadcasts to ``lead``, and the row number at each place."""
    own = (1,) * (len(lead) + 1 - array.ndim) + array.shape[:-1]
    which = np.arange(int(np.prod(own)), dtype=np.int32).reshape(own)
    return array.reshape(-1, array.shape[-1]), np.broadcast_to(which, lead).reshape(-1)
