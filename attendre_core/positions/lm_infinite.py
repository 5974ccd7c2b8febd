"""LM-Infinite in the paper's variant (section 4): the distance is clamped, nothing is masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array, namespace_of
from attendre_core.checks import LAST_POSITION
from attendre_core.errors import ConfigError
from attendre_core.positions.base import Encoded, Encoding, Places, Term
from attendre_core.positions.rope import RoPE

__all__ = ["LMInfinite"]


@dataclass(frozen=True)
class LMInfinite(Encoding):
    """RoPE whose relative distance is clamped to [-n_local, n_local].

    Pairs within the band use their original positions; pairs farther apart are treated as n_local
    apart, in either direction. Sinks follow the same rule (specification, readings 31 and 33).

    Parameters
    ----------
    n_local
        The context length of pretraining.
    base
        Base of the rotation; see `RoPE`.
    rope
        The whole rotation, if more than its base differs (scaling, partial, interleaved); then
        ``base`` is ignored.

    Examples
    --------
    >>> LMInfinite(n_local=512)
    LMInfinite(n_local=512, base=10000.0, rope=None)
    """

    n_local: int = 512
    base: float = 10000.0
    rope: RoPE | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.n_local <= LAST_POSITION:
            raise ConfigError(
                f"LMInfinite: n_local is {self.n_local}, expected the context length of "
                "pretraining, such as 512."
            )

    def encode(self, query: Array, key: Array, places: Places, params: Any = None) -> Encoded:
        """Rotate near pairs by their positions, and all others as if they were n_local apart."""
        rope = RoPE(base=self.base) if self.rope is None else self.rope
        if rope.temperature != 1.0:
            query = query * rope.temperature**2
        limit = namespace_of(places.key).full_like(places.key[:, :, :1], self.n_local)
        near = Term(query, key, rope.rotate, places.query, places.key)
        # The far terms rotate the keys by a constant and leave the queries alone.
        past = Term(query, key, rope.rotate, None, -limit, low=self.n_local)
        ahead = Term(query, key, rope.rotate, None, limit, high=1 - self.n_local)
        return Encoded((near, ahead, past), places)
