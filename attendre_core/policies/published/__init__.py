"""Eviction policies from other papers: one rule per file, each with its source."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
