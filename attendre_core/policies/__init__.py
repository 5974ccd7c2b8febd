"""Eviction policies: one rule per file (paper, section 3.1)."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
