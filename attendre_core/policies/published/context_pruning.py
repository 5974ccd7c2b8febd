"""Dynamic context pruning: queries decide for good which earlier entries are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.keys import by_head
from attendre_core.policies.published.learned import given, shown, sparse_sigmoid

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["DynamicContextPruning"]

#: The smallest number whose logarithm is taken; less counts as 0.
_LEAST = 1e-30


@dataclass(frozen=True)
class DynamicContextPruning(Policy):
    """Multiply an entry's weight by what every later query let pass; 0 is for good.

    The rule of "Dynamic Context Pruning for Efficient and Interpretable Autoregressive
    Transformers" (arXiv 2305.15805). Query n lets the share sigmoid(q_n.k_j / sqrt(r) + bias) of
    entry j pass, where q and k are interaction queries and keys of r numbers, and the sigmoid is
    sparse: it reaches 0 and 1. The product over all queries after j, up to the one that attends,
    multiplies the weight; it is the entry's score. What has reached 0 is evicted first.

    Parameters
    ----------
    alpha
        1: the sigmoid, which never drops anything; 1.5 and 2: sparse, steeper. The original begins
        with 1 and raises it during training.

    Notes
    -----
    ``policy_params`` are ``{"query": (heads, head_dim, r), "key": (kv_heads, head_dim, r),
    "bias": ()}``; see `parameters`. Laws: scores are in [0, 1] and never rise; in a memory that
    evicts nothing, chunking changes nothing. The original projects hidden states; here queries and
    keys of all heads are projected, which are linear images of them. With ``per_head=True`` each
    head has interactions of its own. Entries later than a query, and its own, are not masked by it.
    A full memory also evicts entries that have not reached 0, lowest first.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> memory = at.KeyValueMemory(size=4, policy=at.DynamicContextPruning(alpha=2.0))
    >>> one = np.asarray([[[1.0]]], dtype=np.float32)
    >>> params = {"query": one, "key": one, "bias": np.asarray(0.0, dtype=np.float32)}
    >>> key = np.asarray([0.5, -0.5, -9.0], dtype=np.float32)[None, :, None, None]
    >>> state, _ = memory.insert(memory.init(like=key), key, key, policy_params=params)
    >>> at_end = np.asarray([[3]], dtype=np.int32)
    >>> state, _ = memory.attend(state, np.abs(key[:, :1]), at_end, policy_params=params)
    >>> dict(zip(state.position[0].tolist(), state.score[0].round(3).tolist(), strict=True))
    {2: 0.0, 1: 0.375, 0: 0.625, -1: 0.0}
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if self.alpha not in (1.0, 1.5, 2.0):
            raise ConfigError(
                f"DynamicContextPruning: alpha is {self.alpha}, expected 1.0, 1.5 or 2.0."
            )

    def parameters(
        self, heads: int, kv_heads: int, head_dim: int, rank: int
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the learned arrays; ``rank`` is r."""
        shapes = {"query": (heads, head_dim, rank), "key": (kv_heads, head_dim, rank)}
        return {**shapes, "bias": ()}

    def enter(self, stored: Stored, new: New) -> Array:
        """Return 1: no query has come after a new entry."""
        return namespace_of(stored.score).ones_like(stored.score[..., 0])

    def soft_mask(self, stored: Stored, attention: Attention) -> Array:
        """Multiply what all queries up to each one have let pass."""
        to_query, to_key, bias = given(self, stored.params, "query", "key", "bias")
        key, xp = shown(stored.key, stored.valid), namespace_of(stored.score)
        query = attention.query  # (batch, G, R, queries, dim)
        to_query = xp.reshape(to_query, (1, *query.shape[1:3], *to_query.shape[1:]))
        query = xp.sum(xp.matmul(query, to_query), axis=2, dtype=query.dtype)
        key = xp.matmul(key, to_key[None, ...])
        if stored.score.ndim == 2:
            query, key = (xp.sum(x, axis=1, keepdims=True, dtype=x.dtype) for x in (query, key))
        product = xp.matmul(query, xp.matrix_transpose(key)) * key.shape[-1] ** -0.5
        share = sparse_sigmoid(product + bias, self.alpha)  # (batch, 1 or G, queries, slots)
        at, valid = attention.position, attention.valid
        later = (at[:, None, :, None] > by_head(stored.position)[:, :, None, :]) & (
            valid[:, None, :, None]
        )
        least, zero = xp.full_like(share, _LEAST), xp.zeros_like(share)
        logs = xp.where(later, xp.log(xp.maximum(share, least)), zero)
        drops = xp.where(later & (share <= least), zero + 1.0, zero)
        # Which queries, of both axes, come no later than which.
        earlier = xp.astype((at[:, None, :] <= at[:, :, None]) & valid[:, None, :], share.dtype)
        total, dropped = (xp.matmul(earlier[:, None, ...], x) for x in (logs, drops))
        passed = xp.where(dropped > 0, zero, xp.exp(total))
        return (passed * by_head(stored.score)[:, :, None, :])[:, :, None, ...]

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Remember what the last of the queries let pass, which is the least."""
        xp, mask = namespace_of(stored.score), attention.mask
        real = attention.valid[:, None, None, :, None]
        left = xp.min(xp.where(real, mask, xp.ones_like(mask)), axis=3)[:, :, 0, :]
        left = left if stored.score.ndim == 3 else left[:, 0, :]
        return xp.minimum(left, stored.score)
