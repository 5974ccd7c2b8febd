"""Memories that a network writes: slots that are a function of slots, input and output."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
