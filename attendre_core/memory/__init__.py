"""Memories of fixed size (paper, section 3.1, table of memory types)."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
