"""Position schemes of other papers that have parameters of their own, one per file."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
