"""A seeded mistake: it breaks the core or an adapter in one place, and one law must notice.

A mutant replaces an exact piece of text of one file. If the text is no longer there the mutant is
stale, which is an error: adapt it to the code, do not delete it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Run = Literal["numpy", "strict", "numba", "torch", "jax"]


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes
    ----------
    name : str
        What goes wrong.
    file : str
        File of a package, relative to the folder that holds the package.
    old, new : str
        Text that is there (its first occurrence is taken), and what to put in its place.
    law : str
        The test of the conformance suite that must fail.
    run : str
        Where it runs: ``"numpy"`` with its kernels, but without machine code; ``"numba"`` with
        machine code; ``"strict"`` without any kernel; ``"torch"`` or ``"jax"``.
    """

    name: str
    file: str
    old: str
    new: str
    law: str
    run: Run = "numpy"
