"""The operations of a memory that the array-API standard lacks.

Each op has one plain body, written in standard functions. A backend may have a faster kernel of the
same name (`attendre_core.backend.op`); `attendre_core.force_generic` turns kernels off.
"""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals(), at_once=True)  # so that all ops are registered
del attach
