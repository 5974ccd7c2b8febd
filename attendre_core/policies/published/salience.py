"""Salience: what queries needed, plus how unlike the other keys it is and how long its value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.policies.base import Stored
from attendre_core.policies.initial_score import AnyInitial, ConstantScore, Scored
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
    """Keep what some query needed, and what is special: peaks of attention plus unusual entries.

    Three published rules in one sum. In every step an entry gains

        p + mean(p) · w / mean(w),    w = |v| · (1 - cos(k, m) + 0.01)^contrast

    where p is the largest softmax weight that any query and head paid to it (as in DefensiveKV,
    arXiv 2510.13334), |v| the length of its value and m the mean direction of the keys (as in
    KeyDiff, arXiv 2504.15364); means are over the stored entries. What was gained before decays.
    An entry that attention passes over is judged by what it is rather than by how it was used.

    Parameters
    ----------
    decay
        λ: a gain of t positions ago counts exp(-λt).
    contrast
        How much an unusual key counts; 0: not at all.
    share
        Weight of what an entry is, against how it was used: the factor of the second term.
    initial
        Score of new entries, where it matters: see ``present`` of the memory.

    Notes
    -----
    Laws: positive factors, one for all keys and one for all values, change no part but p. With
    ``share=0``, and a ``decay`` so large that nothing is left of earlier steps, scores are those of
    ``LRA("max", score="softmax")`` with the largest of all heads. The largest weight of a step
    depends on how many queries it has, so scores depend on the length of chunks.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(64, at.Salience(), present="visible", per_head=True).policy
    Salience(decay=0.005, contrast=2.0, share=1.0, initial=ConstantScore(value=0.0))
    """

    compares_keys = True

    decay: float = 5e-3
    contrast: float = 2.0
    share: float = 1.0
    initial: AnyInitial = _NOTHING

    def __post_init__(self) -> None:
        for name in ("decay", "contrast", "share"):
            given = getattr(self, name)
            if not (math.isfinite(given) and given >= 0):
                raise ConfigError(f"Salience: {name} is {given}, expected 0 or more.")

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Decay what was gained before and add what this step's queries say."""
        xp = namespace_of(stored.score)
        age = xp.astype(attention.latest_before - attention.latest, stored.score.dtype)
        past = stored.score * attention.along_slots(xp.exp(self.decay * age))
        nothing = xp.zeros_like(stored.score)
        peak = attention.pool("weights", queries="max", heads="max", unseen=nothing)
        if not self.share:
            return past + peak
        special = decided(norms(real(attention.value, stored.valid)), stored)
        if self.contrast:
            far = 1.0 + decided(unlike(attention.key, stored.valid), stored)
            special = special * (xp.maximum(far, nothing) + _LEAST) ** self.contrast
        special = xp.where(stored.valid, special, nothing)
        all_peaks, all_special = (xp.sum(x, axis=-1, keepdims=True) for x in (peak, special))
        all_special = xp.where(all_special > 0, all_special, xp.ones_like(all_special))
        return past + peak + self.share * all_peaks * (special / all_special)
