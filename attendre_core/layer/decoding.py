"""From reading to decoding: causal, no Q memory, the K/V memory stays (paper, section 3.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attendre_core import checks
from attendre_core.layer.records import LayerState
from attendre_core.memory.state import grown
from attendre_core.policies.fifo import FIFO
from attendre_core.tiers.tiers import Tiers

if TYPE_CHECKING:
    from attendre_core.layer.attendre import AttendreLayer

__all__ = ["decoding"]


def decoding(
    layer: AttendreLayer, state: LayerState, room: int | None = None, policy_params: Any = None
) -> tuple[AttendreLayer, LayerState]:
    """Switch a layer from reading to decoding: causal, no Q memory, the K/V memory stays.

    Parameters
    ----------
    state
        The state after `flush` or `drain`; queries that still wait are dropped.
    room
        Slots for generated entries beside those that were read: what was read is never evicted,
        and the generated entries are first in, first out among themselves. None inserts generated
        entries into the memory itself, where they compete (specification, reading 28).
    policy_params
        Arrays of the K/V memory's policy, if it has any.

    Returns
    -------
    layer, state
        A layer without delay, and its state.
    """
    kv = state.kv
    if room is None:
        memory = layer.kv_memory
        if isinstance(memory, Tiers) and memory.outside:  # what was read goes on without this
            memory = memory.over(memory.outside.entries.copy())
        return replace(layer, kv_memory=memory, q_memory=None, causal=True), LayerState(kv, None)
    checks.whole_number(
        "AttendreLayer.decoding", "room", room, least=1,
        hint="It counts generated entries; None puts them into the memory itself.",
    )  # fmt: skip
    if layer.kv_memory.present == "visible":
        kv, _ = layer.kv_memory.settle(kv, policy_params=policy_params)
    if isinstance(layer.kv_memory, Tiers):
        memory, kv = layer.kv_memory.decoding(kv, room)
        return replace(layer, kv_memory=memory, q_memory=None, causal=True), LayerState(kv, None)
    slots = max(layer.kv_memory.size + room, kv.key.shape[2])
    if slots > kv.key.shape[2]:
        kv = grown(kv, slots - kv.key.shape[2])
    memory = replace(
        layer.kv_memory,
        size=slots,
        policy=FIFO(),
        present="compete",
        protect_recent=0,
        sinks=0,
        pin=(),
    )
    kv = kv._replace(pinned=kv.valid)
    return replace(layer, kv_memory=memory, q_memory=None, causal=True), LayerState(kv, None)
