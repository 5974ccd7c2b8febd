"""Seeded mistakes in kernels: eager NumPy, machine code, and the adapters."""

from __future__ import annotations

from mutant import Mutant

KERNEL_MUTANTS: tuple[Mutant, ...] = ()
