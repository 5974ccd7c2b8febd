"""How queries attend to tiers: one softmax over all slots, or one on each side of a gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from attendre_core import ops
from attendre_core.backend import Array, namespace_of, numbers, wide
from attendre_core.memory.attend import Reading
from attendre_core.ops.pairs import Pairs, Term
from attendre_core.ops.pooling import known
from attendre_core.policies.base import Stored
from attendre_core.policies.view import Attention

__all__ = [
    "JoinedAttention", "Limit", "Side", "TierAttention", "gated", "in_order_of_tiers", "log_total",
]  # fmt: skip


class Limit(NamedTuple):
    """Attend to the ``top_k`` best of the slots from ``start`` to ``stop``; None = to all.

    With ``by`` above 1, to those chunks of so many successive arrivals whose mean logit is best.
    """

    start: int
    stop: int
    top_k: int | None
    by: int = 1


class TierAttention(Attention):
    """A tier's part of what queries attended to, for its policy.

    Logits, weights and what was used are those of the softmax over all tiers.
    """

    def __init__(self, whole: Attention, start: int, stop: int, stored: Stored) -> None:
        pairs, value = _cut_pairs(whole._pairs, start, stop), whole._value[:, :, start:stop, :]
        before, query = whole._latest_before, whole._plain_query
        super().__init__(pairs, value, whole.position, stored, before, query, attends=False)
        self._whole, self._at = whole, (start, stop)

    def _part(self, x: Array) -> Array:
        return x[..., self._at[0] : self._at[1]]

    @property
    def logits(self) -> Array:
        """As in `Attention`."""
        return self._part(self._whole.logits)

    @property
    def weights(self) -> Array:
        """The tier's part of the softmax over all tiers."""
        return self._part(self._whole.weights)

    @property
    def used(self) -> Array:
        """As in `Attention`."""
        return self._part(self._whole.used)

    def pool(self, amounts: Array | str, *, queries: str = "sum", heads: str = "sum",
             weight: Array | None = None, times: Array | None = None,
             unseen: Array | None = None) -> Array:  # fmt: skip
        """As in `Attention`."""
        if not isinstance(amounts, str) or amounts != "weights":
            given: dict[str, Any] = {"weight": weight, "times": times, "unseen": unseen}
            return super().pool(amounts, queries=queries, heads=heads, **given)
        whole = self._whole
        if isinstance(whole, JoinedAttention):
            pooled = ops.pool_queries(whole.weights, whole.allowed, queries, weight)
        else:
            value = whole._value if whole._attends else None
            pooled = ops.pool_pairs(whole._pairs, amounts, queries, weight, value)
        pooled = self._part(pooled)
        if times is not None:
            pooled = pooled * times[:, :, None, :]
        return self._over_heads(pooled, heads, unseen)

    def last(self, count: int | None = 1) -> Attention:
        """As in `Attention`."""
        return TierAttention(self._whole.last(count), *self._at, self.stored)

    def attended(self) -> Array:
        """As in `Attention`."""
        return self._whole.attended()


class JoinedAttention(Attention):
    """Attention to the best entries of some tiers, and together with entries outside.

    Parameters
    ----------
    limits
        How many entries of each tier each query attends to.
    share, output
        (batch, G, R, queries): which share of the weights is on this side of the device, and the
        output of both sides; None if there is nothing outside.
    """

    def __init__(
        self, whole: Attention, limits: Sequence[Limit], share: Any = None, output: Any = None
    ) -> None:
        vars(self).update(vars(whole))
        self._limits, self._share, self._attends = limits, share, False
        self._output = output

    @property
    def weights(self) -> Array:
        """As in `Attention`; what is outside has the rest of the weights."""
        weights = super().weights
        return weights if self._share is None else weights * self._share[..., None]

    @property
    def used(self) -> Array:
        """As in `Attention`."""
        if self._used is None:
            logits, parts = self.logits, []
            allowed = self._xp.broadcast_to(self.allowed, logits.shape)
            for start, stop, top_k, by in self._limits:
                part, order = allowed[..., start:stop], self.order[..., start:stop]
                if top_k is not None and by > 1:
                    part = part & _best_chunks(logits[..., start:stop], part, top_k, order, by)
                elif top_k is not None and top_k < stop - start:
                    part = part & ops.select_top_k(logits[..., start:stop], part, top_k, order)
                parts.append(part)
            self._used = self._xp.concat(parts, axis=-1)
        return self._used

    def last(self, count: int | None = 1) -> Attention:
        """As in `Attention`."""
        whole, share = super().last(count), self._share
        if whole is self:
            return self
        if share is not None:
            number = numbers(share.shape[-1], share)
            late = self._xp.where(self.valid, number, number - share.shape[-1])
            index = self._xp.argsort(late, axis=-1)[:, -whole.valid.shape[1] :]
            share = ops.gather_slots(share, index, axis=3)
        return JoinedAttention(whole, self._limits, share)

    def attended(self) -> Array:
        """As in `Attention`."""
        if self._output is None:
            pairs = self._pairs
            weights = ops.masked_softmax(known(pairs, "logits"), self.used, pairs.sink)
            self._output = ops.mix(weights, wide(self._value))
        return self._output

    def beside(self, output: Array, total: Array) -> JoinedAttention:
        """Join another side by its output and the logarithm of its sum, (batch, G, R, queries)."""
        xp, own = self._xp, log_total(self._pairs, self.used)
        top = xp.maximum(own, total)
        top = xp.where(top == -float("inf"), xp.zeros_like(top), top)
        here, there = xp.exp(own - top), xp.exp(total - top)
        every = here + there
        share = here / xp.where(every > 0, every, xp.ones_like(every))
        rest = xp.where(every > 0, 1.0 - share, xp.zeros_like(share))
        output = share[..., None] * self.attended() + rest[..., None] * output
        return JoinedAttention(self, self._limits, self._cut(share), output)


def _best_chunks(logits: Array, allowed: Array, top_k: int, order: Array, by: int) -> Array:
    """Return which entries are in the chunks with the best mean logits of what is allowed."""
    xp = namespace_of(logits)
    number = order // by
    same = number == xp.matrix_transpose(number)
    flags = xp.astype(allowed, logits.dtype)
    some = xp.matmul(flags, xp.astype(same, logits.dtype))
    total = xp.matmul(ops.fill(logits, ~allowed, 0.0), xp.astype(same, logits.dtype))
    mean = total / xp.where(some > 0, some, xp.ones_like(some))
    # The first allowed entry of a chunk stands for it.
    earlier = same & (order < xp.matrix_transpose(order))
    first = xp.matmul(flags, xp.astype(xp.matrix_transpose(earlier), logits.dtype)) == 0
    chosen = ops.select_top_k(mean, allowed & first, top_k, order)
    return xp.matmul(xp.astype(chosen, logits.dtype), xp.astype(same, logits.dtype)) > 0


def log_total(pairs: Pairs, allowed: Array) -> Array:
    """Return the logarithm of the sum in a softmax, (batch, G, R, queries); -inf if it is empty."""
    xp = namespace_of(allowed)
    logits = xp.where(allowed, known(pairs, "logits"), -float("inf"))
    if pairs.sink is not None:
        sink = xp.broadcast_to(pairs.sink, (*logits.shape[:-1], 1))
        logits = xp.concat([logits, sink], axis=-1)
    top = xp.max(logits, axis=-1, keepdims=True)
    top = xp.where(top == -float("inf"), xp.zeros_like(top), top)
    total = xp.sum(xp.exp(logits - top), axis=-1, dtype=logits.dtype)
    some = xp.where(total > 0, total, xp.ones_like(total))
    return xp.where(total > 0, xp.log(some) + top[..., 0], -float("inf"))


def _cut_pairs(pairs: Pairs, start: int, stop: int) -> Pairs:
    """Return the pairs with some of the slots."""

    def part(x: Any) -> Any:
        shared = x is None or isinstance(x, ops.DistanceBias) or x.shape[-1] == 1
        return x if shared else x[..., start:stop]

    def of(term: Term) -> Term:
        key = term.plain_key[:, :, start:stop, :]
        at = (term.query_at, part(term.key_at))
        return Term(term.plain_query, key, term.rotate, *at, term.low, term.high)

    return pairs._replace(
        key_position=part(pairs.key_position),
        key_valid=part(pairs.key_valid),
        order=part(pairs.order),
        terms=tuple(of(term) for term in pairs.terms),
        key_place=part(pairs.key_place),
        bias=part(pairs.bias),
        near=part(pairs.near),
        memo={},
        documents=pairs.documents and (pairs.documents[0], part(pairs.documents[1])),
    )


def in_order_of_tiers(arrival: Array, limits: Sequence[Limit]) -> Array:
    """Return an order of all slots: earlier tiers rank higher, and within one later entries."""
    xp, parts, left = namespace_of(arrival), [], arrival.shape[-1]
    for start, stop, *_ in limits:
        left -= stop - start
        rank = xp.argsort(xp.argsort(arrival[..., start:stop], axis=-1), axis=-1)
        parts.append(xp.astype(rank, xp.int32) + left)
    return xp.concat(parts, axis=-1)


def gated(local: Side, memory: Side, gate: Array) -> Array:
    """Mix two outputs, (batch, queries, heads, value_dim), by a gate for each head."""
    near, far = wide(local.output), wide(memory.output)
    xp = namespace_of(near)
    share = 1.0 / (1.0 + xp.exp(-wide(gate)))[None, None, :, None]
    share = xp.where(local.found, share + xp.zeros_like(near[..., :1]), 1.0)
    share = xp.where(memory.found, share, 0.0)
    return xp.astype(share * far + (1.0 - share) * near, local.output.dtype, copy=False)


class Side(NamedTuple):
    """An output, and whether each query and head found an entry, (batch, queries, heads, 1)."""

    output: Array
    found: Array

    @classmethod
    def of(cls, reading: Reading) -> Side:
        """Attend."""
        output, xp = reading.output(), namespace_of(reading.value)
        allowed = xp.any(ops.visible_pairs(reading.pairs), axis=-1)
        groups = reading.value.shape[1]
        batch, queries, heads, _ = output.shape
        allowed = xp.broadcast_to(allowed, (batch, groups, heads // groups, queries))
        return cls(output, ops.ungrouped(allowed[..., None]))
