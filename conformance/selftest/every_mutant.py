"""All seeded mistakes."""

from __future__ import annotations

import importlib.util

from attention_mutants import ATTENTION_MUTANTS
from beyond_mutants import BEYOND_MUTANTS
from kernel_mutants import KERNEL_MUTANTS
from key_mutants import KEY_MUTANTS
from layer_mutants import LAYER_MUTANTS
from memory_mutants import MEMORY_MUTANTS
from mutant import Mutant
from position_mutants import POSITION_MUTANTS
from store_mutants import STORE_MUTANTS
from tier_mutants import TIER_MUTANTS
from weight_mutants import WEIGHT_MUTANTS

EVERY_MUTANT = (
    MEMORY_MUTANTS
    + ATTENTION_MUTANTS
    + LAYER_MUTANTS
    + POSITION_MUTANTS
    + KERNEL_MUTANTS
    + KEY_MUTANTS
    + WEIGHT_MUTANTS
    + TIER_MUTANTS
    + BEYOND_MUTANTS
    + STORE_MUTANTS
)

#: What has to be installed to run a mutant.
NEEDS = {"strict": "array_api_strict", "numba": "numba", "torch": "torch", "jax": "jax"}


def can_run(mutant: Mutant) -> bool:
    """Whether the library that a mutant runs on is installed."""
    needed = NEEDS.get(mutant.run)
    return needed is None or importlib.util.find_spec(needed) is not None
