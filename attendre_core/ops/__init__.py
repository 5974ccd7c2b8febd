"""What the array-API standard lacks and a memory needs.

Each op has one plain body in standard functions; a backend may bring a faster kernel of the same
name (`attendre_core.backend.op`), and `attendre_core.force_generic` turns kernels off.
"""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals(), at_once=True)  # so that all ops are known
del attach
