"""ExpectedAttention: the entry that a query like those so far would use least is evicted first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core import ops
from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.keys import beside, by_head, newcomers
from attendre_core.policies.published.parts import decided, norms, real

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["ExpectedAttention"]


@dataclass(frozen=True)
class ExpectedAttention(Policy):
    """Keep the entries with the largest expected weight times the norm of their value.

    The rule of "Expected Attention: KV Cache Compression by Estimating Attention from Future
    Queries Distribution" (arXiv 2510.00636). If queries are normal with mean m and covariance C,
    the expectation of exp(q.k / sqrt(d)) is exp(k.m / sqrt(d) + k'Ck / 2d): these numbers,
    normalised over all entries, are the expected weights. Mean and covariance are those of all
    queries of the row so far; they are the policy's own state.

    Notes
    -----
    Laws: no pair of query and key is computed; the moments do not depend on the chunk length.
    Queries and keys are compared without positions, as if they were at the same place; the original
    rotates the moments to the mean of the next 512 positions. It also has moments for each query
    head and averages their weights; here the query heads that share a K/V head share moments. It
    leaves out the first four queries, and logits are always scaled by 1 / sqrt(d).

    Examples
    --------
    >>> import attendre_core as at
    >>> memory = at.KeyValueMemory(size=64, policy=at.ExpectedAttention(), sinks=4)
    >>> [x.shape for x in memory.init(batch=1, heads=2, head_dim=8).policy_state]
    [(1,), (1, 2, 8), (1, 2, 8, 8)]
    """

    compares_keys = True

    def init(self, stored: Stored) -> tuple[Array, Array, Array]:
        """Return the number of queries so far, their mean and their covariance per K/V head."""
        xp, key = namespace_of(stored.score), real(stored.key, stored.valid)
        none = xp.zeros_like(key[:, :, 0, :])
        return xp.zeros_like(stored.clock), none, none[..., None] * none[..., None, :]

    def enter(self, stored: Stored, new: New) -> Array:
        """Score new entries among all, stored and new, by the queries so far."""
        return newcomers(_expected(*beside(stored, new), stored, stored.policy_state), stored)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Score the stored entries by the queries so far, including this step's."""
        moments = self.remember(stored, attention)
        return _expected(attention.key, attention.value, stored.valid, stored, moments)

    def remember(self, stored: Stored, attention: Attention) -> tuple[Array, Array, Array]:
        """Merge the moments of this step's queries into those of all earlier ones."""
        number, mean, covariance = stored.policy_state
        xp, query, valid = namespace_of(mean), attention.query, attention.valid
        fresh = ops.count_true(valid, axis=1)
        number = number + fresh
        # Centred on the mean so far; new mean and covariance follow from the two sums.
        apart = query - mean[:, :, None, None, :]
        apart = xp.where(valid[:, None, None, :, None], apart, xp.zeros_like(apart))
        apart = xp.reshape(apart, (*mean.shape[:2], -1, mean.shape[-1]))
        count = xp.astype(xp.maximum(number, xp.ones_like(number)), mean.dtype)
        before = xp.astype(number - fresh, mean.dtype) / count
        count = count[:, None, None] * query.shape[2]
        step = xp.sum(apart, axis=2, dtype=mean.dtype) / count
        square = xp.matmul(xp.matrix_transpose(apart), apart) / count[..., None]
        covariance = before[:, None, None, None] * covariance + square
        return number, mean + step, covariance - step[..., None] * step[..., None, :]


def _expected(
    key: Array, value: Array, valid: Array, stored: Stored, moments: tuple[Array, ...]
) -> Array:
    """Return the expected weights times the norms of values, for the heads that decide together."""
    key, value = real(key, valid), real(value, valid)
    xp, scale = namespace_of(key), key.shape[-1] ** -0.5
    _, mean, covariance = moments
    bent = mean[:, :, None, :] + 0.5 * scale * xp.matmul(key, covariance)
    logits = scale * xp.sum(key * bent, axis=-1, dtype=key.dtype)
    return decided(ops.masked_softmax(logits, by_head(valid)) * norms(value), stored)
