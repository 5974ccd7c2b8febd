"""Expire-Span: every entry has a learned span, at the end of which it fades out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.keys import by_head
from attendre_core.policies.published.learned import given, logistic, shown

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["ExpireSpan"]


@dataclass(frozen=True)
class ExpireSpan(Policy):
    """Remember an entry for e = longest * sigmoid(w.k + b) positions; the least left goes first.

    The rule of "Not All Memories are Created Equal: Learning to Forget by Expiring" (arXiv
    2105.06548). At a distance of d positions the weight of an entry is multiplied by
    clip(1 + (e - d) / ramp, 0, 1), and the weights are normalised again, so w and b are learned by
    gradient. An entry whose mask is 0 is gone; of the others the one with the least of its span
    left is evicted first. The span is the entry's score.

    Parameters
    ----------
    longest
        L: no span is longer.
    ramp
        R: over how many positions an entry fades out.

    Notes
    -----
    ``policy_params`` are ``{"weight": (kv_heads, head_dim), "bias": ()}``; see `parameters`. Laws:
    spans are fixed when entries arrive, so chunking does not change them; a memory of at least
    longest + ramp entries evicts nothing that any later query could see. The original computes
    spans from hidden states; here it is from keys, a linear image of them, or from anything: spans
    passed to `KeyValueMemory.insert` as ``score``, or `Chunk.score`, replace the policy's. It adds
    the mean span to the loss, which is up to the caller: it is the mean of ``state.score``. With
    ``per_head=True`` each head has spans of its own. Entries later than a query are not masked.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> memory = at.KeyValueMemory(size=2, policy=at.ExpireSpan(longest=8, ramp=2))
    >>> params = {"weight": np.asarray([[1.0, 0.0]], np.float32), "bias": np.asarray(0, np.float32)}
    >>> key = np.asarray([[9.0, 0], [-9, 0], [0, 0]], dtype=np.float32)[None, :, None, :]
    >>> state, _ = memory.insert(memory.init(like=key), key, key, policy_params=params)
    >>> sorted(state.position[0].tolist()), sorted(state.score[0].round(2).tolist())
    ([0, 2], [4.0, 8.0])
    """

    longest: int = 1024
    ramp: int = 16

    def __post_init__(self) -> None:
        for name in ("longest", "ramp"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"ExpireSpan: {name} is {getattr(self, name)}, expected a number of positions, "
                    "1 or more."
                )

    def parameters(self, kv_heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the learned arrays."""
        return {"weight": (kv_heads, head_dim), "bias": ()}

    def enter(self, stored: Stored, new: New) -> Array:
        """Return the span of each new entry."""
        weight, bias = given(self, stored.params, "weight", "bias")
        key = shown(new.key, new.valid)
        xp = namespace_of(key)
        product = xp.sum(key * weight[None, :, None, :], axis=-1, dtype=key.dtype)
        if stored.score.ndim == 2:
            product = xp.sum(product, axis=1, dtype=key.dtype)
        return self.longest * logistic(product + bias)

    def soft_mask(self, stored: Stored, attention: Attention) -> Array:
        """Fade an entry out over ``ramp`` positions after its span."""
        xp, span = namespace_of(stored.score), by_head(stored.score)[:, :, None, None, :]
        at = by_head(stored.position)[:, :, None, None, :]
        distance = attention.position[:, None, None, :, None] - at
        mask = 1.0 + (span - xp.astype(distance, span.dtype)) / self.ramp
        zero = xp.zeros_like(mask)
        return xp.minimum(xp.maximum(mask, zero), zero + 1.0)

    def priority(self, stored: Stored) -> Array:
        """Return how much of its span an entry has left."""
        xp = namespace_of(stored.score)
        return stored.score - xp.astype(stored.age, stored.score.dtype)
