"""Memories behind a memory: what one evicts, the next receives."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
