"""Scale RoPE to inputs longer than those a model was trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attendre_core.errors import ConfigError

__all__ = ["NTK", "Interpolation", "Llama3Scaling", "Scaling", "YaRN"]


@dataclass(frozen=True)
class Interpolation:
    """Positional interpolation: divide all positions by ``factor``.

    Examples
    --------
    >>> Interpolation(2.0).frequencies([1.0, 0.1], 10000.0, 4)
    [0.5, 0.05]
    """

    factor: float

    def __post_init__(self) -> None:
        _factor("Interpolation", self.factor)

    def frequencies(self, plain: list[float], base: float, dim: int) -> list[float]:
        """Return the frequencies to use instead of the plain ones."""
        return [f / self.factor for f in plain]

    @property
    def temperature(self) -> float:
        """The factor on queries and keys."""
        return 1.0


@dataclass(frozen=True)
class NTK:
    """NTK-aware scaling: a larger base, which stretches slow rotations but not fast ones.

    Examples
    --------
    >>> NTK(2.0).temperature
    1.0
    """

    factor: float

    def __post_init__(self) -> None:
        _factor("NTK", self.factor)

    def frequencies(self, plain: list[float], base: float, dim: int) -> list[float]:
        """Return the frequencies to use instead of the plain ones."""
        stretched = base * self.factor ** (dim / max(dim - 2, 1))
        return [stretched ** (-2 * i / dim) for i in range(dim // 2)]

    @property
    def temperature(self) -> float:
        """The factor on queries and keys."""
        return 1.0


@dataclass(frozen=True)
class YaRN:
    """YaRN: interpolate slow rotations, keep fast ones, blend in between, sharpen attention.

    Parameters
    ----------
    factor
        How many times longer inputs may be than in training.
    original_length
        The length of inputs in training.
    beta_fast, beta_slow
        A pair that makes more than ``beta_fast`` rotations over the original length is kept; one
        that makes fewer than ``beta_slow`` is interpolated.

    Examples
    --------
    >>> round(YaRN(4.0, 2048).temperature, 4)
    1.1386
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        _factor("YaRN", self.factor)
        if self.original_length < 1:
            raise ConfigError(
                f"YaRN: original_length is {self.original_length}, expected the length the model "
                "was trained on."
            )

    def frequencies(self, plain: list[float], base: float, dim: int) -> list[float]:
        """Return the frequencies to use instead of the plain ones."""

        def pair_of(rotations: float) -> float:
            """Return the (fractional) pair that rotates so often over the original length."""
            period = self.original_length / (rotations * 2 * math.pi)
            return dim * math.log(period) / (2 * math.log(base))

        low = max(math.floor(pair_of(self.beta_fast)), 0)
        high = min(math.ceil(pair_of(self.beta_slow)), dim - 1)
        width = max(high - low, 0.001)
        result = []
        for i, f in enumerate(plain):
            slow = min(max((i - low) / width, 0.0), 1.0)
            result.append(f / self.factor * slow + f * (1.0 - slow))
        return result

    @property
    def temperature(self) -> float:
        """The factor on queries and keys."""
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class Llama3Scaling:
    """The rule of Llama 3.1: interpolate slow rotations, keep fast ones, blend in between.

    Parameters
    ----------
    factor
        How many times longer inputs may be than in training.
    original_length
        The length of inputs in training.
    low, high
        A pair that makes fewer than ``low`` rotations over the original length is interpolated;
        one that makes more than ``high`` is kept.

    Examples
    --------
    >>> Llama3Scaling(8.0, 8192).frequencies([1.0, 1e-5], 500000.0, 4)
    [1.0, 1.25e-06]
    """

    factor: float
    original_length: int
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        _factor("Llama3Scaling", self.factor)
        if self.original_length < 1 or not self.low < self.high:
            raise ConfigError(
                f"Llama3Scaling: original_length is {self.original_length}, low {self.low} and "
                f"high {self.high}, expected a positive length and low < high."
            )

    def frequencies(self, plain: list[float], base: float, dim: int) -> list[float]:
        """Return the frequencies to use instead of the plain ones."""
        result = []
        for f in plain:
            rotations = self.original_length * f / (2 * math.pi)
            kept = min(max((rotations - self.low) / (self.high - self.low), 0.0), 1.0)
            result.append(f * kept + f / self.factor * (1.0 - kept))
        return result

    @property
    def temperature(self) -> float:
        """The factor on queries and keys."""
        return 1.0


Scaling = Interpolation | NTK | YaRN | Llama3Scaling


def _factor(where: str, factor: float) -> None:
    if not (math.isfinite(factor) and factor > 0):
        raise ConfigError(f"{where}: factor is {factor}, expected a positive number such as 4.0.")
