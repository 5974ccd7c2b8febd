"""Tables that are kept for the next call, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from attendre_core.backend import Array

__all__ = ["table"]


def table(like: Array, make: Callable[..., Any], *spec: Hashable, dtype: Any) -> Array:
    """Make a table once for each dtype; it is read-only."""
    return _kept(make, spec, dtype)


@lru_cache(maxsize=256)
def _kept(make: Callable[..., Any], spec: tuple[Hashable, ...], dtype: Any) -> Array:
    made = np.array(make(*spec), dtype=dtype)
    made.flags.writeable = False
    return made
