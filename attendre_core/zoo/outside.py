"""The stores outside of the device of one stream: one for each layer that has such a tier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attendre_core.errors import StateError
from attendre_core.layer.stack import Stack
from attendre_core.outside.store import HostStore
from attendre_core.zoo.saving import SavedArrays

__all__ = ["Stores", "fill_stores", "open_stores", "over", "saved_stores"]

#: For each layer, None where nothing is outside of the device.
Stores = tuple[HostStore | None, ...]


def open_stores(stack: Stack) -> Stores:
    """Return new, empty stores."""
    tiers = (getattr(layer.kv_memory, "outside", None) for layer in stack.layers)
    return tuple(tier and tier.opened().entries for tier in tiers)


def over(stack: Stack, stores: Stores) -> Stack:
    """Return a stack whose memories go on in these stores."""
    if not any(stores):
        return stack
    pairs = zip(stack.layers, stores, strict=True)
    layers = []
    for layer, store in pairs:
        tiers: Any = layer.kv_memory
        layers.append(layer if store is None else replace(layer, kv_memory=tiers.over(store)))
    return replace(stack, layers=tuple(layers))


def saved_stores(stores: Stores) -> list[Any]:
    """Return what the stores hold, as nested arrays: by layer, row and field."""
    return [
        (store and [store.held(row) for row in range(len(store.clock))]) or None for store in stores
    ]


def fill_stores(stores: Stores, states: Any, saved: SavedArrays) -> SavedArrays:
    """Fill empty stores with what a file holds; return the rest of the file."""
    own = {name: array for name, array in saved.arrays.items() if name.startswith("stores.")}
    rest = {name: array for name, array in saved.arrays.items() if name not in own}
    try:
        for number, store in enumerate(stores):
            if store is None:
                continue
            kv: Any = states[number].kv
            batch, heads, _, dim = kv.key.shape
            clock = np.asarray(rest[f"states.{number}.kv.tiers.{len(kv.tiers) - 1}.clock"])
            if clock.shape != (batch,):
                raise KeyError("clock")
            if f"stores.{number}.0.slot" not in own and not clock.any():
                continue
            store.open(batch, heads, dim, kv.value.shape[3])
            for row in range(batch):
                lead = f"stores.{number}.{row}."
                fields = [name for name in own if name.startswith(lead)]
                store.put(row, {n.removeprefix(lead): own.pop(n) for n in fields}, int(clock[row]))
    except (KeyError, StateError) as error:
        raise saved.refused(f"holds entries of a store that cannot be: {error}") from error
    if own:
        raise saved.refused(f"holds {sorted(own)[0][:80]!r}, which no layer has")
    return SavedArrays(saved.path, rest, saved.notes)
