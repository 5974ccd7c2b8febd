"""What a memory may be asked for: checks of its fields, and its size in bytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attendre_core import checks
from attendre_core.errors import ConfigError, DTypeError
from attendre_core.policies import Policy, RandomTies

if TYPE_CHECKING:
    from attendre_core.memory.key_value import KeyValueMemory

__all__ = ["byte_count", "check_policy", "check_spec", "state_bytes"]

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}


def check_spec(memory: KeyValueMemory) -> None:
    """Refuse a key-value memory that cannot work."""
    where = "KeyValueMemory"
    checks.whole_number(where, "size", memory.size, least=1, hint="It counts entries of a row.")
    checks.whole_number(
        where, "protect_recent", memory.protect_recent, least=0, hint="0 protects nothing."
    )
    checks.whole_number(where, "passes", memory.passes, least=1, hint="16 is a good choice.")
    if memory.present not in ("compete", "visible"):
        raise ConfigError(
            f"{where}: present is {memory.present!r}, expected 'compete' or 'visible'."
        )
    if memory.retrieval not in ("threshold", "gather", "approximate"):
        raise ConfigError(
            f"{where}: retrieval is {memory.retrieval!r}, expected 'threshold', 'gather' or "
            "'approximate'."
        )
    check_policy(where, memory.policy, memory.size, memory.protect_recent, memory.ties)
    for span in memory.pin:
        if len(span) != 2 or span[0] >= span[1]:
            raise ConfigError(
                f"{where}: pin holds {span!r}, expected (start, stop) with start < stop, e.g. "
                "pin=((0, 32),) for the first 32 positions."
            )


def check_policy(
    where: str, policy: Policy, size: int, protect_recent: int, ties: str | RandomTies
) -> None:
    """Refuse a policy that is none, and protection that leaves no room to evict."""
    for method in ("enter", "observe", "priority"):
        if not callable(getattr(policy, method, None)):
            raise ConfigError(
                f"{where}: policy is {policy!r}, which has no method {method}. Pass a policy such "
                "as at.LFA(), or an instance of your own subclass of at.Policy."
            )
    if ties != "recency" and not isinstance(ties, RandomTies):
        raise ConfigError(f"{where}: ties is {ties!r}, expected 'recency' or RandomTies(seed).")
    guarded = policy.sinks + protect_recent
    if guarded > size:
        raise ConfigError(
            f"{where}: {policy.sinks} sinks and {protect_recent} protected recent entries do not "
            f"fit into size {size}. Enlarge the memory or protect fewer."
        )


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
    """Count the bytes of a key-value state."""
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
    """Read a number of bytes: 1000000, "64 MiB", "2GB".

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
