"""Attention sinks: the first entries stay, the rest are FIFO (StreamingLLM)."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.errors import ConfigError
from attendre_core.policies.fifo import FIFO

__all__ = ["AttentionSink"]


@dataclass(frozen=True)
class AttentionSink(FIFO):
    """Never evict the first ``sinks`` valid entries of a row; the rest are FIFO.

    The sinks are part of the memory's size. Law: with 0 sinks the same as `FIFO`.

    Examples
    --------
    >>> AttentionSink(sinks=2)
    AttentionSink(sinks=2)
    """

    sinks: int = 4

    def __post_init__(self) -> None:
        if self.sinks < 0:
            raise ConfigError(
                f"AttentionSink: sinks is {self.sinks}, expected 0 or more. The paper uses 4."
            )
