"""The two passes: by Pallas on a TPU, else in plain JAX; derivatives are always plain."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax import lax

from attendre_core.eager.fusing import Mask
from attendre_jax.fused import dense, launch

__all__ = ["attend_rows", "pool_columns"]


@partial(jax.custom_jvp, nondiff_argnums=(4, 5))
def attend_rows(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array | None,
    mask: Mask,
    scale: float,
    interpret: bool,
) -> tuple[jax.Array | None, jax.Array]:
    """Attend to all slots that the mask allows.

    Parameters
    ----------
    query, key, value
        (batch, G, R, queries, dim), (batch, G, slots, dim), (batch, G, slots, value_dim). Without
        values only the sums are computed.
    scale
        Multiplies the products of queries and keys.
    interpret
        Interpret the kernels, on any device.

    Returns
    -------
    output
        (batch, G, R, queries, value_dim), zeros where nothing is allowed; None without values.
    sums
        float32, (batch, G, R, queries): the logarithm of the sum of exponentials; infinity where
        nothing is allowed.
    """
    arrays = (query, key, value, mask)
    if interpret:
        return launch.attend_rows(*arrays, scale=scale, interpret=True)
    result: tuple[jax.Array | None, jax.Array] = lax.platform_dependent(
        *arrays,
        tpu=partial(launch.attend_rows, scale=scale, interpret=False),
        default=partial(dense.attend_rows, scale=scale),
    )
    return result


def _derivative(scale: float, interpret: bool, primals: Any, tangents: Any) -> tuple[Any, Any]:
    *arrays, mask = primals
    given = [x for x in arrays if x is not None]

    def usual(*floats: jax.Array) -> tuple[jax.Array | None, jax.Array]:
        query, key, *value = floats
        return dense.attend_rows(query, key, value[0] if value else None, mask, scale=scale)

    changes = [x for x in tangents[:3] if x is not None]
    result: tuple[Any, Any] = jax.jvp(usual, given, changes)
    return result


attend_rows.defjvp(_derivative)


def pool_columns(
    query: jax.Array,
    key: jax.Array,
    mask: Mask,
    sums: jax.Array | None,
    weight: jax.Array | None,
    how: str,
    scale: float,
    interpret: bool,
) -> jax.Array:
    """Pool over the queries that are allowed to see a slot; no gradient flows through it.

    Parameters
    ----------
    query, key, scale, interpret
        As in `attend_rows`.
    sums
        Of `attend_rows`: pool softmax weights. None: pool logits.
    weight
        (batch, queries): multiplies what is pooled; None = 1.
    how
        ``"sum"``, ``"max"`` or ``"mean"``.

    Returns
    -------
    array
        float32, (batch, G, R, slots); 0 where no query is allowed.
    """
    arrays = lax.stop_gradient((query, key, mask, sums, weight))
    if interpret:
        return launch.pool_columns(*arrays, how=how, scale=scale, interpret=True)
    result: jax.Array = lax.platform_dependent(
        *arrays,
        tpu=partial(launch.pool_columns, how=how, scale=scale, interpret=False),
        default=partial(dense.pool_columns, how=how, scale=scale),
    )
    return result
