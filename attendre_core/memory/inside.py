"""States of a key-value memory: making, inspecting, resetting and reordering them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core import checks
from attendre_core.backend import Array, Backend, Namespace, backend_of, resolve
from attendre_core.errors import ConfigError, DTypeError
from attendre_core.memory.admission import carry_out, hand_back
from attendre_core.memory.arrivals import nothing
from attendre_core.memory.batch import reorder_rows, reset_rows
from attendre_core.memory.report import FROZEN_BELOW, MemoryReport, report_of, warn_if_frozen
from attendre_core.memory.room import clear_room
from attendre_core.memory.spec import KeyValueSpec
from attendre_core.memory.state import (
    Entries,
    EvictedEntries,
    KeyValueState,
    closed,
    empty_like,
    empty_state,
)
from attendre_core.policies.base import Stored

__all__ = ["KeyValueStates", "check_sizes"]


@dataclass(frozen=True)
class KeyValueStates(KeyValueSpec):
    """The operations of `KeyValueMemory` on states that are not in the paper."""

    def init(
        self,
        *,
        batch: int | None = None,
        heads: int | None = None,
        head_dim: int | None = None,
        kv_heads: int | None = None,
        xp: Namespace | str | Backend = "numpy",
        dtype: Any = None,
        device: Any = None,
        value_dim: int | None = None,
        aux: Any = None,
        chunk: int | None = None,
        like: Array | None = None,
    ) -> KeyValueState:
        """Make an empty state.

        Parameters
        ----------
        batch, heads, head_dim
            Rows, heads and width of a head.
        kv_heads
            Number of K/V heads; None = as many as heads.
        xp
            Array library: a namespace such as ``numpy``, ``torch``, ``jax.numpy``, or its name.
        dtype
            Dtype of keys and values: any library's dtype or its name, float32 by default.
        device
            Passed to the library.
        value_dim
            Width of a value, ``head_dim`` by default.
        aux
            An example of the metadata: nested arrays (batch, any, ...), for shapes and dtypes.
        chunk
            The longest chunk that will be inserted. Only for ``present="visible"``, where a
            state has size + chunk slots; None = 128.
        like
            A chunk of keys, (batch, seq, kv_heads, head_dim), to take all of the above from
            except ``value_dim`` and ``aux``. Arguments that are also given override it.
        """
        where = "KeyValueMemory.init"
        if like is not None:
            source = backend_of(like)
            checks.shape(
                where, "like", like, "batch, seq, heads, head_dim", (None,) * 4,
                "Show a chunk of keys.",
            )  # fmt: skip
            xp, dtype = source, like.dtype if dtype is None else dtype
            device = source.device_of(like) if device is None else device
            batch, kv_heads = batch or like.shape[0], kv_heads or heads or like.shape[2]
            chunk, head_dim = chunk or like.shape[1], head_dim or like.shape[3]
        heads = kv_heads or heads
        batch, heads, head_dim = check_sizes(where, batch=batch, heads=heads, head_dim=head_dim)
        if chunk is not None:
            checks.whole_number(where, "chunk", chunk, least=1, hint="None is 128.")
        xp = resolve(xp).xp
        dtype = checks.dtype_named(xp, dtype)
        if not xp.isdtype(dtype, "real floating"):
            raise DTypeError(
                f"{where}: dtype is {checks.dtype_name(dtype)}, expected a floating one. "
                "Use float32, or float16 or bfloat16 to save room."
            )
        state = empty_state(
            xp, batch, heads, self.slots(chunk), head_dim, value_dim or head_dim, dtype, device,
            self.per_head, aux,
        )  # fmt: skip
        return self._begun(state)

    def _begun(self, empty: KeyValueState) -> KeyValueState:
        """Close the slots that a head may not use, and let the policy begin."""
        state = closed(empty, self.head_sizes) if self.head_sizes else empty
        return state._replace(policy_state=self.policy.init(Stored(*state[:10])))

    def entries(self, state: KeyValueState) -> Entries:
        """Return the stored entries with axes (batch, slots, kv_heads, dim)."""
        checks.key_value_state("KeyValueMemory.entries", self, state)
        xp = backend_of(state.key).xp
        return Entries(
            xp.permute_dims(state.key, (0, 2, 1, 3)),
            xp.permute_dims(state.value, (0, 2, 1, 3)),
            state.position,
            state.valid,
            state.score,
            state.arrival,
            state.pinned,
            state.aux,
        )

    def reset(self, state: KeyValueState, rows: Array) -> KeyValueState:
        """Empty some rows, e.g. where a new document begins.

        Parameters
        ----------
        rows
            Boolean, (batch,): True = empty this row.
        """
        checks.key_value_state("KeyValueMemory.reset", self, state)
        return reset_rows("KeyValueMemory.reset", state, self._begun(empty_like(state)), rows)

    def reorder(self, state: KeyValueState, index: Array) -> KeyValueState:
        """Select rows, in any order and with repetition, as beam search needs.

        Parameters
        ----------
        index
            Integer, (new batch,): row i of the result is row ``index[i]``.
        """
        checks.key_value_state("KeyValueMemory.reorder", self, state)
        return reorder_rows("KeyValueMemory.reorder", state, index)

    def admitted_share(self, state: KeyValueState) -> Array:
        """Return the share of new entries admitted while the memory was full, (batch,).

        It is the share of evicted entries that had been admitted before; 1 while nothing has been
        evicted. Near 0, the memory is frozen: it holds only the beginning of the input.
        """
        checks.key_value_state("KeyValueMemory.admitted_share", self, state)
        xp = backend_of(state.key).xp
        evicted = xp.astype(state.evictions, xp.float32)
        refused = xp.astype(state.refusals, xp.float32)
        some = xp.where(evicted > 0, evicted, xp.ones_like(evicted))
        return 1.0 - refused / some

    def report(self, state: KeyValueState, *, warn_below: float = FROZEN_BELOW) -> MemoryReport:
        """Report what the memory holds and how it behaved; warn if it is freezing.

        Warns
        -----
        FrozenMemoryWarning
            If a row admits a smaller share of new entries than ``warn_below``.
        """
        result = report_of(state, self.admitted_share(state))
        warn_if_frozen(result.admitted_share, warn_below, stacklevel=3)
        return result

    def settle(
        self, state: KeyValueState, *, policy_params: Any = None
    ) -> tuple[KeyValueState, EvictedEntries]:
        """Let the present chunk compete now: cut the state down to ``size`` entries.

        Only a memory with ``present="visible"`` holds more; others are returned unchanged.
        ``policy_params`` as in `KeyValueMemory.insert`.
        """
        checks.key_value_state("KeyValueMemory.settle", self, state)
        if state.key.shape[2] == self.size:
            xp, none = backend_of(state.key).xp, nothing(state, 0)
            key, value = (xp.permute_dims(x, (0, 2, 1, 3)) for x in (none.key, none.value))
            return state, EvictedEntries(
                key, value, none.position, none.valid, none.aux, none.score, none.arrival
            )
        exchange = clear_room(self, state, policy_params)
        return carry_out(state, exchange, donate=False), hand_back(state, exchange)


def check_sizes(where: str, **sizes: int | None) -> tuple[int, ...]:
    """Return the lengths of axes; refuse any that is missing or less than 1."""
    lengths = []
    for name, value in sizes.items():
        if value is None:
            raise ConfigError(
                f"{where}: {name} was left out. Give {', '.join(sizes)}, or an array with like=."
            )
        checks.whole_number(where, name, value, least=1, hint="It is the length of an axis.")
        lengths.append(value)
    return tuple(lengths)
