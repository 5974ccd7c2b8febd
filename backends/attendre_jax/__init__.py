"""attendre-core on JAX: how its arrays are recognised, and its kernels."""

from attendre_jax.adapter import backend

__all__ = ["backend"]
