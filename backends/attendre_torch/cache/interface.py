"""How a model of transformers is led to the memories: its attention and mask functions.

Two functions are registered through transformers' public interfaces, one pair for each
implementation that they stand in front of. The cache layer whose ``update`` was called last says
what to do: if it holds a memory, the memory attends; everything else (layers with a window, vision
towers, calls without our cache) goes to the implementation that the model had before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    AttentionMaskInterface,
    causal_mask_function,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from attendre_core.errors import ConfigError

if TYPE_CHECKING:
    from attendre_torch.cache.layers import MemoryLayer

__all__ = ["ASKED", "UPDATED", "Asked", "Seen", "implementations_of", "is_ours", "stand_before"]


@dataclass(frozen=True)
class Seen:
    """What a causal mask says that positions do not: ``valid``, boolean (batch, seq); None = all.

    It takes the place of the mask on its way through the model.
    """

    valid: Tensor | None

    def __getitem__(self, index: Any) -> Seen:
        """Return itself where a model takes queries out of a mask."""
        return self


class Asked(NamedTuple):
    """The layer whose mask is being made, and the sizes that it gave."""

    layer: MemoryLayer
    query_length: int
    key_length: int


#: Set by ``get_mask_sizes``, which transformers calls right before the mask function.
ASKED: ContextVar[Asked | None] = ContextVar("attendre_asked", default=None)
#: Set by ``update``, which a model calls right before the attention function.
UPDATED: ContextVar[MemoryLayer | None] = ContextVar("attendre_updated", default=None)

#: Implementation to the name of ours that stands before it. "flash" must not be part of a name,
#: because transformers looks for that word.
_NAMES: dict[str, str] = {}


def stand_before(original: str) -> str:
    """Return the name of our implementation that falls back to another one."""
    if original in _NAMES.values():
        return original
    if original not in _NAMES:
        name = "attendre" if original == "sdpa" else f"attendre_{len(_NAMES) + 1}"
        AttentionInterface.register(name, _attention_before(original))
        AttentionMaskInterface.register(name, _mask_before(original))
        _NAMES[original] = name
    return _NAMES[original]


def implementations_of(config: Any) -> dict[str, Any]:
    """Return the attention implementations of a configuration and of those inside it."""
    every = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    named = {"": config, **every}
    found = {name: getattr(x, "_attn_implementation", None) for name, x in named.items()}
    return {name: own for name, own in found.items() if own is not None}


def is_ours(config: Any) -> bool:
    """Whether a configuration names one of our implementations, itself or inside."""
    return any(name in _NAMES.values() for name in implementations_of(config).values())


def _attention_before(original: str) -> Callable[..., Any]:
    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        dropout: float = 0.0,  # some pass it by place
        **options: Any,
    ) -> Any:
        options["dropout"] = dropout
        layer = UPDATED.get()
        layer = None if layer is None else layer.source_of(key)
        if layer is not None:
            return layer.attend(module, query, key, value, attention_mask, **options), None
        if isinstance(attention_mask, Seen):
            raise ConfigError(
                f"AttendreCache: {type(module).__name__} was not given the cache that its model "
                "has. Activation (gradient) checkpointing takes it away: turn that off."
            )
        return _original_attention(original, module)(
            module, query, key, value, attention_mask, **options
        )

    return attention


def _original_attention(name: str, module: Any) -> Any:
    if name in ALL_ATTENTION_FUNCTIONS:
        return ALL_ATTENTION_FUNCTIONS[name]
    # Plain attention is a function of the file that defines the model.
    for kind in type(module).__mro__:
        found = getattr(sys.modules[kind.__module__], "eager_attention_forward", None)
        if found is not None:
            return found
    raise ConfigError(
        f"AttendreCache: {type(module).__name__} has no plain attention of its own. Load the "
        "model with attn_implementation='sdpa'."
    )


def _mask_before(original: str) -> Callable[..., Any]:
    def mask(
        *args: Any,
        q_length: int | None = None,
        kv_length: int = 0,
        attention_mask: Tensor | None = None,
        mask_function: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        asked = ASKED.get()
        ASKED.set(None)
        # Before transformers 5.3, which kvpress needs, there was a cache_position in its place.
        name, given = original, {} if q_length is None else {"q_length": q_length}
        count = options["cache_position"].shape[0] if q_length is None else q_length
        if asked is not None and asked[1:] == (count, kv_length):
            if mask_function is causal_mask_function:
                return Seen(asked.layer.present(attention_mask, count))
            name, options = "sdpa", {**options, "allow_is_causal_skip": False}
        return ALL_MASK_ATTENTION_FUNCTIONS[name](
            *args, **given, kv_length=kv_length, attention_mask=attention_mask,
            mask_function=mask_function, **options,
        )  # fmt: skip

    return mask
