"""What the queries of one step did, as a policy sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from attendre_core.backend import Array, backend_of, kernel, namespace_of, numbers
from attendre_core.memory.state import NO_QUERY
from attendre_core.ops.attention import attend_top_k, logits_of, mix
from attendre_core.ops.counting import count_true
from attendre_core.ops.selection import among_top_k, approximate_top_k, select_top_k
from attendre_core.ops.slots import write_slots
from attendre_core.ops.softmax import masked_softmax

__all__ = ["Attention", "Share"]

_INFINITY = float("inf")
_LAST = 2**31 - 1


class Attention:
    """The queries of one step against all stored entries.

    Nothing is computed before it is asked for, so a policy pays only for what it reads. Shapes
    use G K/V heads with R query heads each.

    Attributes
    ----------
    position, valid
        (batch, queries): int32 positions of the queries, and which of them are real.
    latest
        int32, (batch,): the latest query position so far.
    shares
        Of each row, if its logits are several kinds of product; else empty.
    """

    def __init__(
        self,
        *,
        query: Array,
        key: Array,
        position: Array,
        valid: Array,
        key_position: Array,
        key_valid: Array,
        order: Array,
        latest_before: Array,
        causal: bool = False,
        top_k: int | None = None,
        passes: int | None = None,
        bias: Array | None = None,
        logits: Array | None = None,
        same_document: Array | None = None,
        whole: bool = False,
        shares: tuple[tuple[Share, ...], ...] = (),
        make_logits: Callable[[], Array] | None = None,
    ) -> None:
        xp = namespace_of(query)
        self._xp = xp
        self._query = query
        self._key = key
        self._key_position = key_position
        self._key_valid = key_valid
        self._order = order
        self._causal = causal
        self._top_k = top_k
        self._passes = passes
        self._bias = bias
        self._logits = logits
        self._same_document = same_document
        self._whole = whole  # all queries are known to be real
        self.shares = shares
        self._make_logits = make_logits
        # Who may attend to whom is then the real queries times the real entries ...
        self._all_pairs = not causal and same_document is None
        # ... and a sum of logits over queries is one product a head.
        self._plain = bias is None and logits is None and not shares
        self._separable = self._all_pairs and self._plain
        self._used: Array | None = None
        self._cut: tuple[Array, Array] | None = None  # what decides who is in the top K
        self._weights: Array | None = None
        self._allowed: Array | None = None
        self._seen: Array | None = None
        self.position = position
        self.valid = valid
        if whole:
            present = xp.max(position, axis=-1)
        else:
            present = xp.max(xp.where(valid, position, xp.full_like(position, NO_QUERY)), axis=-1)
        self._present = present
        self.latest = xp.maximum(latest_before, present)
        self._latest_before = latest_before

    @property
    def latest_before(self) -> Array:
        """int32, (batch,): as `latest`, without this step; the same in a row's first step."""
        before = self._latest_before
        return self._xp.where(before == NO_QUERY, self.latest, before)

    @property
    def order(self) -> Array:
        """int32, broadcastable to `logits`: of equal logits the higher order is retrieved."""
        return self._five_axes(self._order)

    def provide(self, logits: Array) -> None:
        """Hand in logits that were computed for the output already."""
        self._logits = logits

    @property
    def per_head(self) -> bool:
        """Whether scores are kept for each K/V head, (batch, G, slots)."""
        return bool(self._key_valid.ndim == 3)

    def along_slots(self, row: Array) -> Array:
        """Shape a (batch,) array so that it meets (batch, slots) or (batch, G, slots)."""
        return self._xp.reshape(row, (row.shape[0],) + (1,) * (self._key_valid.ndim - 1))

    def along_queries(self, per_query: Array) -> Array:
        """Shape a (batch, queries) array so that it meets `used_by_query`."""
        batch, queries = per_query.shape
        heads = (1,) if self.per_head else ()
        return self._xp.reshape(per_query, (batch, *heads, queries, 1))

    @property
    def allowed(self) -> Array:
        """Boolean, broadcastable to `logits`: the query is real and may attend to the entry."""
        if self._allowed is None:
            stored = self._behind if self._causal else self._five_axes(self._key_valid)
            pair = self.valid[:, None, None, :, None] & stored
            if self._same_document is not None:
                pair = pair & self._same_document
            self._allowed = pair
        return self._allowed

    @property
    def attended(self) -> Array:
        """As `allowed`, for outputs: those of invalid queries are dropped, so any will do."""
        if self._same_document is not None:
            return self.allowed
        return self._behind if self._causal else self._five_axes(self._key_valid)

    @property
    def _behind(self) -> Array:
        """Boolean, as `allowed`: the query, real or not, stands at or behind a stored entry."""
        none = self._xp.full_like(self._key_position, _LAST)
        at = self._five_axes(self._xp.where(self._key_valid, self._key_position, none))
        return at <= self.position[:, None, None, :, None]

    @property
    def logits(self) -> Array:
        """(batch, G, R, queries, slots): after scale, position and bias; for `allowed` pairs."""
        if self._logits is None and self._make_logits is not None:
            self._logits = self._make_logits()
        if self._logits is None:
            self._logits = logits_of(self._query, self._key)
            if self._bias is not None:
                self._logits = self._logits + self._bias
        return self._logits

    @property
    def weights(self) -> Array:
        """(batch, G, R, queries, slots): softmax over all allowed entries, not only the top K."""
        if self._weights is None:
            self._weights = masked_softmax(self.logits, self.allowed)
        return self._weights

    @property
    def used(self) -> Array:
        """Boolean, broadcastable to `logits`: the entry is in the top K of that query and head."""
        if self._used is None:
            if self._top_k is None or self._top_k >= self._key.shape[2]:
                self._used = self.allowed
            elif self._cut is not None:
                chosen = among_top_k(self.logits, *self._cut, self.order)
                self._used = chosen & self.allowed
            elif self._passes is None:
                self._used = select_top_k(self.logits, self.allowed, self._top_k, self.order)
            else:
                self._used = approximate_top_k(self.logits, self.allowed, self._top_k, self._passes)
        return self._used

    def over_top_k(self, logits: Array, value: Array) -> Array:
        """Attend to the top K of these logits, which are `logits` with their gradients."""
        if self._top_k is None or kernel("attend_top_k", logits) is None:
            return mix(masked_softmax(logits, self.used), value)
        output, *cut = attend_top_k(
            logits, value, self.attended, self._top_k, self.order, self._passes
        )
        self._cut = (cut[0], cut[1])
        return output

    @property
    def seen(self) -> Array:
        """Boolean, (batch, slots) [(batch, G, slots)]: some real query may attend to it."""
        if self._seen is None:
            self._seen = self._find_seen()
        return self._seen

    def _find_seen(self) -> Array:
        xp = self._xp
        if self._same_document is not None:
            pair = xp.any(self.allowed, axis=(2, 3))
            return pair if self.per_head else xp.any(pair, axis=1)
        if self._whole and not self._causal:
            return self._key_valid
        stored = self._key_valid
        if not self._whole:
            stored = stored & self.along_slots(xp.any(self.valid, axis=-1))
        if self._causal:
            stored = stored & (self._key_position <= self.along_slots(self._present))
        return stored

    def used_by_query(self) -> Array:
        """Boolean, (batch, queries, slots) [(batch, G, ...)]: in the top K on any head."""
        axes = (2,) if self.per_head else (1, 2)
        return self._xp.any(self.used, axis=axes)

    def last(self) -> Attention:
        """Return the same view with the last valid query of the chunk alone, per row."""
        xp = self._xp
        number = numbers(self.valid.shape[-1], self.valid)
        none = xp.full_like(number, -1)
        which = xp.max(xp.where(self.valid, number, none), axis=-1, keepdims=True)
        is_last = number == which

        def only(pairs: Array | None) -> Array | None:
            """Take the row of the last query out of (batch, G, R, queries, slots)."""
            if pairs is None or pairs.shape[3] == 1:
                return pairs
            here = is_last[:, None, None, :, None]
            if xp.isdtype(pairs.dtype, "bool"):
                return xp.any(pairs & here, axis=3, keepdims=True)
            kept = xp.where(here, pairs, xp.zeros_like(pairs))
            return xp.sum(kept, axis=3, keepdims=True, dtype=pairs.dtype)

        chosen = xp.where(is_last[:, None, None, :, None], self._query, xp.zeros_like(self._query))
        at = xp.where(is_last, self.position, xp.zeros_like(self.position))
        return Attention(
            query=xp.sum(chosen, axis=3, keepdims=True, dtype=chosen.dtype),
            key=self._key,
            position=xp.sum(at, axis=-1, keepdims=True, dtype=xp.int32),
            valid=which >= 0,
            key_position=self._key_position,
            key_valid=self._key_valid,
            order=self._order,
            latest_before=self.latest,
            causal=self._causal,
            top_k=self._top_k,
            passes=self._passes,
            bias=None if self._logits is not None else only(self._bias),
            logits=only(self.logits if self.shares else self._logits),
            same_document=only(self._same_document),
        )

    def pool(
        self,
        amounts: Array,
        *,
        queries: str = "sum",
        heads: str = "sum",
        unseen: Array,
    ) -> Array:
        """Pool over the queries that saw an entry, then over heads.

        Parameters
        ----------
        amounts
            Broadcastable to `logits`.
        queries, heads
            ``"sum"``, ``"max"`` or ``"mean"``.
        unseen
            (batch, slots) [(batch, G, slots)]: returned where no real query saw the entry.

        Returns
        -------
        array
            (batch, slots) [(batch, G, slots)].
        """
        xp = self._xp
        if queries == "max":
            pooled = xp.max(xp.where(self.allowed, amounts, -_INFINITY), axis=3)
            pooled = xp.where(pooled == -_INFINITY, xp.zeros_like(pooled), pooled)
        else:
            kept = xp.where(self.allowed, amounts, xp.zeros_like(amounts))
            pooled = xp.sum(kept, axis=3, dtype=kept.dtype)
            if queries == "mean":
                pairs = count_true(self.allowed, axis=3)
                pairs = xp.maximum(pairs, xp.ones_like(pairs))
                pooled = pooled / xp.astype(pairs, pooled.dtype)
        return xp.where(self.seen, self._over_heads(pooled, heads), unseen)

    def sum_logits(
        self, weight: Array | None = None, *, heads: str = "sum", unseen: Array
    ) -> Array:
        """Sum the logits over the queries that saw an entry, then pool over heads.

        The same as `pool` of the weighted logits. Where all real queries may attend to all
        entries it costs one vector a head instead of the whole matrix, because the sum of
        w q.k is (sum of w q).k.

        Parameters
        ----------
        weight
            (batch, queries), 1 by default.
        heads, unseen
            As in `pool`.
        """
        xp = self._xp
        if self.shares and heads != "max":
            return self._sum_of_shares(weight, heads, unseen)
        if not self._all_pairs:
            scores = self._sum_before(weight, heads, unseen)
            if scores is not None:
                return scores
            amounts = self.logits
            if weight is not None:
                amounts = amounts * weight[:, None, None, :, None]
            return self.pool(amounts, queries="sum", heads=heads, unseen=unseen)
        if self._whole and weight is None and self._separable:
            query = xp.sum(self._query, axis=3, dtype=self._query.dtype)
            return self._summed(query, heads, unseen)
        factor = xp.astype(self.valid, self._query.dtype)
        if weight is not None:
            factor = factor * weight
        if not self._separable:
            rows = xp.broadcast_to(
                factor[:, None, None, None, :], (*self.logits.shape[:3], 1, factor.shape[1])
            )
            summed = xp.matmul(rows, self.logits)[:, :, :, 0, :]
            return xp.where(self.seen, self._over_heads(summed, heads), unseen)
        return self._summed(self._weighted(factor), heads, unseen)

    def _sum_of_shares(self, weight: Array | None, heads: str, unseen: Array) -> Array:
        """Sum the logits of each share, then add up what different shares have of one slot."""
        xp = self._xp
        rows = []
        for row, mine in enumerate(self.shares):
            own = None if weight is None else weight[row : row + 1, :]
            total = xp.zeros_like(unseen[row : row + 1, ...])
            for view, slots in mine:
                before = total if slots is None else xp.take(total, slots, axis=-1)
                nothing = xp.zeros_like(before)
                after = before + view.sum_logits(own, heads=heads, unseen=nothing)
                if slots is None:
                    total = after
                    continue
                index = xp.broadcast_to(slots, after.shape)
                (total,) = write_slots(
                    [total], index, [after], nothing == nothing, axis=1, donate=True
                )
            rows.append(total)
        summed = rows[0] if len(rows) == 1 else xp.concat(rows, axis=0)
        return xp.where(self.seen, summed, unseen)

    def _weighted(self, factor: Array) -> Array:
        """Sum the queries of each head with a factor, (batch, queries), on each of them."""
        xp = self._xp
        rows = xp.broadcast_to(
            factor[:, None, None, None, :], (*self._query.shape[:3], 1, factor.shape[1])
        )
        return xp.matmul(rows, self._query)[:, :, :, 0, :]

    def _sum_before(self, weight: Array | None, heads: str, unseen: Array) -> Array | None:
        """Sum causal logits by one vector a head for all entries that no query precedes.

        The others, those of the present chunk, are seen by the queries from some place on: a sum
        of queries for each. None where they are many or may not be looked up now, or where logits
        are no plain product.
        """
        xp, key = self._xp, self._key
        plain = self._plain and self._logits is None and self._same_document is None
        if not plain or not backend_of(self._key_position).is_concrete(self._key_position):
            return None
        at = self.position
        if not self._whole:
            at = xp.where(self.valid, at, xp.full_like(at, _LAST))
        late = self._key_valid & (self._key_position > self.along_slots(xp.min(at, axis=-1)))
        (which,) = xp.nonzero(xp.any(late, axis=tuple(range(late.ndim - 1))))
        if 2 * which.shape[0] > key.shape[2]:
            return None
        query = self._query
        if weight is not None or not self._whole:
            factor = xp.astype(self.valid, query.dtype)
            factor = factor if weight is None else factor * weight
            query = query * factor[:, None, None, :, None]
        if heads == "sum":
            query = xp.sum(query, axis=2, keepdims=True, dtype=query.dtype)
        total = xp.sum(query, axis=3, dtype=query.dtype)
        scores = self._over_heads(xp.matmul(total, xp.matrix_transpose(key)), heads)
        if which.shape[0]:
            few = self._over_heads(self._from_places(which, at, query), heads)
            index = xp.broadcast_to(which, few.shape)
            write = xp.take(late, which, axis=late.ndim - 1)
            (scores,) = write_slots([scores], index, [few], write, axis=late.ndim - 1, donate=True)
        return xp.where(self.seen, scores, unseen)

    def _from_places(self, which: Array, at: Array, query: Array) -> Array:
        """Sum the logits of some slots over the queries at or behind each, (batch, G, R, slots).

        ``at``, (batch, queries), says where the queries, (batch, G, R, queries, head_dim), stand.
        """
        xp = self._xp
        place = xp.take(self._key_position, which, axis=self._key_position.ndim - 1)
        place = place if self.per_head else place[:, None, :]  # (batch, 1 or G, slots)
        behind = xp.astype(at[:, None, None, :] >= place[..., None], query.dtype)
        summed = xp.matmul(behind[:, :, None, :, :], query)
        key = xp.take(self._key, which, axis=2)[:, :, None, :, :]
        return xp.sum(summed * key, axis=-1, dtype=key.dtype)

    def _summed(self, query: Array, heads: str, unseen: Array) -> Array:
        """Multiply one summed query a head, (batch, G, R, head_dim), with all keys."""
        xp = self._xp
        if heads == "sum":
            query = xp.sum(query, axis=2, keepdims=True, dtype=query.dtype)
        summed = xp.matmul(query, xp.matrix_transpose(self._key))
        return xp.where(self.seen, self._over_heads(summed, heads), unseen)

    def _over_heads(self, pooled: Array, heads: str) -> Array:
        """Pool (batch, G, R, slots) over the heads that share one eviction decision."""
        xp = self._xp
        axes: tuple[int, ...] = (2,) if self.per_head else (1, 2)
        if heads == "max":
            return xp.max(pooled, axis=axes)
        summed = xp.sum(pooled, axis=axes, dtype=pooled.dtype)
        if heads == "mean":
            count = self._query.shape[2] * (1 if self.per_head else self._query.shape[1])
            summed = summed / count
        return summed

    def _five_axes(self, per_slot: Array) -> Array:
        """Shape (batch, slots) or (batch, G, slots) so that it meets `logits`."""
        xp = self._xp
        if per_slot.ndim == 3:
            return per_slot[:, :, None, None, :]
        return xp.expand_dims(per_slot, axis=(1, 2, 3))


class Share(NamedTuple):
    """A view of some slots of one row, (n,), for logits that are several kinds of product.

    ``slots`` says which; None = all of them, of which ``view`` sees those that are its own.
    """

    view: Attention
    slots: Array | None
