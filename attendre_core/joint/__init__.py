"""What takes part in the softmax over a memory without being stored in it."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
