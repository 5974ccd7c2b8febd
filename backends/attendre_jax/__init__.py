"""attendre-core on JAX: the backend, modules, scans over chunks, and models as pure functions.

States and chunks are pytrees; ``jax.lax.scan(layer.step, state, chunks)``, `jax.jit`, `jax.grad`,
`jax.vmap` and `jax.export` work with the core as it is. Importing this package imports neither flax
nor equinox.
"""

from attendre_core.lazy import attach
from attendre_jax import serialization as _serialization  # registers our records with jax.export

__getattr__, __dir__, __all__ = attach(globals())
del attach, _serialization
