"""Count the operations that an eager step starts on an accelerator.

There, an operation on small arrays takes as long as its launch. The step runs on PyTorch's meta
device, which computes nothing and whose values cannot be read, as on an accelerator. Counted is
every ATen operation except views and allocations, which launch nothing; fused attention counts as
one, though the meta device, which has no such kernel, takes it apart. So does each launch of a
Triton kernel; `attendre_core.backend.fused_kernels` ``("off")`` counts without Triton.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from attendre_core.layer import AttendreLayer, Chunk
from attendre_core.memory import KeyValueMemory
from attendre_core.policies import Policy
from attendre_core.positions import Encoding

__all__ = ["launches"]

#: Operations that launch nothing, besides views.
_FREE = {
    "aten::_unsafe_view", "aten::alias", "aten::detach", "aten::empty", "aten::empty_like",
    "aten::empty_strided", "aten::lift_fresh", "aten::new_empty",
}  # fmt: skip


class _Counting(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts, self.paused = counts, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket._qualified_op_name
        if not (self.paused or func.is_view or name in _FREE):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


class _Fused(TorchFunctionMode):  # type: ignore[misc]
    """Count fused attention once, and not what the meta device makes of it."""

    def __init__(self, counting: _Counting) -> None:
        super().__init__()
        self.counting = counting

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.counting.counts["fused attention"] += 1
        self.counting.paused = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.counting.paused = False


def launches(
    policy: Policy,
    encoding: Encoding,
    *,
    top_k: int | None = None,
    present: Any = "visible",
    kv_heads: int = 8,
) -> Counter[str]:
    """Count the operations of a causal step, by name: M=1024, S=128, 8 query heads of 64, B=1.

    Examples
    --------
    >>> import attendre_core as at
    >>> launches(at.LRA("sum"), at.NoPosition())["fused attention"]
    1
    """
    layer = AttendreLayer(
        KeyValueMemory(1024, policy, present=present), top_k=top_k, causal=True, encoding=encoding
    )
    state = layer.init(
        batch=1, heads=8, kv_heads=kv_heads, head_dim=64, xp="torch", device="meta", chunk=128
    )

    def chunk() -> Chunk:
        return Chunk(*(torch.empty(1, 128, n, 64, device="meta") for n in (8, kv_heads, kv_heads)))

    counts: Counter[str] = Counter()
    counting = _Counting(counts)
    with torch.no_grad():
        state, _ = layer.step(state, chunk(), donate=True)  # tables are made in the first step
        given = chunk()
        with counting, _Fused(counting):
            layer.step(state, given, donate=True)
    return counts
