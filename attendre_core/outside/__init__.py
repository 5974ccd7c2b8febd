"""Entries outside of the device: in host memory or in files, found by their keys."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
