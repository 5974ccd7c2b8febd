"""What the fused kernels compute of an op, and what they decline.

They decline several terms, a bias, a limit, a sink, masks other than of positions and documents,
float64, heads wider than 256, symbolic shapes, and document ids that are not int32. By default
they also decline where JAX sees more than one device: a kernel for TPUs is not partitioned, so it
has to be called inside of `jax.shard_map`, which only the caller can know.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attendre_core.backend import fused_mode
from attendre_core.eager.fusing import Mask, can_fuse, factors_of, mask_of
from attendre_core.ops.pairs import Pairs, Term
from attendre_jax.fused import passes

__all__ = ["attend_or", "pool_pairs", "sum_logits_or"]

_DTYPES = (jnp.float16, jnp.bfloat16, jnp.float32)
_WIDEST = 256
_NAME = "fused"


class _Done(NamedTuple):
    """What was computed for the pairs of one step; ``value`` is what the output was made of."""

    term: Term
    mask: Mask
    value: jax.Array | None = None
    output: jax.Array | None = None
    sums: jax.Array | None = None


def attend_or(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel of ``attend`` that is fused where scores are, or where it is asked for.

    If a policy has pooled softmax weights, the output is already there.
    """

    @wraps(otherwise)
    def attend(pairs: Pairs, value: jax.Array) -> Any:
        done = _done(pairs)
        if done is not None and done.output is not None and done.value is value:
            return done.output
        if fused_mode() not in ("on", "interpreted") or not _can(pairs, value):
            return otherwise(pairs, value)
        return _with_sums(pairs, value).output

    return attend


def sum_logits_or(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel of ``sum_logits`` that pools columns where the other one declines."""

    @wraps(otherwise)
    def sum_logits(pairs: Pairs, weight: jax.Array | None = None) -> Any:
        result = otherwise(pairs, weight)
        if result is not NotImplemented:
            return result
        return pool_pairs(pairs, "logits", "sum", weight)

    return sum_logits


def pool_pairs(
    pairs: Pairs,
    what: str,
    queries: str = "sum",
    weight: jax.Array | None = None,
    value: jax.Array | None = None,
) -> Any:
    """Pool without the matrix; softmax weights need a pass for their sums, which may attend too."""
    if not _wanted() or not _can(pairs, value):
        return NotImplemented
    sums = _with_sums(pairs, value).sums if what == "weights" else None
    query, key, scale = factors_of(pairs)
    mask = _begun(pairs).mask
    return passes.pool_columns(query, key, mask, sums, weight, queries, scale, _interpreted())


def _with_sums(pairs: Pairs, value: jax.Array | None) -> _Done:
    """Attend, or only compute the sums, unless that has been done in this step."""
    done = _begun(pairs)
    if done.sums is None or (value is not None and done.value is not value):
        query, key, scale = factors_of(pairs)
        output, sums = passes.attend_rows(query, key, value, done.mask, scale, _interpreted())
        done = _keep(pairs, done._replace(value=value, output=output, sums=sums))
    return done


def _begun(pairs: Pairs) -> _Done:
    done = _done(pairs)
    return _keep(pairs, _Done(pairs.terms[0], mask_of(pairs))) if done is None else done


def _done(pairs: Pairs) -> _Done | None:
    """Return what was computed for these very pairs: others may share their memo."""
    done: _Done | None = None if pairs.memo is None else pairs.memo.get(_NAME)
    return done if done is not None and done.term is pairs.terms[0] else None


def _keep(pairs: Pairs, done: _Done) -> _Done:
    if pairs.memo is not None:
        pairs.memo[_NAME] = done
    return done


def _interpreted() -> bool:
    return fused_mode() == "interpreted"


def _wanted() -> bool:
    mode = fused_mode()
    if mode == "auto":
        return bool(jax.default_backend() == "tpu" and jax.device_count() == 1)
    return mode != "off"


def _can(pairs: Pairs, value: jax.Array | None) -> bool:
    """Return whether the kernels can compute these pairs."""
    if not can_fuse(pairs):
        return False
    term = pairs.terms[0]
    arrays = [term.plain_query, term.plain_key, *([] if value is None else [value])]
    fixed = all(isinstance(n, int) and n > 0 for x in arrays for n in x.shape)
    return (
        fixed
        and all(x.dtype in _DTYPES and x.shape[-1] <= _WIDEST for x in arrays)
        and all(ids.dtype == jnp.int32 for ids in pairs.documents or ())
    )
