"""How many bytes a memory takes."""

from __future__ import annotations

import re
from typing import Any

from attendre_core import checks
from attendre_core.errors import ConfigError, DTypeError

__all__ = ["byte_count", "state_bytes"]

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}


def state_bytes(
    slots: int,
    per_head: bool,
    batch: int,
    heads: int,
    head_dim: int,
    value_dim: int | None,
    dtype: Any,
    aux_bytes: int,
) -> int:
    """Return the size of a key-value state in bytes."""
    name = dtype if isinstance(dtype, str) else checks.dtype_name(dtype)
    if name not in _BYTES:
        raise DTypeError(
            f"KeyValueMemory.nbytes: dtype is {name!r}, expected one of {', '.join(_BYTES)}."
        )
    score = 8 if name == "float64" else 4
    payload = heads * (head_dim + (value_dim or head_dim)) * _BYTES[name]
    record = (4 + 4 + score + 1 + 1 + 1 + aux_bytes) * (heads if per_head else 1)
    return batch * (slots * (payload + record) + 5 * 4)


def byte_count(budget: int | str) -> int:
    """Parse a number of bytes: 1000000, "64 MiB", "2GB".

    Examples
    --------
    >>> byte_count("64 KiB")
    65536
    """
    if isinstance(budget, int) and not isinstance(budget, bool):
        number = float(budget)
    else:
        match = re.fullmatch(r"\s*([0-9.]+)\s*([kKmMgG]i?)?[bB]?\s*", str(budget))
        try:
            number = float(match[1]) * _UNITS[(match[2] or "").lower()] if match else -1.0
        except ValueError:
            number = -1.0
    if number < 1:
        raise ConfigError(
            f"byte budget: {budget!r} is not a number of bytes, expected for example 1000000, "
            "'64 MiB' or '2 GB'."
        )
    return int(number)
