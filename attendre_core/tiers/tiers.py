"""Tiers: several memories, of which each receives what the one before it evicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attendre_core import checks, ops
from attendre_core.backend import Array, backend_of, numbers
from attendre_core.errors import ConfigError
from attendre_core.joint.beside import Beside
from attendre_core.memory.admission import arriving, compete
from attendre_core.memory.attend import Reading, gather_top_k, observe, read
from attendre_core.memory.room import clear_room, make_room
from attendre_core.memory.state import EvictedEntries, RetrievedEntries
from attendre_core.policies.base import Policy, Stored
from attendre_core.positions.base import Encoding
from attendre_core.tiers.flow import flow_on
from attendre_core.tiers.reading import (
    JoinedAttention,
    Limit,
    Side,
    TierAttention,
    gated,
    in_order_of_tiers,
    log_total,
)
from attendre_core.tiers.spec import Gate, TiersParameters
from attendre_core.tiers.state import TiersState, cut, joined, spans, tier_state
from attendre_core.tiers.states import TiersStates

__all__ = ["Tiers"]


@dataclass(frozen=True, init=False)
class Tiers(TiersStates):
    """Memories behind a memory: what one evicts, the next receives.

    It stands wherever a `KeyValueMemory` does, with the same methods: in an `AttendreLayer`, a
    `Stack`, a model. The state is one set of arrays with the slots of all tiers.

    Parameters
    ----------
    first
        The memory that new entries are inserted into.
    *rest
        The tiers behind it, in order.
    read
        ``"softmax"``: one softmax over all tiers. `Gate`: one over the first tier and one over all
        others, mixed by a learned gate.

    Notes
    -----
    Laws: nothing is lost and nothing is kept twice: an inserted entry is in one tier, waits to be
    compressed, is a part of one compressed entry, or was evicted by the last tier. No tier holds
    more than its size. First-in-first-out tiers without compressors keep the same entries, whatever
    the chunk length; with a single softmax they are one memory of the sum of their sizes.

    What a tier evicts in a step flows on in the order in which it arrived there. Each policy
    observes its own tier's part of the weights of all tiers. An entry that is not finite, which
    only compiled code can meet, is handed back, and so is a compressed entry that contains one.

    Examples
    --------
    A Compressive Transformer: what leaves the cache is compressed, four entries to one.

    >>> import numpy as np
    >>> import attendre_core as at
    >>> memory = at.Tiers(
    ...     at.KeyValueMemory(4), at.Tier(at.KeyValueMemory(4), compress=at.MeanPool(2))
    ... )
    >>> state = memory.init(batch=1, heads=1, head_dim=2)
    >>> chunk = np.ones((1, 9, 1, 2), dtype=np.float32)
    >>> state, evicted = memory.insert(state, chunk, chunk)
    >>> [sorted(tier.position[tier.valid].tolist()) for tier in memory.tiers(state)]
    [[5, 6, 7, 8], [1, 3]]
    >>> state, output = memory.attend(state, chunk[:, :1])
    >>> output.shape
    (1, 1, 1, 2)
    """

    __init__ = TiersStates.__init__

    # ---------------------------------------------------------------- the paper's operations

    def insert(
        self, state: TiersState, key: Array, value: Array, position: Array | None = None,
        valid: Array | None = None, *, aux: Any = None, pinned: Array | None = None,
        score: Array | None = None, policy_params: Any = None, donate: bool = False,
        hand: bool = True,
    ) -> tuple[TiersState, EvictedEntries | Any]:  # fmt: skip
        """Insert a chunk into the first tier, and return what the last tier evicts.

        Parameters as in `KeyValueMemory.insert`; ``policy_params`` are `TiersParameters`. Unless
        ``hand`` is True, None is returned instead of what is evicted.
        """
        where = "Tiers.insert"
        checks.same_library(where, tuple(state[:9]), key, value, position, valid, aux)
        first = tier_state(state, 0, self._checked(where, state)[0])
        if self.compresses:
            xp = backend_of(state.key).xp
            one = xp.ones_like(key[:, :, 0, 0], dtype=xp.int32)
            aux = self._counting(where, aux, one)
        new = arriving(where, self.first, first, key, value, position, valid, aux, pinned, score)
        if new.valid.shape[-1] == 0:
            none = (key, value, new.position, new.valid, new.aux, new.score, new.arrival)
            return state, EvictedEntries(*none)
        params = self.params(policy_params)
        decide = make_room if self.present == "visible" else compete
        exchange = decide(self.first, first, new, params.policies[0])
        hand = hand or self.outside is not None
        state, gone = flow_on(self, state, exchange, params, donate=donate, hand=hand)
        if self.outside is None or gone is None:
            return state, gone
        before = state.tiers[-1]
        clock, gone = self.outside.receive(before.clock, gone)
        return state._replace(tiers=(*state.tiers[:-1], before._replace(clock=clock))), gone

    def store(self, state: TiersState, *entries: Any, **options: Any) -> TiersState:
        """Insert like `insert`, but do not return what was evicted."""
        return self.insert(state, *entries, **options, hand=False)[0]

    def settle(self, state: TiersState, *, policy_params: Any = None) -> tuple[TiersState, Any]:
        """Let the present chunk compete now; see `KeyValueMemory.settle`."""
        first = tier_state(state, 0, self._checked("Tiers.settle", state)[0])
        params = self.params(policy_params)
        if first.key.shape[2] == self.first.size:
            return state, self.first.settle(first)[1]
        exchange = clear_room(self.first, first, params.policies[0])
        exchange = exchange._replace(new=exchange.new._replace(clock=state.clock))
        return flow_on(self, state, exchange, params, donate=False)

    def attend(
        self, state: TiersState, query: Array, position: Array | None = None,
        valid: Array | None = None, top_k: int | None = None, causal: bool = False, *,
        encoding: Encoding | None = None, encoding_params: Any = None, policy_params: Any = None,
        document: Array | None = None, beside: Beside | None = None,
    ) -> tuple[TiersState, Array]:  # fmt: skip
        """Attend to all tiers, and update the scores in each.

        Parameters as in `KeyValueMemory.attend`. ``top_k`` is for all tiers together; to limit one
        tier, see `Tier`. Entries ``beside`` tiers need one softmax over all that these hold.
        """
        where = "Tiers.attend"
        if beside is not None and not self.is_one_softmax:
            told = "a gate, a tier's top_k and a HostTier have no entries beside them."
            raise ConfigError(f"{where}: {told} Make them a tier.")
        options = (query, position, valid, causal, encoding, encoding_params, document)
        params = self.params(policy_params)
        if query.ndim == 4 and query.shape[1] == 0:
            part = self.first.attend(tier_state(state, 0, self._checked(where, state)[0]), query)
            return state, part[1]
        sides = list(self._readings(where, state, top_k, *options, beside))
        far = None
        if self.outside is not None:
            sides, far = self._with_outside(where, state, sides, *options)
        state = self._observed(where, state, sides, params)
        if not isinstance(self.read, Gate):
            return state, sides[0][0].output()
        gate = params.gate
        if gate is None:
            xp = backend_of(query).xp
            gate = xp.zeros_like(query[0, 0, :, 0]) + self.read.initial
        return state, gated(Side.of(sides[0][0]), far or Side.of(sides[1][0]), gate)

    def retrieve(
        self, state: TiersState, query: Array, position: Array | None = None,
        valid: Array | None = None, top_k: int | None = None, *, causal: bool = False,
        encoding: Encoding | None = None, encoding_params: Any = None, policy_params: Any = None,
        document: Array | None = None,
    ) -> tuple[TiersState, RetrievedEntries]:  # fmt: skip
        """Gather the K best entries of all tiers; see `KeyValueMemory.retrieve`."""
        where = "Tiers.retrieve"
        if isinstance(self.read, Gate) or self.outside:
            told = "a gate and a HostTier have no single top K on the device."
            raise ConfigError(f"{where}: {told} Retrieve from the state of one of tiers(state).")
        options = (query, position, valid, causal, encoding, encoding_params, document)
        readings = list(self._readings(where, state, top_k, *options))
        found = gather_top_k(readings[0][0], state.whole, top_k or state.key.shape[2])
        return self._observed(where, state, readings, self.params(policy_params)), found

    # ---------------------------------------------------------------- inside
    def _readings(
        self, where: str, state: TiersState, top_k: int | None, query: Array, position: Any,
        valid: Any, causal: bool, encoding: Encoding | None, encoding_params: Any, document: Any,
        beside: Beside | None = None,
    ) -> Iterator[tuple[Reading, int]]:  # fmt: skip
        """Yield each softmax, and the slot at which it begins."""
        places, slots = self._checked(where, state), state.key.shape[2]
        limits = [Limit(0, places[0].stop, None)]
        for span, tier in zip(places[1:], self.rest, strict=True):
            limits.append(Limit(span.start, span.first, None))
            limits.append(Limit(span.first, span.stop, tier.top_k, tier.by))
        limited = any(tier.top_k is not None for tier in self.rest)
        if top_k is not None:
            checks.whole_number(where, "top_k", top_k, least=1, hint="None attends to all.")
            if limited or isinstance(self.read, Gate) or self.outside or top_k > slots:
                raise ConfigError(
                    f"{where}: top_k is {top_k}, expected None or at most {slots}, and None with a "
                    "gate or where a tier has its own. Give it to the tiers: at.Tier(top_k=...)."
                )
            state = state._replace(arrival=in_order_of_tiers(state.arrival, limits))
        sides = [limits[:1], limits[1:]] if isinstance(self.read, Gate) else [limits]
        sides = [side for side in sides if side]
        for number, side in enumerate(sides):
            start = side[0].start
            part = cut(state, start, side[-1].stop)
            far = number == 1 and isinstance(self.read, Gate) and not self.read.positions
            reading = read(
                where, part, self.scale, None if top_k == slots else top_k,
                self.first.passes if self.first.retrieval == "approximate" else None,
                query, position, valid, causal,
                encoding=None if far else encoding,
                encoding_params=None if far else encoding_params,
                document=document, beside=beside,
            )  # fmt: skip
            if (limited or self.outside) and number == len(sides) - 1:
                own = [x._replace(start=x.start - start, stop=x.stop - start) for x in side]
                reading = reading._replace(attention=JoinedAttention(reading.attention, own))
            yield reading, start

    def _with_outside(
        self, where: str, state: TiersState, sides: list[tuple[Reading, int]], query: Array,
        position: Any, valid: Any, causal: bool, encoding: Encoding | None, encoding_params: Any,
        document: Any,
    ) -> tuple[list[tuple[Reading, int]], Side | None]:  # fmt: skip
        """Join what is retrieved from outside to the last side, or return it as a side."""
        if self.outside is None or document is not None:
            raise ConfigError(f"{where}: a HostTier does not keep documents apart.")
        xp, (batch, count, heads, dim) = backend_of(query).xp, query.shape
        if position is None:
            position = state.clock[:, None] - count + numbers(count, query)
        found = self.outside.retrieve(state.tiers[-1].clock, query, valid, state.key, state.value)
        alone = isinstance(self.read, Gate) and not self.read.positions
        reading = read(
            where, found.state, self.scale, None, None,
            xp.reshape(query, (batch * count, 1, heads, dim)),
            xp.reshape(position, (batch * count, 1)),
            None if valid is None else xp.reshape(valid, (batch * count, 1)), causal,
            encoding=None if alone else encoding,
            encoding_params=None if alone else encoding_params,
        )  # fmt: skip
        pairs = reading.pairs._replace(sink=None)
        weights = ops.masked_softmax(ops.logits(pairs), ops.allowed_pairs(pairs))
        output = ops.mix(weights, reading.value)
        total = log_total(pairs, ops.allowed_pairs(pairs))

        def by_head(x: Array, groups: int) -> Array:
            """(batch * queries, heads, 1, 1, ...) to (batch, groups, group, queries, ...)."""
            x = xp.reshape(x, (batch, count, groups, heads // groups, *x.shape[4:]))
            return xp.permute_dims(x, (0, 2, 3, 1, *range(4, x.ndim)))

        if len(sides) == 1 and isinstance(self.read, Gate):
            public = xp.reshape(output, (batch, count, heads, output.shape[-1]))
            some = xp.reshape(total > -float("inf"), (batch, count, heads, 1))
            share = xp.ones_like(total)
            result, far = sides, Side(xp.astype(public, query.dtype, copy=False), some)
        else:
            last, start = sides[-1]
            groups = state.key.shape[1]
            given = by_head(output, groups), by_head(total, groups)
            joint: Any = last.attention
            joint = joint.beside(*given)
            result, far = [*sides[:-1], (last._replace(attention=joint), start)], None
            share = xp.reshape(xp.permute_dims(1.0 - joint._share, (0, 3, 1, 2)), total.shape)
            if len(sides) == 2:  # a query may find something outside alone
                some = ops.ungrouped((given[1] > -float("inf"))[..., None])
                own = Side.of(result[-1][0])
                far = own._replace(found=own.found | some)
        kept = weights * share[..., None]
        self.outside.observe(found.slot, xp.reshape(kept, (batch, count, heads, -1)))
        return result, far

    def _observed(
        self, where: str, state: TiersState, readings: list[tuple[Reading, int]],
        params: TiersParameters,
    ) -> TiersState:  # fmt: skip
        """Let each tier's policy observe its own part."""
        places, after = spans(self, state.key.shape[2]), []
        latest = readings[0][0].attention.latest
        rules = [memory.policy for memory in self.memories]
        silent = state.policy_state is None and not any(tier.waiting for tier in self.rest)
        silent = silent and all(tier.policy_state is None for tier in state.tiers)
        if silent and len(readings) == 1 and all(type(r).observe is Policy.observe for r in rules):
            seen = state.observed | readings[0][0].attention.seen
            return state._replace(observed=seen, latest_query=latest)
        for number, (memory, span) in enumerate(zip(self.memories, places, strict=True)):
            reading, start = readings[min(number, len(readings) - 1)]
            own = tier_state(state, number, span)
            at = (span.first - start, span.stop - start)
            if own.policy_state is None and type(memory.policy).observe is Policy.observe:
                seen = reading.attention.seen[..., at[0] : at[1]]
                after.append(own._replace(observed=own.observed | seen, latest_query=latest))
                continue
            stored = Stored(*own[:10], own.policy_state, params.policies[number])
            view = TierAttention(reading.attention, *at, stored)
            after.append(observe(where, memory.policy, own, view))

        def whole(name: str) -> Array:
            old, parts = getattr(state, name), []
            for part, span in zip(after, places, strict=True):
                parts += [old[..., span.start : span.first], getattr(part, name)]
            return joined([part for part in parts if part.shape[-1]])

        tiers = zip(state.tiers, after[1:], strict=False)
        more = state.tiers[len(self.rest) :]
        return state._replace(
            score=whole("score"),
            observed=whole("observed"),
            latest_query=after[0].latest_query,
            policy_state=after[0].policy_state,
            tiers=(*(t._replace(policy_state=x.policy_state) for t, x in tiers), *more),
        )
