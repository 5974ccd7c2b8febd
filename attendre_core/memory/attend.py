"""How queries attend to a key-value memory and retrieve from it."""

from __future__ import annotations

from typing import Any, NamedTuple

from attendre_core import checks, ops
from attendre_core.backend import Array, namespace_of, numbers, wide
from attendre_core.errors import ConfigError, ShapeError
from attendre_core.joint.beside import Beside, join
from attendre_core.joint.soft_mask import soften
from attendre_core.memory.state import KeyValueState, RetrievedEntries
from attendre_core.policies.base import Policy, Stored
from attendre_core.policies.view import Attention
from attendre_core.positions.base import Encoding, Places
from attendre_core.tree import tree_map

__all__ = ["Reading", "gather_top_k", "observe", "places_of", "read"]


class Reading(NamedTuple):
    """The queries of one step, checked and ready to attend.

    ``unusable`` queries are invalid or not finite, ``broken`` ones valid but not finite. ``pairs``
    holds the queries against the stored entries, ``attention`` is the policy's view of them.
    """

    attention: Attention
    pairs: ops.Pairs
    value: Array
    unusable: Array
    broken: Array
    dtype: Any

    def softened(self, policy: Policy) -> Reading:
        """Let the policy's soft mask take part."""
        attention = soften(policy, self.attention)
        return self._replace(attention=attention, pairs=attention._pairs)

    def output(self) -> Array:
        """Attend: (batch, queries, heads, value_dim), zeros for invalid queries."""
        return self._public(self.attention.attended())

    def gathered_output(self, top_k: int) -> Array:
        """Attend to the top K, gathered for each query and head as in the paper."""
        xp = namespace_of(self.value)
        index, allowed = _top_indices(self.attention, top_k)
        term, *others = self.pairs.terms
        if others or not self.pairs.is_plain:
            logits = xp.take_along_axis(ops.logits(self.pairs), index, axis=-1)
        else:
            key = _gathered(term.key, index)
            logits = xp.sum(term.query[..., None, :] * key, axis=-1, dtype=key.dtype)
        weights = ops.masked_softmax(logits, allowed, self.pairs.sink)
        value = wide(_gathered(self.value, index))
        output = xp.sum(weights[..., None] * value, axis=-2, dtype=value.dtype)
        return self._public(self.attention.with_others(output))

    def _public(self, output: Array) -> Array:
        xp = namespace_of(output)
        output = ops.ungrouped(output)
        if self.unusable is not self.broken:
            output = ops.fill(output, self.unusable[:, :, None, None], 0.0)
        output = ops.fill(output, self.broken[:, :, None, None], float("nan"))
        return xp.astype(output, self.dtype, copy=False)


def read(
    where: str, state: KeyValueState, scale: float | None, top_k: int | None, passes: int | None,
    query: Array, position: Array | None, valid: Array | None, causal: bool,
    encoding: Encoding | None = None, encoding_params: Any = None, policy_params: Any = None,
    document: Array | None = None, beside: Beside | None = None,
) -> Reading:  # fmt: skip
    """Check the queries and pair them with the stored entries."""
    batch, heads, _, dim = state.key.shape
    checks.query_heads(where, query, batch, heads, dim)
    checks.same_dtype(where, "query", query, state.key.dtype)
    count = query.shape[1]
    full = valid is None
    valid = checks.flags(where, "valid", valid, (batch, count), query, default=True)
    if position is None:
        position = state.clock[:, None] - count + numbers(count, query)
    else:
        checks.shape(
            where, "position", position, "batch, queries", (batch, count),
            "Give one number to each query of each row.",
        )  # fmt: skip
        position = checks.positions(where, "position", position, valid)
    finite = checks.finite_rows(where, "query", query, valid, (0, 1))
    usable = finite if full else valid & finite
    unusable = ~usable
    broken = unusable if full else valid & unusable
    scale = dim**-0.5 if scale is None else scale
    rows = wide(ops.grouped(query, heads)) * scale
    rows = ops.fill(rows, unusable[:, None, None, :, None], 0.0)
    key_position, key_valid = _by_head(state.position), _by_head(state.valid)
    places = places_of(position, usable, key_position, key_valid)
    encoding = encoding or Encoding()
    encoded = encoding.encode(rows, state.key, places, encoding_params)
    documents = _documents(where, document, state.aux, (batch, count))
    near = encoded.near
    if documents is not None:
        same = documents[0][:, None, None, :, None] == documents[1][:, :, None, None, :]
        near, documents = (same, documents) if near is None else (same & near, None)
    pairs = ops.Pairs(
        position[:, None, None, :], key_position, usable, key_valid, _by_head(state.arrival),
        encoded.terms, encoded.places.query, encoded.places.key, encoded.bias, near, causal, {},
        encoded.limit, encoded.sink, scale, documents,
    )  # fmt: skip
    value, others = state.value, None
    if beside is not None:
        joint = (beside, rows, pairs, value, places, encoding, encoding_params)
        pairs, value, others = join(where, *joint)
    attention = Attention(
        pairs, value, position, Stored(*state[:10], state.policy_state, policy_params),
        state.latest_query, lambda: rows / scale, top_k, passes, others=others,
    )  # fmt: skip
    return Reading(attention, pairs, value, unusable, broken, query.dtype)


def places_of(position: Array, valid: Array, key_position: Array, key_valid: Array) -> Places:
    """Count positions from the last valid query of each row.

    Parameters
    ----------
    position, valid
        (batch, queries).
    key_position, key_valid
        (batch, 1 or kv_heads, slots).
    """
    xp = namespace_of(position)
    last = xp.max(xp.where(valid, position, xp.zeros_like(position)), axis=1)
    query = (position - last[:, None])[:, None, None, :]
    return Places(query, key_position - last[:, None, None], valid, key_valid)


def _by_head(record: Array) -> Array:
    """Shape (batch, slots) or (batch, G, slots) as (batch, 1 or G, slots)."""
    return record if record.ndim == 3 else record[:, None, :]


def _documents(
    where: str, document: Array | None, aux: Any, expected: tuple[int, int]
) -> tuple[Array, Array] | None:
    """Return the ids of the queries' and of the entries' documents; None if there are none."""
    if document is None:
        return None
    if not isinstance(aux, dict) or "document" not in aux:
        raise ConfigError(
            f"{where}: document ids were given for the queries, but the entries have none. Insert "
            "them as aux={'document': ids} and make the state with such an example."
        )
    checks.shape(
        where, "document", document, "batch, queries", expected, "Give one id to each query."
    )
    return document, _by_head(aux["document"])


def observe(where: str, policy: Policy, state: KeyValueState, view: Attention) -> KeyValueState:
    """Update the scores from this step's queries.

    An entry keeps its score if no valid query saw it (specification, reading 9), if the policy has
    ``hold`` and the entry is later than every query so far, or if its new score is not finite.
    """
    xp = namespace_of(state.key)
    stored = seen = view.stored
    if policy.drifts:  # scores are sums: observe what this step adds
        seen = stored._replace(score=xp.zeros_like(state.score))
    score, change = policy.observe(seen, view), view.seen
    if score is None:
        score = state.score
    else:
        if tuple(score.shape) != tuple(state.score.shape):
            raise ShapeError(
                f"{type(policy).__name__}.observe: returned shape {tuple(score.shape)}, expected "
                f"{tuple(state.score.shape)}. Pool over queries and heads."
            )
        finite = checks.finite_scores(f"{where}: {type(policy).__name__}", score, change)
        change = change & finite
        if getattr(policy, "hold", False):
            change = change & (state.position <= view.along_slots(view.latest))
        score = xp.where(change, xp.astype(score, state.score.dtype, copy=False), seen.score)
        if policy.drifts:
            past = ops.levelled(state.score, score, state.valid & ~state.pinned)
            score = ops.add_up(past, score, state.clock, view.latest)
    return state._replace(
        score=score,
        observed=state.observed | change,
        latest_query=view.latest,
        policy_state=None if state.policy_state is None else policy.remember(stored, view),
    )


def gather_top_k(reading: Reading, state: KeyValueState, top_k: int) -> RetrievedEntries:
    """Gather the top K of each query and head, best first."""
    xp = namespace_of(state.key)
    view = reading.attention
    batch, heads, group, count, _ = view.logits.shape
    index, allowed = _top_indices(view, top_k)
    similarity = xp.take_along_axis(view.logits, index, axis=-1)
    per_head = state.valid.ndim == 3

    def public(x: Array) -> Array:
        """(batch, G, R, queries, K, ...) to (batch, queries, heads, K, ...)."""
        rest = tuple(range(4, x.ndim))
        x = xp.permute_dims(x, (0, 3, 1, 2, *rest))
        return xp.reshape(x, (batch, count, heads * group, *x.shape[4:]))

    def cleaned(x: Array) -> Array:
        flags = xp.reshape(allowed, allowed.shape + (1,) * (x.ndim - allowed.ndim))
        return public(xp.where(flags, x, xp.zeros_like(x)))

    def record(x: Array) -> Array:
        """Gather from (batch, slots, ...) or (batch, G, slots, ...)."""
        if not per_head:
            x = xp.broadcast_to(x[:, None, ...], (batch, heads, *x.shape[1:]))
        return _gathered(x, index)

    at = record(state.position)
    return RetrievedEntries(
        key=cleaned(_gathered(state.key, index)),
        value=cleaned(_gathered(state.value, index)),
        similarity=public(xp.where(allowed, similarity, -float("inf"))),
        position=public(xp.where(allowed, at, xp.full_like(at, -1))),
        valid=public(allowed),
        index=public(xp.where(allowed, index, xp.full_like(index, -1))),
        aux=tree_map(lambda leaf: cleaned(record(leaf)), state.aux),
    )


def _top_indices(view: Attention, top_k: int) -> tuple[Array, Array]:
    """Return the slots of the top K, (batch, G, R, queries, K), best first, and which are valid."""
    logits = view.logits
    xp = namespace_of(logits)
    allowed = xp.broadcast_to(view.allowed, logits.shape)
    negated = xp.where(allowed, -logits, float("inf"))
    index = ops.lowest(negated, xp.broadcast_to(-view.order, logits.shape), top_k)
    return index, xp.take_along_axis(allowed, index, axis=-1)


def _gathered(array: Array, index: Array) -> Array:
    """Gather (batch, G, slots, ...) by (batch, G, R, queries, K)."""
    xp = namespace_of(array)
    batch, heads, group, count, k = index.shape
    flat = xp.reshape(index, (batch, heads, group * count * k))
    taken = ops.gather_slots(array, flat, axis=2)
    return xp.reshape(taken, (batch, heads, group, count, k, *array.shape[3:]))
