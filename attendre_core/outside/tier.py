"""A tier outside of the device, and the way between the two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from attendre_core import checks
from attendre_core.backend import Array, backend_of, beside
from attendre_core.errors import ConfigError, StateError
from attendre_core.memory.state import EvictedEntries, KeyValueState, empty_state
from attendre_core.outside.settings import HostStores
from attendre_core.outside.store import HostStore

__all__ = ["HostTier", "Retrieved"]


class Retrieved(NamedTuple):
    """What was retrieved, as the memory of one query per row: (batch * queries, heads, K, ...)."""

    state: KeyValueState
    slot: Any


@dataclass(frozen=True)
class HostTier:
    """The last of `Tiers`, outside of the device: each query retrieves the K best of a store.

    Keys are searched by their product with the query, without positions; the logits of what was
    found have them. It runs eagerly only, and the store is changed in place: a state that a step
    was given cannot be stepped again.

    Parameters
    ----------
    store
        Where entries are kept: a `HostStore`, for one stream of one layer, or `HostStores`, from
        which every layer of every stream of a model opens one.
    top_k
        How many entries each query and head retrieves.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> store = at.HostStore(capacity=100)
    >>> memory = at.Tiers(at.KeyValueMemory(4), at.HostTier(store, top_k=2))
    >>> state = memory.init(batch=1, heads=1, head_dim=2)
    >>> chunk = np.ones((1, 4, 1, 2), dtype=np.float32)
    >>> for _ in range(3):
    ...     state, evicted = memory.insert(state, chunk, chunk)
    ...     state, output = memory.attend(state, chunk)
    >>> store.lengths, output.shape
    ((8,), (1, 4, 1, 2))
    """

    store: HostStore | HostStores
    top_k: int = 32

    def __post_init__(self) -> None:
        if not isinstance(self.store, (HostStore, HostStores)):
            raise ConfigError(
                f"HostTier: store is {self.store!r}, expected an at.HostStore(capacity), or "
                "at.HostStores(capacity) for a model."
            )
        checks.whole_number("HostTier", "top_k", self.top_k, least=1, hint="32 is usual.")

    @property
    def entries(self) -> HostStore:
        """The store of this stream and layer."""
        if isinstance(self.store, HostStores):
            raise ConfigError(
                f"HostTier: {self.store!r} are the settings of stores, which a model's "
                "streams open. Use at.HostTier(at.HostStore(capacity)) for one stream of one layer."
            )
        return self.store

    def opened(self) -> HostTier:
        """Return the same tier over a new, empty store."""
        return self.over(self.store.open() if isinstance(self.store, HostStores) else self.store)

    def over(self, store: HostStore) -> HostTier:
        """Return the same tier over another store."""
        return replace(self, store=store)

    def receive(self, clock: Array, gone: EvictedEntries) -> tuple[Array, EvictedEntries]:
        """Store what the tiers on the device evict.

        Parameters
        ----------
        clock
            int32, (batch,): how many entries the state has sent here so far.

        Returns
        -------
        clock, deleted
            ``deleted`` is what the store deletes, as many entries as came.
        """
        key, value, position, valid, count = (
            _read(x) for x in (gone.key, gone.value, gone.position, gone.valid, _counts(gone))
        )
        batch, _, heads, dim = key.shape
        self.entries.open(batch, heads, dim, value.shape[3])
        self._same_stream(clock)
        order = np.argsort(_read(gone.arrival), axis=1, kind="stable")
        out = [np.zeros_like(x) for x in (key, value, position, valid, count)]
        for b in range(batch):
            at = order[b][valid[b][order[b]]]
            entries = {
                "key": key[b, at].swapaxes(0, 1), "value": value[b, at].swapaxes(0, 1),
                "position": position[b, at], "count": count[b, at],
            }  # fmt: skip
            deleted = self.entries.add(b, entries)
            n = len(deleted["position"])
            out[0][b, :n], out[1][b, :n] = (deleted[x].swapaxes(0, 1) for x in ("key", "value"))
            out[2][b, :n], out[4][b, :n] = deleted["position"], deleted["count"]
            out[3][b, :n] = True
        back = [beside(x, gone.key) for x in out]
        xp = backend_of(gone.key).xp
        aux = None if gone.aux is None else {"count": back[4]}
        score = xp.zeros_like(gone.score)
        result = EvictedEntries(back[0], back[1], back[2], back[3], aux, score, gone.arrival)
        return beside(self.entries.clock.astype(np.int32), clock), result

    def retrieve(
        self, clock: Array, query: Array, valid: Array | None, key: Array, value: Array
    ) -> Retrieved:
        """Retrieve for queries (batch, queries, heads, head_dim).

        Parameters
        ----------
        key, value
            Entries on the device, (batch, kv_heads, slots, dim), for their shapes.
        """
        found, asked = backend_of(query), _read(query)
        batch, count, heads, dim = query.shape
        real = np.ones((batch, count), dtype=bool) if valid is None else _read(valid)
        device = found.device_of(query)
        shape = (batch * count, heads, self.top_k, dim)
        self.entries.open(batch, key.shape[1], dim, value.shape[3])
        self._same_stream(clock)
        best = self.entries.search(asked, real, self.top_k)
        state = empty_state(
            found.xp, *shape[:3], dim, best.value.shape[-1], query.dtype, device, True, None
        )

        def flat(x: Any) -> Array:
            return beside(np.ascontiguousarray(x.reshape(batch * count, *x.shape[2:])), query)

        kind = state.key.dtype
        state = state._replace(
            key=found.xp.astype(flat(best.key), kind),
            value=found.xp.astype(flat(best.value), kind),
            position=flat(best.position),
            valid=flat(best.valid),
        )
        return Retrieved(state, best.slot)

    def observe(self, slot: Any, weight: Array) -> None:
        """Let the store know what attention its entries got, (batch, queries, heads, K)."""
        if self.entries.delete == "least-used":
            self.entries.observe(slot, _read(weight))

    def reset(self, rows: Array) -> None:
        """Delete all entries of some rows."""
        self.entries.clear(_read(rows))

    def _same_stream(self, clock: Array) -> None:
        given, own = _read(clock).tolist(), self.entries.clock.tolist()
        if given != own:
            raise StateError(
                f"HostTier: the state has sent {given} entries to the store, which received {own}. "
                "A store belongs to one stream and goes on with it: step the newest state, and "
                "give every stream and layer a store of its own."
            )


def _counts(gone: EvictedEntries) -> Array:
    if isinstance(gone.aux, dict) and "count" in gone.aux:
        return gone.aux["count"]
    xp = backend_of(gone.position).xp
    return xp.ones_like(gone.position)


def _read(array: Array) -> Any:
    """Return an array as one of NumPy, if this is not compiled code."""
    found = backend_of(array)
    try:
        compiling = not found.is_concrete(array) and "cpu" in str(found.device_of(array)).lower()
        if not compiling:
            return np.asarray(found.to_numpy(array))
    except Exception as error:
        raise _eager_only() from error
    raise _eager_only()


def _eager_only() -> ConfigError:
    return ConfigError(
        "HostTier: entries outside of the device cannot be read in compiled code. Step the layer "
        "without jit, scan or torch.compile."
    )
