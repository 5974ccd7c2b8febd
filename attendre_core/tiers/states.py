"""States of tiers: making, inspecting, resetting and reordering them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from attendre_core import checks
from attendre_core.backend import Array, backend_of, resolve
from attendre_core.errors import ConfigError
from attendre_core.memory.arrivals import RECORDS
from attendre_core.memory.batch import reorder_rows, reset_rows
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.report import MemoryReport, report_of
from attendre_core.memory.state import Entries, KeyValueState, grown
from attendre_core.policies.base import Stored
from attendre_core.policies.fifo import FIFO
from attendre_core.tiers.compress import Compressor
from attendre_core.tiers.spec import Gate, TiersParameters, TiersSpec
from attendre_core.tiers.state import Span, TiersState, TierState, cut, joined, spans, tier_state
from attendre_core.tree import tree_map

__all__ = ["TiersStates"]


@dataclass(frozen=True, init=False)
class TiersStates(TiersSpec):
    """The operations of `Tiers` on states."""

    __init__ = TiersSpec.__init__

    def init(self, *, aux: Any = None, like: Array | None = None, **options: Any) -> TiersState:
        """Make an empty state; options as in `KeyValueMemory.init`.

        ``aux`` must be a dict or None if a tier compresses.
        """
        made = self.first.init(aux=aux, like=like, **options)
        found, batch = backend_of(made.key), made.key.shape[0]
        if self.compresses:
            device = found.device_of(made.key)
            one = found.xp.zeros((batch, 1), dtype=found.xp.int32, device=device)
            aux = self._counting("Tiers.init", aux, one)
            made = self.first.init(aux=aux, like=like, **options)
        parts: list[KeyValueState] = [made]
        for tier in self.rest:
            slots = replace(tier.memory, size=tier.waiting + tier.memory.size)
            parts.append(slots.init(
                batch=batch, heads=made.key.shape[1], head_dim=made.key.shape[3], xp=found,
                dtype=made.key.dtype, device=found.device_of(made.key),
                value_dim=made.value.shape[3], aux=aux,
            ))  # fmt: skip
        if self.outside and aux is not None and not self.compresses:
            raise ConfigError("Tiers.init: a HostTier keeps no metadata. Leave aux out.")
        count = len(self.rest) + (self.outside is not None)
        tiers = [TierState(*(found.xp.zeros_like(made.clock) for _ in range(4)))] * count
        state = TiersState(*made, tuple(tiers))._replace(**_concatenated(parts))
        return self._with_policy_states(state)

    def _with_policy_states(self, state: TiersState) -> TiersState:
        """Add the initial state of each tier's policy."""
        own = [
            memory.policy.init(Stored(*part[:10]))
            for memory, part in zip(self.memories, self.tiers(state), strict=True)
        ]
        pairs = zip(state.tiers, own[1:], strict=False)
        tiers = [tier._replace(policy_state=x) for tier, x in pairs]
        more = state.tiers[len(self.rest) :]
        return state._replace(policy_state=own[0], tiers=(*tiers, *more))

    def tiers(self, state: TiersState) -> tuple[KeyValueState, ...]:
        """Return the state of each tier's memory, without the entries that wait."""
        where = self._checked("Tiers.tiers", state)
        return tuple(tier_state(state, i, span) for i, span in enumerate(where))

    def evicting(
        self, before: TiersState, after: TiersState, params: Any = None
    ) -> tuple[KeyValueMemory, KeyValueState, KeyValueState, Any]:
        """Return the last tier, its states and its policy's parameters: what leaves it is gone."""
        states = self.tiers(before)[-1], self.tiers(after)[-1]
        return self.memories[-1], *states, self.params(params).policies[-1]

    def entries(self, state: TiersState) -> Entries:
        """Return the entries of all tiers with axes (batch, slots, kv_heads, dim)."""
        self._checked("Tiers.entries", state)
        xp = backend_of(state.key).xp
        key, value = (xp.permute_dims(x, (0, 2, 1, 3)) for x in state[:2])
        return Entries(key, value, *state[2:7], state.aux)

    def reset(self, state: TiersState, rows: Array) -> TiersState:
        """Empty some rows; see `KeyValueMemory.reset`."""
        where = self._checked("Tiers.reset", state)
        found, axis = backend_of(state.key), state.valid.ndim - 1
        aux = state.aux if axis == 1 else tree_map(lambda leaf: leaf[:, 0, ...], state.aux)
        if self.compresses:
            aux = {name: leaf for name, leaf in aux.items() if name != "count"} or None
        empty = self.init(
            batch=state.key.shape[0], heads=state.key.shape[1], head_dim=state.key.shape[3],
            xp=found, dtype=state.key.dtype, device=found.device_of(state.key), aux=aux,
            value_dim=state.value.shape[3], chunk=max(where[0].stop - self.first.size, 1),
        )  # fmt: skip
        if self.outside:
            self.outside.reset(rows)
        return reset_rows("Tiers.reset", state, empty, rows)

    def reorder(self, state: TiersState, index: Array) -> TiersState:
        """Select rows; see `KeyValueMemory.reorder`."""
        self._checked("Tiers.reorder", state)
        if self.outside:
            raise ConfigError("Tiers.reorder: the rows of a HostTier stay where they are.")
        return reorder_rows("Tiers.reorder", state, index)

    def report(self, state: TiersState, *, warn_below: float = 0.0) -> MemoryReport:
        """Report on all tiers as one memory: what entered the first and what left the last."""
        every = self.reports(state, warn_below=warn_below)
        return replace(
            every[0],
            slots=int(state.key.shape[2]),
            used=report_of(state.whole, self.admitted_share(state)).used,
            evicted=every[-1].evicted,
            nbytes=sum(report.nbytes for report in every),
        )

    def reports(self, state: TiersState, *, warn_below: float = 0.0) -> list[MemoryReport]:
        """Report on each tier."""
        return [
            memory.report(part, warn_below=warn_below)
            for memory, part in zip(self.memories, self.tiers(state), strict=True)
        ]

    def admitted_share(self, state: TiersState) -> Array:
        """Return the share of new entries that the first tier admitted while it was full."""
        return self.first.admitted_share(self.tiers(state)[0])

    def parameters(
        self, heads: int, head_dim: int, *, kv_heads: int | None = None,
        value_dim: int | None = None, xp: Any = "numpy", dtype: Any = None, device: Any = None,
    ) -> TiersParameters:  # fmt: skip
        """Return parameters to start from: of the gate and of the compressors.

        Examples
        --------
        >>> import attendre_core as at
        >>> memory = at.Tiers(
        ...     at.KeyValueMemory(8), at.Tier(at.KeyValueMemory(8)), read=at.Gate()
        ... )
        >>> memory.parameters(heads=2, head_dim=4).gate.tolist()
        [0.0, 0.0]
        """
        space = resolve(xp).xp
        like = space.zeros((heads,), dtype=checks.dtype_named(space, dtype), device=device)
        shape = (kv_heads or heads, head_dim, value_dim or head_dim)
        every = [tier.compress for tier in self.rest]
        learned = (x.initial(*shape, like) if isinstance(x, Compressor) else None for x in every)
        gate = like + self.read.initial if isinstance(self.read, Gate) else None
        return self.params(None)._replace(compress=tuple(learned), gate=gate)

    def decoding(self, state: TiersState, room: int) -> tuple[Any, TiersState]:
        """Keep what was read, and make room for generated entries beside the first tier's.

        Generated entries are first in, first out among themselves; what was read is pinned.
        """
        span = self._checked("Tiers.decoding", state)[0]
        slots = max(self.first.size + room, span.stop)
        parts = [grown(tier_state(state, 0, span), slots - span.stop)]
        parts.append(cut(state, span.stop, state.key.shape[2]))
        state = state._replace(**_concatenated(parts))
        state = state._replace(pinned=state.valid)
        plain: dict[str, Any] = {"policy": FIFO(), "protect_recent": 0, "sinks": 0, "pin": ()}
        first = replace(self.first, size=slots, present="compete", **plain)
        rest = (replace(tier, memory=replace(tier.memory, **plain)) for tier in self.rest)
        memory = self.but(first, *rest)
        return memory.over(self.outside.entries.only_read()) if self.outside else memory, state

    # ---------------------------------------------------------------- inside

    def _checked(self, where: str, state: TiersState) -> tuple[Span, ...]:
        """Refuse a state that was not made by these tiers; return where each tier is in it."""
        slots = self.slots(1)
        if self.present == "visible" and isinstance(state, TiersState):
            slots = max(slots, state.key.shape[2])
        heads = (None,) if self.per_head else ()
        fields = {"key": (None, None, slots, None), "score": (None, *heads, slots)}
        checks.belongs(where, state, TiersState, fields, self)
        return spans(self, slots)

    def _counting(self, where: str, aux: Any, count: Array) -> dict[str, Any]:
        """Add the counts of compressed entries to the metadata."""
        if not isinstance(aux, (dict, type(None))) or "count" in (aux or {}):
            raise ConfigError(
                f"{where}: aux is {type(aux).__name__}, expected a dict without 'count', or None: "
                "tiers that compress keep the number of entries there."
            )
        return {**(aux or {}), "count": count}


def _concatenated(parts: list[KeyValueState]) -> dict[str, Any]:
    """Return the slots of several states, one after the other, by field."""
    axis = parts[0].valid.ndim - 1
    fields = {name: joined([getattr(x, name) for x in parts], 2) for name in ("key", "value")}
    fields |= {name: joined([getattr(x, name) for x in parts]) for name in RECORDS}
    aux = tree_map(lambda *leaves: joined(list(leaves), axis), *(x.aux for x in parts))
    return {**fields, "aux": aux}
