"""What the queries of one step attended to, as a policy sees it."""

from __future__ import annotations

from collections.abc import Callable

from attendre_core import ops
from attendre_core.backend import Array, backend_of, numbers, wide
from attendre_core.errors import ConfigError
from attendre_core.ops.pairs import Pairs, select_queries, visible_pairs
from attendre_core.ops.pooling import known
from attendre_core.policies.base import Stored

__all__ = ["Attention"]

#: The latest query position of a row before its first query.
NO_QUERY = -(2**31)


class Attention:
    """The queries of one step against all stored entries.

    Everything is computed on first use, so a policy pays only for what it uses. In shapes, G is
    the number of K/V heads and R the number of query heads per K/V head; scores are (batch,
    slots), or (batch, G, slots) with ``per_head=True``. No gradient flows through what a policy
    sees, and half precision is float32 here.

    Attributes
    ----------
    position, valid
        (batch, queries): int32 positions of the queries, and which of them are valid.
    latest
        int32, (batch,): the latest query position so far.
    mask
        What `Policy.soft_mask` returned, with gradients; None without one.
    """

    def __init__(
        self,
        pairs: Pairs,
        value: Array,
        position: Array,
        stored: Stored,
        latest_before: Array,
        query: Callable[[], Array],
        top_k: int | None = None,
        passes: int | None = None,
        attends: bool = True,
        others: Array | None = None,
    ) -> None:
        backend = backend_of(value)
        self._xp, self._cut = backend.xp, backend.stop_gradient
        self._pairs, self._value, self.stored = pairs, value, stored
        self._plain_query, self._top_k, self._passes = query, top_k, passes
        self._others = others  # what entries beside the memory give; then values end in a one
        self._output: Array | None = None  # with gradients
        self._bound: tuple[Array, ...] = ()  # threshold and oldest of the top K
        self._attends = attends and top_k is None  # to all entries, for the step's output
        self.mask: Array | None = None
        self._used: Array | None = None
        self._seen: Array | None = None
        self.position, self.valid = position, pairs.query_valid
        xp = backend.xp
        self._present = xp.max(xp.where(self.valid, position, NO_QUERY), axis=-1)
        self.latest = xp.maximum(latest_before, self._present)
        self._latest_before = latest_before

    # ---------------------------------------------------------------- what happened

    @property
    def per_head(self) -> bool:
        """Whether scores are kept for each K/V head, (batch, G, slots)."""
        return bool(self.stored.score.ndim == 3)

    @property
    def latest_before(self) -> Array:
        """int32, (batch,): `latest` before this step; equal to `latest` in a row's first step."""
        before = self._latest_before
        return self._xp.where(before == NO_QUERY, self.latest, before)

    @property
    def query(self) -> Array:
        """(batch, G, R, queries, head_dim): the queries, without positions or scale."""
        return self._cut(self._plain_query())

    @property
    def key(self) -> Array:
        """(batch, G, slots, head_dim): the stored keys, without positions."""
        return self._cut(wide(self._pairs.terms[0].plain_key))

    @property
    def value(self) -> Array:
        """(batch, G, slots, value_dim): the stored values."""
        return self._cut(wide(self.stored.value))

    @property
    def logits(self) -> Array:
        """(batch, G, R, queries, slots): after scale, position and bias; for `allowed` pairs."""
        return self._cut(known(self._pairs, "logits"))

    @property
    def weights(self) -> Array:
        """(batch, G, R, queries, slots): softmax over all allowed entries, not only the top K."""
        return self._cut(known(self._pairs, "weights"))

    @property
    def output(self) -> Array:
        """(batch, G, R, queries, value_dim): the output of attention."""
        return self._cut(wide(self.attended()))

    @property
    def allowed(self) -> Array:
        """Boolean, broadcastable to `logits`: the query is valid and may attend to the entry."""
        return known(self._pairs, "allowed")

    @property
    def order(self) -> Array:
        """int32, broadcastable to `logits`: of equal logits the higher order is retrieved."""
        return self._pairs.order[:, :, None, None, :]

    @property
    def used(self) -> Array:
        """Boolean, broadcastable to `logits`: the entry is in the top K of that query and head."""
        if self._used is None:
            if self._top_k is None:
                self._used = self.allowed
            else:
                if not self._bound:
                    self.attended()
                threshold, oldest = self._bound
                chosen = ops.among_top_k(self.logits, threshold, oldest, self.order)
                self._used = chosen & self.allowed
        return self._used

    def used_by_query(self) -> Array:
        """Boolean, (batch, queries, slots) [(batch, G, ...)]: in the top K on any head."""
        return ops.over_heads(self.used, "any", per_head=self.per_head)

    @property
    def seen(self) -> Array:
        """Boolean, (batch, slots) [(batch, G, slots)]: some valid query may attend to the entry."""
        if self._seen is None:
            xp, pairs = self._xp, self._pairs
            if pairs.near is not None:
                seen = xp.any(self.allowed, axis=(2, 3))
                self._seen = seen if self.per_head else xp.any(seen, axis=1)
            else:
                # Without a valid query, no position is that early.
                some = self.along_slots(
                    self._present if pairs.causal else xp.any(self.valid, axis=-1)
                )
                if pairs.causal:
                    some = self.stored.position <= some
                self._seen = self.stored.valid & some
        return self._seen

    # ---------------------------------------------------------------- to compute scores

    def along_slots(self, row: Array) -> Array:
        """Reshape a (batch,) array to broadcast against scores."""
        return self._xp.reshape(row, (row.shape[0],) + (1,) * (self.stored.score.ndim - 1))

    def along_queries(self, per_query: Array) -> Array:
        """Reshape a (batch, queries) array to broadcast against `used_by_query`."""
        batch, queries = per_query.shape
        heads = (1,) if self.per_head else ()
        return self._xp.reshape(per_query, (batch, *heads, queries, 1))

    def pool(
        self,
        amounts: Array | str,
        *,
        queries: str = "sum",
        heads: str = "sum",
        weight: Array | None = None,
        times: Array | None = None,
        unseen: Array | None = None,
    ) -> Array:
        """Pool over the queries that saw an entry, then over heads.

        Parameters
        ----------
        amounts
            Broadcastable to `logits`; or ``"logits"`` or ``"weights"``, which are then pooled
            without the matrix of all pairs where a kernel can.
        queries, heads
            ``"sum"``, ``"max"`` or ``"mean"``.
        weight
            (batch, queries): multiplies the amounts; None = 1.
        times
            (batch, G, slots): multiplies what is pooled over queries, before heads; None = 1.
        unseen
            Scores of the entries that no valid query saw; None = they keep their scores.
        """
        if not isinstance(amounts, str):
            pooled = ops.pool_queries(amounts, self.allowed, queries, weight)
        elif amounts not in ("logits", "weights"):
            raise ConfigError(
                f"Attention.pool: amounts is {amounts!r}, expected an array, 'logits' or 'weights'."
            )
        elif amounts == "logits" and queries != "max" and times is None:
            return self.sum_logits(weight, queries=queries, heads=heads, unseen=unseen)
        else:
            value = self._value if self._attends else None
            pooled = ops.pool_pairs(self._pairs, amounts, queries, weight, value)
        if times is not None:
            pooled = pooled * times[:, :, None, :]
        return self._over_heads(pooled, heads, unseen)

    def sum_logits(
        self,
        weight: Array | None = None,
        *,
        queries: str = "sum",
        heads: str = "sum",
        unseen: Array | None = None,
    ) -> Array:
        """Sum the logits over the queries that saw an entry, then pool over heads.

        The same as `pool` of the weighted logits, but cheaper: the sum of w q.k over queries is
        (sum of w q).k.

        Parameters
        ----------
        weight
            (batch, queries), 1 by default.
        queries
            ``"sum"``, or ``"mean"`` to divide by how many queries saw the entry.
        heads, unseen
            As in `pool`.
        """
        pooled = self._cut(ops.sum_logits(self._pairs, weight))
        if queries == "mean":
            pooled = self._per_query(pooled)
        return self._over_heads(pooled, heads, unseen)

    def last(self, count: int | None = 1) -> Attention:
        """Return the same view of only the last ``count`` valid queries of each row; None = all."""
        xp, pairs = self._xp, self._pairs
        queries = self.valid.shape[1]
        if count is None or count >= queries:
            return self
        number = numbers(queries, self.valid)
        # Valid queries in their order, after all others.
        index = xp.argsort(xp.where(self.valid, number, number - queries), axis=-1)[:, -count:]

        def only(x: Array | None, axis: int) -> Array | None:
            return x if x is None else ops.gather_slots(x, index, axis=axis)

        return Attention(
            select_queries(pairs, index), self._value, only(self.position, 1), self.stored,
            self.latest, lambda: only(self.query, 3), self._top_k, self._passes, False,
            only(self._others, 3),
        )  # fmt: skip

    # ---------------------------------------------------------------- inside

    def attended(self) -> Array:
        """Return the output with gradients, reusing logits or weights that are already computed."""
        if self._output is not None:
            return self._output
        if self._top_k is not None:
            output, *bound = ops.attend_top_k(
                known(self._pairs, "logits"), wide(self._value), visible_pairs(self._pairs),
                self._top_k, self.order, self._passes,
            )  # fmt: skip
            self._bound = tuple(self._cut(part) for part in bound)
            if (sink := self._pairs.sink) is not None:
                weights = ops.masked_softmax(known(self._pairs, "logits"), self.used, sink)
                output = ops.mix(weights, self._value)
        elif "logits" in (self._pairs.memo or ()):
            output = ops.mix(known(self._pairs, "weights"), self._value)
        else:
            output = ops.attend(self._pairs, self._value)
        if self._others is not None:
            output = self.with_others(output)
        self._output = output
        return output  # not the attribute: a trace forgets it if attend is a call of FlexAttention

    def with_others(self, output: Array) -> Array:
        """Add the part of the entries beside the memory: they get the weight that is left."""
        if self._others is None:
            return output
        return output[..., :-1] + (1.0 - output[..., -1:]) * self._others

    def _per_query(self, summed: Array) -> Array:
        """Divide sums, (batch, G, R, slots), by the number of queries that saw the entry."""
        count = ops.count_true(self.allowed, axis=3)
        count = self._xp.maximum(count, self._xp.ones_like(count))
        return summed / self._xp.astype(count, summed.dtype)

    def _over_heads(self, pooled: Array, heads: str, unseen: Array | None) -> Array:
        """Pool (batch, G, R, slots) over the heads that share a decision, and fill in `unseen`."""
        pooled = ops.over_heads(pooled, heads, per_head=self.per_head)
        kept = self.stored.score if unseen is None else unseen
        return self._xp.where(self.seen, pooled, kept)
