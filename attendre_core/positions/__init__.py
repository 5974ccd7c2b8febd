"""Position schemes, one per file. Keys are stored as they are; a scheme is applied on reading."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
