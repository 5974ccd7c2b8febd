"""attendre-core on JAX: its backend, and what makes memories feel at home there.

States and chunks are pytrees; ``jax.lax.scan(layer.step, state, chunks)``, `jax.jit`,
`jax.grad`, `jax.vmap` and `jax.export` take the core as it is. Importing this package imports
neither flax nor equinox.
"""

from typing import TYPE_CHECKING, Any

from attendre_core.lazy import lazy_names
from attendre_jax import serialization  # noqa: F401 - jax.export then knows states and chunks
from attendre_jax.adapter import backend

if TYPE_CHECKING:
    from attendre_jax.attention import AttendreAttention
    from attendre_jax.chunks import joined_chunks, split_chunks
    from attendre_jax.foreign import machine_code
    from attendre_jax.models import ModelFunctions
    from attendre_jax.parameters import flat_parameters, nested_parameters, random_parameters
    from attendre_jax.retrieval import approx_max_k
    from attendre_jax.scanning import chunked_attention, compiled_step, scan_chunks

# Imported when first asked for.
_named = lazy_names(
    globals(),
    {
        "attendre_jax.attention": ("AttendreAttention",),
        "attendre_jax.chunks": ("joined_chunks", "split_chunks"),
        "attendre_jax.foreign": ("machine_code",),
        "attendre_jax.models": ("ModelFunctions",),
        "attendre_jax.parameters": (
            "flat_parameters",
            "nested_parameters",
            "random_parameters",
        ),
        "attendre_jax.retrieval": ("approx_max_k",),
        "attendre_jax.scanning": ("chunked_attention", "compiled_step", "scan_chunks"),
    },
)


def __getattr__(name: str) -> Any:
    if name == "nnx":
        from importlib import import_module

        return import_module("attendre_jax.nnx")
    return _named(name)


__all__ = [
    "AttendreAttention",
    "ModelFunctions",
    "approx_max_k",
    "backend",
    "chunked_attention",
    "compiled_step",
    "flat_parameters",
    "joined_chunks",
    "machine_code",
    "nested_parameters",
    "random_parameters",
    "scan_chunks",
    "split_chunks",
]
