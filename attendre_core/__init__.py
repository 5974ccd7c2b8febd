"""Memories of fixed size for transformers over arbitrarily long input.

Written once against the Python array API; runs on NumPy, PyTorch, JAX and any other library
with a backend. Importing this package imports neither PyTorch nor JAX.

The public names are listed in ``__init__.pyi``. Result records are in `attendre_core.memory` and
`attendre_core.layer`, array libraries in `attendre_core.backend`, ops in `attendre_core.ops`.
"""

from attendre_core import ops as _ops  # registers the ops that kernels may be written for
from attendre_core.lazy import attach

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(globals())
del attach, _ops
