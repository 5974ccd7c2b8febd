"""Cache layers for models that attend by themselves: they get what is held and the new chunk.

Such a model asks no function of ours, so nobody sees its queries, and only policies that need none
can be used: first in, first out, with sinks and pins. What it gets back from ``update`` is sorted
by position, everything that is held before everything new, so its own causal mask is right.
What its mask says about padding is learnt by a hook (see `masking`).
"""

from __future__ import annotations

from types import new_class
from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils

from attendre_core.errors import ConfigError
from attendre_core.policies.base import Policy
from attendre_core.presets import MemoryConfig

__all__ = ["HELD_LAYERS", "Held", "needs_no_queries"]


def needs_no_queries(memory: MemoryConfig) -> bool:
    """Whether the policies of all layers go by the order of arrival alone."""
    policies = (memory.policy, *dict(memory.layer_policies).values())
    return memory.top_k is None and all(
        type(policy).priority is Policy.by_arrival for policy in policies
    )


class Held:
    """Makes a growing layer hold M entries; mixed into transformers' own layers.

    Attributes
    ----------
    seen
        How many tokens arrived.
    padded
        Whether a mask hid one of them; known only where sinks or pins depend on it.
    inside
        Whether the model gets masks of what is held alone, and counts from the first held entry.
    """

    is_croppable = False

    def hold(self, number: int, memory: MemoryConfig, *, inside: bool = False) -> Any:
        """Set what is held; returns the layer itself."""
        if memory.tiers:
            raise ConfigError(
                "AttendreCache: memory has tiers, but this model attends by itself, and nobody "
                "sees what its layers evict. Load it with attendre_core.load, or leave the tiers "
                "out."
            )
        kv = memory.kv_memory(number)
        self._size, self._sinks, self._pin = kv.size, kv.all_sinks, kv.pin
        self.inside = inside
        self._forget()
        return self

    def _forget(self) -> None:
        self.seen, self.padded = 0, False
        self._positions = torch.arange(0)
        self._indexed = torch.arange(0)

    def see(self, mask: Any) -> None:
        """Learn whether there is padding: a mask is (batch, tokens), zero where a token is.

        Without one there is none; what another kind of mask says is not known.
        """
        if mask is not None and (self._sinks or self._pin):
            plain = isinstance(mask, Tensor) and mask.ndim == 2
            self.padded = self.padded or not (plain and bool(mask.all()))

    def columns(self, mask: Tensor) -> Tensor:
        """Return the columns of a mask of all tokens that are held, and those of new ones."""
        held = mask.index_select(1, self._positions.to(mask.device))
        return torch.cat([held, mask[:, self.seen :]], dim=1)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Return what was held and what is new; hold what the policy keeps of both."""
        found: tuple[Tensor, Tensor] = super().update(  # type: ignore[misc]
            key_states, value_states, *args, **kwargs
        )
        new = torch.arange(self.seen, self.seen + key_states.shape[2])
        self.seen += key_states.shape[2]
        self._positions, kept = self._kept(torch.cat([self._positions, new]))
        if kept is not None:
            self.keys, self.values = (x.index_select(2, kept.to(x.device)) for x in found)
        return found

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        """Do the same for the keys by which sparse attention finds entries."""
        found: Tensor = super().update_indexer(indexer_key_states)  # type: ignore[misc]
        last = int(self._indexed[-1]) + 1 if len(self._indexed) else 0
        new = torch.arange(last, last + indexer_key_states.shape[1])
        self._indexed, kept = self._kept(torch.cat([self._indexed, new]))
        if kept is not None:
            self.indexer_keys = found.index_select(1, kept.to(found.device))
        return found

    def _kept(self, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the positions that stay, and their indices; None if all do."""
        many = len(positions) - self._size
        if many <= 0:
            return positions, None
        fixed = positions < self._sinks
        for start, stop in self._pin:
            fixed |= (positions >= start) & (positions < stop)
        if self.padded and bool(fixed.any()):
            raise ConfigError(
                "AttendreCache: this model attends by itself and holds the same positions of all "
                "rows, but attention_mask hides padding, so the sinks and pins of a row are "
                "elsewhere. Use 'MT', or texts of one length without padding."
            )
        free = (~fixed).nonzero()[:, 0]
        if len(free) < many:
            raise ConfigError(
                f"AttendreCache: {int(fixed.sum())} entries are pinned or sinks, but the memory "
                f"holds {self._size}. Pin fewer, or enlarge the memory."
            )
        stays = torch.ones(len(positions), dtype=torch.bool)
        stays[free[:many]] = False
        kept = stays.nonzero()[:, 0]
        return positions[kept], kept

    @property
    def held(self) -> int:
        """How many of the tokens that arrived are held."""
        return len(self._positions)

    @property
    def query_offset(self) -> int:
        """The number of the first new token, counted as `get_mask_sizes` counts keys."""
        return self.held if self.inside else self.seen

    def get_seq_length(self) -> int:
        """Return how many tokens arrived, not how many are held."""
        return self.seen

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return how many keys the model will get, and the number that the first one has.

        It is counted back from the first new token, `query_offset`. Keys that are held have lower
        positions than that, or the same: the mask lets all queries see them.
        """
        count = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.held + count, self.query_offset - self.held

    def reset(self) -> None:
        """Forget everything."""
        super().reset()  # type: ignore[misc]
        self._forget()

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to remove tokens: what they evicted cannot come back."""
        if tokens_to_remove:
            raise no_way_back()

    def activate_past_recording(self) -> None:
        """Refuse: see `crop`."""
        raise no_way_back()


def no_way_back() -> ConfigError:
    """Return the error about tokens that should be taken back."""
    return ConfigError(
        "AttendreCache: tokens cannot be taken back, because what they evicted is gone. "
        "Assisted generation and prompt lookup need that: use another cache for them, or copy "
        "the cache (copy.deepcopy) before the tokens that may be taken back."
    )


_GROWING = ("DynamicLayer", "DynamicIndexedLayer", "LinearAttentionAndFullAttentionLayer")
#: Layer of transformers to the class that takes its place; older versions lack some.
HELD_LAYERS: dict[type, type] = {
    getattr(cache_utils, name): new_class(f"Held{name}", (Held, getattr(cache_utils, name)))
    for name in _GROWING
    if hasattr(cache_utils, name)
}
