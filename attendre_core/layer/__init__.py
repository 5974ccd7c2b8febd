"""Layers and stacks that read a stream in fixed memory (paper, sections 3.2 and 3.3)."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
