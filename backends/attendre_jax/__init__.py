"""attendre-core on JAX: its backend, and what makes memories feel at home there.

States and chunks are pytrees; ``jax.lax.scan(layer.step, state, chunks)``, `jax.jit`,
`jax.grad`, `jax.vmap` and `jax.export` take the core as it is. Importing this package imports
neither flax nor equinox.
"""

from attendre_core.lazy import attach
from attendre_jax import serialization as _serialization  # jax.export then knows our records

__getattr__, __dir__, __all__ = attach(globals())
del attach, _serialization
