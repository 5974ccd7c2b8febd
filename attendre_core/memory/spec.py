"""The fields of a key-value memory, their checks, and its size in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeVar

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.memory.sizes import byte_count, state_bytes
from attendre_core.policies import FIFO, Policy, RandomTies

__all__ = ["CHUNK", "KeyValueSpec", "check_pin", "check_policy"]

#: The chunk length of the paper.
CHUNK = 128
Self = TypeVar("Self", bound="KeyValueSpec")


@dataclass(frozen=True)
class KeyValueSpec:
    """The fields of a `KeyValueMemory`; see its documentation."""

    size: int
    policy: Policy = FIFO()
    present: Literal["compete", "visible"] = "compete"
    per_head: bool = False
    protect_recent: int = 0
    pin: tuple[tuple[int, int], ...] = ()
    ties: Literal["recency"] | RandomTies = "recency"
    scale: float | None = None
    retrieval: Literal["threshold", "gather", "approximate"] = "threshold"
    passes: int = 16
    sinks: int = 0
    head_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        where = "KeyValueMemory"
        checks.whole_number(where, "size", self.size, least=1, hint="It counts entries per row.")
        checks.whole_number(where, "passes", self.passes, least=1, hint="16 is a good choice.")
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                given, known = getattr(self, name), " or ".join(map(repr, words))
                raise ConfigError(f"{where}: {name} is {given!r}, expected {known}.")
        least = min((self.size, *self._checked_head_sizes(where)))
        check_policy(where, self.policy, least, self.sinks, self.protect_recent, self.ties)
        check_pin(where, self.pin)

    def _checked_head_sizes(self, where: str) -> tuple[int, ...]:
        sizes = self.head_sizes
        for size in sizes if isinstance(sizes, tuple) else (sizes,):
            checks.whole_number(where, "head_sizes", size, least=1, hint="It counts entries.")
        if sizes and (not self.per_head or max(sizes) != self.size):
            raise ConfigError(
                f"{where}: head_sizes is {sizes}, with per_head={self.per_head} and size "
                f"{self.size}, expected per_head=True and the largest of them as size."
            )
        return sizes

    @property
    def all_sinks(self) -> int:
        """How many of the first entries are never evicted: by the memory or by its policy."""
        return max(self.sinks, self.policy.sinks)

    def slots(self, chunk: int | None = None) -> int:
        """Return how many slots a state has: size, plus room for a visible chunk."""
        return self.size + ((CHUNK if chunk is None else chunk) if self.present == "visible" else 0)

    def nbytes(
        self,
        batch: int,
        heads: int,
        head_dim: int,
        dtype: Any = "float32",
        *,
        value_dim: int | None = None,
        aux_bytes: int = 0,
        chunk: int | None = None,
    ) -> int:
        """Return the bytes a state will take, before anything is allocated.

        ``heads`` is the number of K/V heads, ``aux_bytes`` the size of one entry's metadata.
        """
        return state_bytes(
            self.slots(chunk), self.per_head, batch, heads, head_dim, value_dim, dtype, aux_bytes
        )

    @classmethod
    def within_bytes(
        cls: type[Self],
        budget: int | str,
        *,
        batch: int = 1,
        heads: int,
        head_dim: int,
        dtype: Any = "float32",
        value_dim: int | None = None,
        aux_bytes: int = 0,
        chunk: int | None = None,
        **spec: Any,
    ) -> Self:
        """Make the largest memory whose state fits into a number of bytes.

        Parameters
        ----------
        budget
            Bytes, or a string such as ``"64 MiB"``.
        **spec
            The other fields of the memory.

        Examples
        --------
        >>> import attendre_core as at
        >>> at.KeyValueMemory.within_bytes("1 MiB", heads=8, head_dim=64).size
        255
        """

        def taken(size: int) -> int:
            return cls(size=size, **spec).nbytes(
                batch, heads, head_dim, dtype,
                value_dim=value_dim, aux_bytes=aux_bytes, chunk=chunk,
            )  # fmt: skip

        total = byte_count(budget)
        sinks = max(spec.get("sinks", 0), spec.get("policy", FIFO()).sinks)
        least = max(1, spec.get("protect_recent", 0) + sinks)
        each = taken(least + 1) - taken(least)
        size = least + (total - taken(least)) // each
        if size < least:
            raise ConfigError(
                f"KeyValueMemory.within_bytes: {total} bytes hold less than the smallest such "
                f"memory, which takes {taken(least)}. Raise the budget, or lower batch or heads."
            )
        return cls(size=size, **spec)


_WORDS = {
    "present": ("compete", "visible"),
    "retrieval": ("threshold", "gather", "approximate"),
}


def check_pin(where: str, pin: tuple[tuple[int, int], ...]) -> None:
    """Refuse pins that are not ranges of positions."""
    for span in pin if isinstance(pin, tuple) else (pin,):
        whole = isinstance(span, tuple) and all(isinstance(n, Integral) for n in span)
        if not whole or len(span) != 2 or not span[0] < span[1]:
            raise ConfigError(
                f"{where}: pin is {pin!r}, expected ranges ((start, stop), ...) with start < "
                "stop, e.g. pin=((0, 32),) for the first 32 positions."
            )


def check_policy(
    where: str,
    policy: Policy,
    size: int,
    sinks: int,
    protect_recent: int,
    ties: str | RandomTies,
) -> None:
    """Refuse what is not a policy, and more protected entries than the memory holds."""
    if isinstance(policy, type):
        raise ConfigError(
            f"{where}: policy is the class {policy.__name__}, expected an instance. Write "
            f"policy={policy.__name__}(), with its settings."
        )
    for method in ("init", "enter", "observe", "remember", "priority"):
        if not callable(getattr(policy, method, None)):
            raise ConfigError(
                f"{where}: policy is {policy!r}, which has no method {method}. Pass a policy such "
                "as at.LFA(), or an instance of your own subclass of at.Policy."
            )
    if ties != "recency" and not isinstance(ties, RandomTies):
        raise ConfigError(f"{where}: ties is {ties!r}, expected 'recency' or RandomTies(seed).")
    hint = "0 protects nothing."
    checks.whole_number(where, "sinks", sinks, least=0, hint=hint)
    checks.whole_number(where, "protect_recent", protect_recent, least=0, hint=hint)
    sinks = max(sinks, policy.sinks)
    if sinks + protect_recent > size:
        raise ConfigError(
            f"{where}: {sinks} sinks and {protect_recent} protected recent entries do not "
            f"fit into size {size}. Enlarge the memory or protect fewer."
        )
