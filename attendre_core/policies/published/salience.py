"""Salience: what queries needed, times how unlike the other keys it is and how long its value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.policies.base import Stored
from attendre_core.policies.initial_score import AnyInitial, ConstantScore, Scored
from attendre_core.policies.published.defensive import peaks
from attendre_core.policies.published.keydiff import unlike
from attendre_core.policies.published.parts import decided, norms, real

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["Salience"]

#: Added to the distance of a key from the mean key, so that no entry counts for nothing.
_LEAST = 0.01
_NOTHING = ConstantScore(0.0)


@dataclass(frozen=True)
class Salience(Scored):
    """Keep what some query needed, or what is special: peaks of attention on unusual entries.

    Three published rules in one product, summed over time. In every step an entry gains

        max(p, mean p) · |v| · (1 - cos(k, m) + 0.01)^contrast

    where p is the largest softmax weight that any query and head paid to it, raised to the mean of
    these over the stored entries (DefensiveKV, arXiv 2510.13334), |v| the length of its value, and
    m the mean direction of the keys (KeyDiff, arXiv 2504.15364). What was gained before decays.
    An entry that attention passes over is judged by what it is rather than by how it was used.

    Parameters
    ----------
    decay
        λ: a gain of t positions ago counts exp(-λt).
    contrast
        How much an unusual key counts; 0: not at all.
    initial
        Score of new entries, where it matters: see ``present`` of the memory.

    Notes
    -----
    Laws: with ``decay`` so large that nothing is left of earlier steps, and ``contrast=0``, scores
    are those of ``Defensive(window=None, value_norm=True)``; a positive factor for all values is
    a factor of all scores. The largest weight of a step depends on how many queries it has, so
    scores depend on the length of chunks.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(64, at.Salience(), present="visible", per_head=True).policy
    Salience(decay=0.005, contrast=2.0, initial=ConstantScore(value=0.0))
    """

    compares_keys = True

    decay: float = 5e-3
    contrast: float = 2.0
    initial: AnyInitial = _NOTHING

    def __post_init__(self) -> None:
        for name in ("decay", "contrast"):
            given = getattr(self, name)
            if not (math.isfinite(given) and given >= 0):
                raise ConfigError(f"Salience: {name} is {given}, expected 0 or more.")

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Decay what was gained before and add what this step's queries say."""
        xp = namespace_of(stored.score)
        age = xp.astype(attention.latest_before - attention.latest, stored.score.dtype)
        past = stored.score * attention.along_slots(xp.exp(self.decay * age))
        length = norms(real(attention.value, stored.valid))
        gain = peaks(stored, attention) * decided(length, stored)
        if self.contrast:
            far = 1.0 + decided(unlike(attention.key, stored.valid), stored)
            gain = gain * (xp.maximum(far, xp.zeros_like(far)) + _LEAST) ** self.contrast
        return past + xp.where(attention.seen, gain, xp.zeros_like(gain))
