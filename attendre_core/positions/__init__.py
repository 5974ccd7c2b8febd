"""Position schemes, one per file. Keys are stored without positions; attention applies them."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
