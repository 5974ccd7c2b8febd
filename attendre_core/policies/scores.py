"""What a policy pools: the logits, or something made from them (paper, section 3.1).

``"logits"`` is the paper's choice: the logit after scale, position and bias. The others (its
footnote on normalisation) exist because sums of logits are often negative, and decay moves a
negative sum *up*: with `LFA`, old entries then rise instead of fading (specification, reading 11).
A shift, a clip or a softmax avoids that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attendre_core import checks
from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["Clip", "ScoreTransform", "Shift", "check_score", "transformed"]


@dataclass(frozen=True)
class Clip:
    """Clip every logit to [low, high].

    Examples
    --------
    >>> Clip(0.0, 5.0)
    Clip(low=0.0, high=5.0)
    """

    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ConfigError(
                f"Clip: low is {self.low} and high {self.high}, expected low <= high."
            )

    def __call__(self, attention: Attention) -> Array:
        """Return the clipped logits, shaped as ``attention.logits``."""
        logits = attention.logits
        xp = namespace_of(logits)
        logits = xp.where(logits < self.low, self.low, logits)
        return xp.where(logits > self.high, self.high, logits)


@dataclass(frozen=True)
class Shift:
    """Add a constant to every logit, or shift each query's logits so that the lowest is 0.

    Parameters
    ----------
    by
        A number, or ``"min"``: subtract the minimum over the allowed entries of that query
        and head.

    Examples
    --------
    >>> Shift("min")
    Shift(by='min')
    """

    by: float | Literal["min"] = "min"

    def __post_init__(self) -> None:
        if isinstance(self.by, str):
            if self.by != "min":
                raise ConfigError(f"Shift: by is {self.by!r}, expected a number or 'min'.")
        elif not math.isfinite(self.by):
            raise ConfigError(f"Shift: by is {self.by}, expected a finite number or 'min'.")

    def __call__(self, attention: Attention) -> Array:
        """Return the shifted logits, shaped as ``attention.logits``."""
        logits = attention.logits
        if not isinstance(self.by, str):
            return logits + self.by
        xp = namespace_of(logits)
        lowest = xp.min(xp.where(attention.allowed, logits, math.inf), axis=-1, keepdims=True)
        return logits - xp.where(lowest == math.inf, xp.zeros_like(lowest), lowest)


ScoreTransform = Literal["logits", "softmax"] | Clip | Shift


def check_score(where: str, score: ScoreTransform, window: int | None) -> None:
    """Refuse a score transform that is neither a known word nor callable, and an empty window."""
    if window is not None:
        checks.whole_number(where, "window", window, least=1, hint="None = all queries of a step.")
    if score not in ("logits", "softmax") and not callable(score):
        raise ConfigError(
            f"{where}: score is {score!r}, expected 'logits', 'softmax', Clip(...), Shift(...) "
            "or a function of the Attention view."
        )


def transformed(score: ScoreTransform, attention: Attention) -> Array | str:
    """Return what a policy passes to `Attention.pool`."""
    if isinstance(score, str):
        return "weights" if score == "softmax" else score
    return score(attention)
