"""Choose tokens on the device of the logits: the likeliest, sampled, or candidates of beams."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from attendre_core import ops
from attendre_core.backend import Array, backend_of, beside
from attendre_core.errors import ConfigError
from attendre_core.zoo.blocks import compiled

__all__ = ["Chooser", "Sampling", "candidates", "log_softmax"]

#: Random numbers are drawn for this many tokens at a time.
_AHEAD = 1024


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Parameters
    ----------
    temperature
        0 always takes the likeliest token.
    top_p
        Sample only from the likeliest tokens whose probabilities add up to this.
    top_k
        Sample only from this many of the likeliest tokens; None = all.

    Examples
    --------
    >>> import numpy as np
    >>> Sampling().choose(np.asarray([[0.0, 2.0, 1.0]])).tolist()
    [1]
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

    def choose(self, logits: Array, chance: Array | None = None) -> Array:
        """Choose a token for each row; of equally likely ones, the lowest id comes first.

        Parameters
        ----------
        logits
            (rows, vocabulary); -inf for what may not be chosen.
        chance
            (rows,), from 0 up to 1: where to look in the distribution, likeliest tokens first. Its
            dtype is that of the sums of probabilities. Not needed for a temperature of 0.

        Returns
        -------
        array
            Token ids, int32, (rows,); -1 where there is nothing to choose, because a logit is NaN
            or infinity.
        """
        finite, logits = _finite(logits)
        ids = self._chosen(logits, chance)
        xp = backend_of(ids).xp
        return xp.where(finite, ids, xp.full_like(ids, -1))

    def _chosen(self, logits: Array, chance: Array | None) -> Array:
        xp = backend_of(logits).xp
        if self.temperature == 0 or chance is None:
            return xp.astype(xp.argmax(logits, axis=-1), xp.int32)
        count = logits.shape[-1] if self.top_k is None else min(self.top_k, logits.shape[-1])
        best, ids = ops.top_k(logits, count)
        share = xp.exp(log_softmax(xp.astype(best, chance.dtype) / self.temperature))
        # The token that reaches top_p is included.
        inside = xp.cumulative_sum(share, axis=-1) - share < self.top_p
        total = xp.cumulative_sum(xp.where(inside, share, xp.zeros_like(share)), axis=-1)
        below = total <= chance[:, None] * total[:, -1:]
        place = ops.count_true(below, axis=-1, keepdims=True)
        last = ops.count_true(inside, axis=-1, keepdims=True) - 1
        place = xp.astype(xp.minimum(place, last), ids.dtype)
        return xp.astype(xp.take_along_axis(ids, place, axis=-1)[:, 0], xp.int32)


def _finite(logits: Array) -> tuple[Array, Array]:
    """Return which rows have no NaN or infinity, and zeros in the place of the others."""
    xp = backend_of(logits).xp
    finite = xp.isfinite(xp.max(logits, axis=-1))  # NaN if there is one
    return finite, ops.fill(logits, ~finite[:, None], 0.0)


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities along the last axis."""
    xp = backend_of(logits).xp
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


class Chooser:
    """Chooses the next token of each row, on the device.

    The random numbers come from NumPy, so they are the same for every library. Each row has its own
    generator: a text does not depend on its neighbours.

    Parameters
    ----------
    library
        Name of the backend.
    sampling
        How tokens are chosen.
    seed
        Of the random numbers.
    never
        Token ids that are never chosen.
    """

    def __init__(
        self, library: str, sampling: Sampling, seed: int = 0, never: Sequence[int] = ()
    ) -> None:
        self._program = _choosing_program(library, sampling)
        self._sampled, self._seed, self._never = sampling.temperature > 0, seed, tuple(never)
        self._generators: list[np.random.Generator] = []
        self._chances: Array | None = None
        self._number: Array | None = None
        self._drawn = 0

    def __call__(self, logits: Array) -> Array:
        """Choose from logits (rows, vocabulary); return token ids, int32, (rows,)."""
        if self._sampled and self._drawn % _AHEAD == 0:
            self._draw(logits)
        self._drawn += 1
        never = _forbidden(logits, self._never)
        ids, self._number = self._program(logits, never, self._chances, self._number)
        return ids

    def _draw(self, logits: Array) -> None:
        rows = logits.shape[0]
        if not self._generators:
            self._generators = [np.random.default_rng((self._seed, row)) for row in range(rows)]
        drawn = np.stack([generator.random(_AHEAD) for generator in self._generators])
        if _sum_dtype(logits) == backend_of(logits).xp.float32:
            # A number just below 1 must not be rounded to 1.
            drawn = np.minimum(drawn.astype(np.float32), np.nextafter(np.float32(1), 0))
        self._chances = beside(drawn, logits)
        self._number = beside(np.zeros((rows, 1), np.int64), logits)


@lru_cache(maxsize=64)
def _choosing_program(library: str, sampling: Sampling) -> Callable[..., Any]:
    """Return ``choose(logits, never, chances, number)``, compiled if that pays."""

    def choose(logits: Array, never: Any, chances: Any, number: Any) -> tuple[Array, Any]:
        xp = backend_of(logits).xp
        logits = logits if never is None else xp.where(never, -math.inf, logits)
        if number is None:
            return sampling.choose(logits), None
        chance = xp.take_along_axis(chances, number, axis=1)[:, 0]
        return sampling.choose(logits, chance), number + 1

    return compiled(library, choose)


def candidates(
    library: str, logits: Array, count: int, never: tuple[int, ...] = ()
) -> tuple[Any, Any]:
    """Find the likeliest next tokens of each row on the device, and bring only them to the host.

    Parameters
    ----------
    library
        Name of the backend.
    logits
        (rows, vocabulary).
    count
        How many.
    never
        Token ids that are no candidates. They keep their share of the probability, as elsewhere.

    Returns
    -------
    chances, ids
        NumPy, (rows, count), best first: log-probabilities, NaN where a logit is NaN or infinity,
        and token ids.
    """
    to_numpy = backend_of(logits).to_numpy
    chances, ids = _candidates_program(library, count)(logits, _forbidden(logits, never))
    return np.asarray(to_numpy(chances), dtype=np.float64), np.asarray(to_numpy(ids))


@lru_cache(maxsize=64)
def _candidates_program(library: str, count: int) -> Callable[..., Any]:
    def find(logits: Array, never: Any) -> tuple[Array, Array]:
        xp = backend_of(logits).xp
        finite, logits = _finite(logits)
        chance = log_softmax(xp.astype(logits, _sum_dtype(logits)))
        logits = logits if never is None else xp.where(never, -math.inf, logits)
        best, ids = ops.top_k(logits, min(count, logits.shape[-1]))
        picked = xp.take_along_axis(chance, ids, axis=-1)
        picked = xp.where(best == -math.inf, -math.inf, picked)
        return ops.fill(picked, ~finite[:, None], math.nan), ids

    return compiled(library, find)


def _forbidden(logits: Array, never: tuple[int, ...]) -> Array | None:
    """Return flags (vocabulary,) of tokens that are never chosen, on the device; None if none."""
    if not never:
        return None
    return ops.table(logits, _flags, logits.shape[-1], never, dtype=backend_of(logits).xp.bool)


def _flags(vocabulary: int, never: tuple[int, ...]) -> Any:
    flags = np.zeros(vocabulary, dtype=bool)
    flags[list(never)] = True
    return flags


def _sum_dtype(like: Array) -> Any:
    """Return the dtype in which probabilities are added up: float64 where the device has it."""
    found = backend_of(like)
    if "float64" not in found.capabilities:
        return found.xp.float32
    known = found.xp.__array_namespace_info__().dtypes(device=found.device_of(like))
    return found.xp.float64 if "float64" in known else found.xp.float32
