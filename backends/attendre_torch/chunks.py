"""Read a whole sequence through a module chunk by chunk, and put the outputs in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attendre_core import checks
from attendre_core.layer.chunks import chunks_of, in_order, join
from attendre_core.layer.records import LayerState
from attendre_torch.states import detach

if TYPE_CHECKING:
    from attendre_torch.attention import AttendreAttention, AttentionOutput

__all__ = ["read_in_chunks"]


def read_in_chunks(
    module: AttendreAttention,
    x: Tensor,
    chunk: int,
    valid: Tensor | None,
    document: Tensor | None,
    detach_every: int | None,
) -> tuple[Tensor, LayerState]:
    """Implement `AttendreAttention.run`."""
    where = "AttendreAttention.run"
    checks.whole_number(where, "chunk", chunk, least=1, hint="128 is the paper's choice.")
    if detach_every is not None:
        checks.whole_number(
            where, "detach_every", detach_every, least=1, hint="None never cuts the graph."
        )
    batch, length = x.shape[:2]
    place = torch.arange(length, dtype=torch.int32, device=x.device).expand(batch, length)
    metadata = (place[:, :1],)
    state = module.init_state(
        batch, documents=document is not None, metadata=metadata, chunk=min(chunk, length)
    )
    outputs: list[AttentionOutput] = []
    chunks = chunks_of((x, valid, document, place), chunk, fill=False)
    for number, (some, real, ids, at) in enumerate(chunks):
        if detach_every is not None and number and number % detach_every == 0:
            state = detach(state)
        out, state = module.step(some, state, valid=real, document=ids, metadata=(at,))
        outputs.append(out)
    if module.delay:
        out, state = module.flush(state)
        outputs.append(out)
    pieces = [(out.x, out.metadata[0], out.valid) for out in outputs]
    return in_order([join(pieces)], length), state
