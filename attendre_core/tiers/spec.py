"""The settings of tiers, their checks, and their parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.sizes import state_bytes
from attendre_core.outside.store import HostStore
from attendre_core.outside.tier import HostTier
from attendre_core.policies import Policy
from attendre_core.tiers.compress import Compressor
from attendre_core.tiers.merge import Merge

__all__ = ["Gate", "Tier", "TiersParameters", "TiersSpec", "with_scale"]


@dataclass(frozen=True)
class Tier:
    """A memory behind another: it receives what the one before it evicts.

    Parameters
    ----------
    memory
        How many entries it holds, and what it evicts. New entries compete, and enter with the
        score that its own policy gives them.
    compress
        How entries are compressed on the way in: `MeanPool`, `MaxPool`, `Convolution`, `MostUsed`,
        `Dilated` or `Merge`; None leaves them as they are.
    top_k
        Each query and head attends to the K best entries of this tier; None = to all.
    by
        Retrieve K chunks of this many entries that arrived one after the other, whose mean logit
        is best, as LongMem does, instead of K entries.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.Tier(at.KeyValueMemory(512), compress=at.MeanPool(4)).waiting
    3
    """

    memory: KeyValueMemory
    compress: Compressor | Merge | None = None
    top_k: int | None = None
    by: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.memory, KeyValueMemory) or self.memory.present != "compete":
            raise ConfigError(
                f"Tier: memory is {self.memory!r}, expected a KeyValueMemory with "
                "present='compete'. Only the first tier can show a whole chunk."
            )
        if not (self.compress is None or isinstance(self.compress, (Compressor, Merge))):
            raise ConfigError(
                f"Tier: compress is {self.compress!r}, expected a compressor such as "
                "at.MeanPool(4), or None."
            )
        if self.top_k is not None:
            checks.whole_number("Tier", "top_k", self.top_k, least=1, hint="None attends to all.")
        checks.whole_number("Tier", "by", self.by, least=1, hint="1 retrieves entry by entry.")

    @property
    def waiting(self) -> int:
        """How many entries may wait to be compressed."""
        return self.compress.block - 1 if isinstance(self.compress, Compressor) else 0


@dataclass(frozen=True)
class Gate:
    """Read the first tier and the others by a softmax each, and mix the two by a learned gate.

    The output is ``g * memory + (1 - g) * local``: ``local`` is attention over the first tier,
    ``memory`` attention over all others, and ``g = sigmoid(gate)`` one number per query head
    (Memorizing Transformer, LongMem). A query that finds nothing on one side gets the other alone.

    Parameters
    ----------
    initial
        The number to start from, before the sigmoid; it is used where no parameters are given.
    positions
        Whether the position scheme applies to the tiers behind the first. Memorizing Transformer
        reads its memory without.

    Examples
    --------
    >>> Gate().initial
    0.0
    """

    initial: float = 0.0
    positions: bool = True


class TiersParameters(NamedTuple):
    """The arrays that tiers need, passed as ``policy_params``.

    Attributes
    ----------
    policies
        The parameters of each tier's policy, or None.
    compress
        The parameters of the compressor of each tier behind the first, or None.
    gate
        (heads,): see `Gate`; None starts from its initial number.
    """

    policies: tuple[Any, ...]
    compress: tuple[Any, ...]
    gate: Any = None


@dataclass(frozen=True, init=False)
class TiersSpec:
    """The fields of `Tiers`; see its documentation."""

    first: KeyValueMemory
    rest: tuple[Tier, ...]
    read: Literal["softmax"] | Gate
    outside: HostTier | None

    def __init__(
        self,
        first: KeyValueMemory,
        *rest: Tier | HostTier,
        read: Literal["softmax"] | Gate = "softmax",
    ) -> None:
        outside = rest[-1] if rest and isinstance(rest[-1], HostTier) else None
        rest = rest[:-1] if outside else rest
        fields = {"first": first, "rest": rest, "read": read, "outside": outside}
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        if not isinstance(self.first, KeyValueMemory):
            raise ConfigError(f"Tiers: the first is {self.first!r}, expected a KeyValueMemory.")
        some = self.rest or self.outside
        if not some or not all(isinstance(tier, Tier) for tier in self.rest):
            raise ConfigError(
                f"Tiers: behind the first is {self.rest!r}, expected one or more at.Tier(...), and "
                "an at.HostTier(...) at most as the last."
            )
        if self.outside and (self.per_head or self.present != "compete"):
            raise ConfigError(
                "Tiers: a HostTier keeps whole tokens of memories with present='compete'. Use "
                "per_head=False and present='compete'."
            )
        if self.read != "softmax" and not isinstance(self.read, Gate):
            raise ConfigError(f"Tiers: read is {self.read!r}, expected 'softmax' or at.Gate().")
        if any(memory.head_sizes for memory in self.memories):
            raise ConfigError("Tiers: head_sizes do not apply to tiers. Leave them out.")
        for name in ("per_head", "scale"):
            values = {getattr(memory, name) for memory in self.memories}
            if len(values) > 1:
                raise ConfigError(
                    f"Tiers: {name} is {' and '.join(map(repr, values))}, expected the same in "
                    "every tier."
                )

    @property
    def memories(self) -> tuple[KeyValueMemory, ...]:
        """The memory of each tier."""
        return (self.first, *(tier.memory for tier in self.rest))

    @property
    def size(self) -> int:
        """M: how many entries all tiers hold, besides those that wait to be compressed."""
        return sum(memory.size for memory in self.memories)

    @property
    def is_one_softmax(self) -> bool:
        """Whether reading is plain attention over all slots."""
        limited = any(tier.top_k is not None for tier in self.rest)
        return self.read == "softmax" and not limited and self.outside is None

    @property
    def compresses(self) -> bool:
        """Whether an entry may stand for several, which ``aux["count"]`` then counts."""
        return any(tier.compress is not None for tier in self.rest)

    @property
    def present(self) -> Literal["compete", "visible"]:
        """Whether the first tier shows a whole new chunk; see `KeyValueMemory`."""
        return self.first.present

    @property
    def policy(self) -> Policy:
        """The policy of the first tier."""
        return self.first.policy

    @property
    def per_head(self) -> bool:
        """Whether each K/V head decides for itself."""
        return self.first.per_head

    @property
    def scale(self) -> float | None:
        """The factor on the logits; None is 1/sqrt(head_dim)."""
        return self.first.scale

    def slots(self, chunk: int | None = None) -> int:
        """Return how many slots a state has."""
        behind = sum(tier.waiting + tier.memory.size for tier in self.rest)
        return self.first.slots(chunk) + behind

    def nbytes(
        self, batch: int, heads: int, head_dim: int, dtype: Any = "float32", *,
        value_dim: int | None = None, aux_bytes: int = 0, chunk: int | None = None,
    ) -> int:  # fmt: skip
        """Return the bytes a state will take, before anything is allocated."""
        counts = 4 if self.compresses else 0
        clocks = 4 * 4 * batch * len(self.rest)
        return clocks + state_bytes(
            self.slots(chunk), self.per_head, batch, heads, head_dim, value_dim, dtype,
            aux_bytes + counts,
        )  # fmt: skip

    def params(self, given: Any) -> TiersParameters:
        """Return parameters; those that were not given are None."""
        if given is None:
            return TiersParameters((None,) * len(self.memories), (None,) * len(self.rest))
        if not isinstance(given, TiersParameters):
            raise ConfigError(
                f"Tiers: policy_params is a {type(given).__name__}, expected TiersParameters. "
                "Start from those that parameters() returns."
            )
        return given

    def but(self, first: KeyValueMemory, *rest: Tier) -> Any:
        """Return tiers with other memories on the device, read in the same way."""
        outside = (self.outside,) if self.outside else ()
        return type(self)(first, *rest, *outside, read=self.read)

    def over(self, store: HostStore) -> Any:
        """Return the same tiers over another store outside of the device."""
        if self.outside is None:
            raise ConfigError("Tiers: there is no tier outside of the device.")
        return type(self)(self.first, *self.rest, self.outside.over(store), read=self.read)


def with_scale(memory: KeyValueMemory | TiersSpec, scale: float | None) -> Any:
    """Return the same memory, or the same tiers, with another factor on the logits."""
    if not isinstance(memory, TiersSpec):
        return replace(memory, scale=scale)
    rest = (replace(t, memory=replace(t.memory, scale=scale)) for t in memory.rest)
    return memory.but(replace(memory.first, scale=scale), *rest)
