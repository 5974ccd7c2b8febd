"""What the fused kernels compute of an op, and what they decline.

They decline several terms, a bias, a limit, a sink, masks other than of positions and documents,
float64, heads wider than 256, gradients, tensors of other types, ``torch.func``, ``torch.export``,
and everything that is not on a CUDA device of capability 8.0 or later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attendre_core.backend import fused_mode
from attendre_core.eager.fusing import Mask, can_fuse, factors_of, mask_of
from attendre_core.ops.pairs import Pairs, Term
from attendre_torch.constants import constant_in_traces
from attendre_torch.fused import launch, traced

__all__ = ["attend_or", "has_triton", "pool_pairs", "runs_on", "sum_logits_or"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_TYPES = (Tensor, torch.nn.Parameter)
_NAME = "fused"


class _Done(NamedTuple):
    """What was computed for the pairs of one step; ``value`` is what the output was made of."""

    term: Term
    mask: Mask
    value: Tensor | None = None
    output: Tensor | None = None
    sums: Tensor | None = None


def attend_or(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel of ``attend`` that is fused where scores are, or where it is asked for.

    If a policy has pooled softmax weights, the output is already there.
    """

    @wraps(otherwise)
    def attend(pairs: Pairs, value: Tensor) -> Any:
        mode = fused_mode()
        if not value.is_cuda and mode != "interpreted":
            return otherwise(pairs, value)
        done = _done(pairs)
        if done is not None and done.output is not None and done.value is value:
            return done.output
        if mode in ("auto", "off") or not _can(pairs, value, mode) or _recorded(pairs, value):
            return otherwise(pairs, value)
        return _with_sums(pairs, value).output

    return attend


def sum_logits_or(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel of ``sum_logits`` that pools columns where the other one declines."""

    @wraps(otherwise)
    def sum_logits(pairs: Pairs, weight: Tensor | None = None) -> Any:
        result = otherwise(pairs, weight)
        if result is not NotImplemented or _recorded(pairs, weight):
            return result
        return pool_pairs(pairs, "logits", "sum", weight)

    return sum_logits


def pool_pairs(
    pairs: Pairs,
    what: str,
    queries: str = "sum",
    weight: Tensor | None = None,
    value: Tensor | None = None,
) -> Any:
    """Pool without the matrix; softmax weights need a pass for their sums, which may attend too."""
    mode, key = fused_mode(), pairs.terms[0].plain_key
    if (not key.is_cuda and mode != "interpreted") or not _can(pairs, value, mode):
        return NotImplemented
    sums = None
    if what == "weights":
        sums = _with_sums(pairs, None if _recorded(pairs, value) else value).sums
    query, key, scale = _factors(pairs)
    weight = None if weight is None else weight.detach()
    return _launch().pool_columns(query, key, _begun(pairs).mask, sums, weight, queries, scale)


def _with_sums(pairs: Pairs, value: Tensor | None) -> _Done:
    """Attend, or only compute the sums, unless that has been done in this step."""
    done = _begun(pairs)
    if done.sums is None or (value is not None and done.value is not value):
        query, key, scale = _factors(pairs)
        plain = None if value is None else value.detach()
        output, sums = _launch().attend_rows(query, key, plain, done.mask, scale)
        done = _keep(pairs, done._replace(value=value, output=output, sums=sums))
    return done


def _factors(pairs: Pairs) -> tuple[Tensor, Tensor, float]:
    query, key, scale = factors_of(pairs)
    return query.detach(), key.detach(), scale


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


def runs_on(tensor: Tensor, mode: str) -> bool:
    """Return whether kernels run on the device of a tensor, and now."""
    if mode == "off":
        return False
    if torch.compiler.is_compiling():
        if torch.compiler.is_exporting():
            return False
    elif torch._C._are_functorch_transforms_active():
        return False
    elif mode == "interpreted":
        launch.check_interpreted()
    if mode == "interpreted":
        return bool(tensor.device.type == "cpu")
    return bool(tensor.is_cuda) and _fits(tensor.device)


@constant_in_traces
def _fits(device: torch.device) -> bool:
    """Return whether there is Triton, and a device that it compiles these kernels for."""
    return has_triton() and _is_recent(device)


@cache
def has_triton() -> bool:
    """Return whether Triton is installed, and for NVIDIA GPUs."""
    return torch.version.hip is None and find_spec("triton") is not None


@cache
def _is_recent(device: torch.device) -> bool:
    return bool(torch.cuda.get_device_capability(device) >= (8, 0))


def _launch() -> Any:
    """Return what launches kernels: operators of PyTorch while compiling."""
    return traced if torch.compiler.is_compiling() else launch


def _can(pairs: Pairs, value: Tensor | None, mode: str) -> bool:
    """Return whether the kernels can compute these pairs, here and now."""
    if not can_fuse(pairs) or not runs_on(pairs.terms[0].plain_key, mode):
        return False
    term = pairs.terms[0]
    tensors = [term.plain_query, term.plain_key, *([] if value is None else [value])]
    return all(
        type(x) in _TYPES and x.dtype in _DTYPES and x.numel() > 0 and x.shape[-1] <= launch.WIDEST
        for x in tensors
    )


def _recorded(pairs: Pairs, *others: Tensor | None) -> bool:
    """Return whether a gradient is recorded for any of these tensors."""
    if not torch.is_grad_enabled():
        return False
    term = pairs.terms[0]
    tensors = (term.plain_query, term.plain_key, *others)
    return any(x is not None and x.requires_grad for x in tensors)
