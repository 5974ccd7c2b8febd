"""Half precision in fused attention: keys and values go in as they are stored.

Fused kernels multiply bfloat16 and float16 and add up in float32. On the CPU that is several times
slower than float32 for float16, and not reliably faster for bfloat16: there, keys and values are
widened first, and nothing but the output is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from attendre_core.backend import wide
from attendre_core.eager.rounded import rounded_key, rounded_query
from attendre_core.ops.pairs import Pairs, Term
from attendre_torch.constants import constant_in_traces

__all__ = ["Inputs", "half_on_cpu", "inputs_of"]

_ON_CPU: ContextVar[bool] = ContextVar("half_on_cpu", default=False)


class Inputs(NamedTuple):
    """What a fused kernel multiplies: the logits are ``scale`` times query times key."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float


@contextmanager
def half_on_cpu() -> Iterator[None]:
    """Compute attention on the CPU inside a ``with`` block as on a GPU, in half precision.

    To see on any machine what a GPU rounds. Functions that were compiled before are not affected.
    """
    token = _ON_CPU.set(True)
    try:
        yield
    finally:
        _ON_CPU.reset(token)


@constant_in_traces
def _wanted_on_cpu() -> bool:
    return _ON_CPU.get()


def inputs_of(pairs: Pairs, term: Term, value: Tensor) -> Inputs:
    """Return the inputs in the stored dtype where that pays, else in float32 at least.

    Rotated queries and keys are rounded to the stored dtype, once.
    """
    stored = term.plain_key.dtype
    narrow = stored in (torch.bfloat16, torch.float16) and value.dtype == stored
    if narrow and (value.device.type != "cpu" or _wanted_on_cpu()):
        query, key = rounded_query(term, pairs.scale), rounded_key(term)
        return Inputs(query, key, value, pairs.scale)
    return Inputs(term.query, term.key, wide(value), 1.0)
