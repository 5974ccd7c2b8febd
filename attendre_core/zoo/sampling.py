"""Choose the next token: greedily, or by chance with a temperature and a nucleus."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from attendre_core.errors import ConfigError

__all__ = ["Sampling", "log_softmax"]


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Parameters
    ----------
    temperature
        0 always takes the likeliest token.
    top_p
        Only the likeliest tokens whose probabilities add up to this.
    top_k
        Only this many of the likeliest tokens; None = all.

    Examples
    --------
    >>> import numpy as np
    >>> Sampling().choose(np.asarray([0.0, 2.0, 1.0]), np.random.default_rng(0))
    1
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(
                f"generate: temperature is {self.temperature}, expected 0 (always the likeliest "
                "token) or a positive number such as 0.7."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"generate: top_p is {self.top_p}, expected more than 0, at most 1.")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"generate: top_k is {self.top_k}, expected at least 1, or None.")

    def choose(self, logits: Any, rng: np.random.Generator) -> int:
        """Choose from logits (vocabulary,)."""
        if self.temperature == 0:
            return int(np.argmax(logits))
        order = np.argsort(-logits, kind="stable")
        if self.top_k is not None:
            order = order[: self.top_k]
        probability = np.exp(log_softmax(logits[order].astype(np.float64) / self.temperature))
        # The token that reaches top_p is still one of them.
        inside = np.cumsum(probability) - probability < self.top_p
        cumulative = np.cumsum(probability[inside])
        drawn = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
        return int(order[inside][min(drawn, len(cumulative) - 1)])


def log_softmax(logits: Any) -> Any:
    """Return log-probabilities along the last axis."""
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
