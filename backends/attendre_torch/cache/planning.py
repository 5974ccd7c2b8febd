"""Which kind of cache layer each layer of a model gets, or why it gets none."""

from __future__ import annotations

import sys
from inspect import signature
from typing import Any

import transformers
from packaging.version import Version
from transformers.cache_utils import DynamicCache, DynamicLayer

from attendre_core.errors import ConfigError
from attendre_core.presets import MemoryConfig, adapted, memory_for
from attendre_torch.cache.held import HELD_LAYERS, needs_no_queries
from attendre_torch.cache.layers import HybridMemoryLayer, MemoryLayer
from attendre_torch.cache.masking import makes_biases
from attendre_torch.cache.rotation import trained_length

__all__ = ["layers_of", "memory_of", "reads_in_chunks"]

#: Types that call our attention function only for a part of their attention, or compute more than
#: attention from the keys and values that a cache returns.
_ATTEND_BY_THEMSELVES = {"diffllama", "git", "inkling_text", "inkling2_text"}
#: Types that cannot be bounded, and why.
_REFUSED = {
    "blt": "it caches patches of bytes in three stacks that share one cache",
    "doge": "it computes its masks from the values of all tokens",
    "qwen4_exp": "it keeps the positions of all tokens to find those it attends to",
    "qwen4_exp_text": "it keeps the positions of all tokens to find those it attends to",
}

#: What models without ``past_key_values`` take in its place, and what follows.
_OTHER_STATES = {
    "cache_params": "its recurrent state (cache_params) is of fixed size anyway",
    "state": "its recurrent state (state) is of fixed size anyway",
    "mems": "it keeps hidden states (mems) in place of keys and values, as many as its own mem_len "
    "says",
    "past_buckets_states": "it keeps hidden states and their hashes (past_buckets_states) in place "
    "of keys and values",
    "cache": "generate gives it no cache: it reads the whole text again for every token",
}


def layers_of(model: Any, memory: MemoryConfig, trace: bool) -> list[Any]:
    """Return what takes the place of the layers of transformers' own cache."""
    name = type(model).__name__
    config = model.config.get_text_config(decoder=True)
    reason = _reason(model, config)
    if reason is not None:
        raise ConfigError(f"AttendreCache: {name} cannot be bounded: {reason}.")
    layers: list[Any] = []
    ours = attends_through_us(model, config)
    siblings = layers if getattr(config, "num_kv_shared_layers", None) else None
    crossing = getattr(config, "cross_attention_layers", None) or ()
    every = DynamicCache(config=model.config).layers
    fixed = [_is_fixed(own) or number in crossing for number, own in enumerate(every)]
    # What does not depend on M counts as a window.
    memory = adapted(memory, causal=True, trained=trained_length(config))
    memory = memory.for_layers([1 if one else None for one in fixed])
    for number, own in enumerate(every):
        kind = type(own)
        if fixed[number]:
            layers.append(own)
        elif ours and kind is DynamicLayer:
            layers.append(MemoryLayer(number, memory, trace, siblings))
        elif ours and kind.__name__ == "LinearAttentionAndFullAttentionLayer":
            layers.append(HybridMemoryLayer(number, memory, trace, own))
        else:
            layers.append(_held(model, number, own, memory))
    return layers


def _is_fixed(layer: Any) -> bool:
    """Whether a layer of transformers' own cache is of fixed size."""
    return type(layer).__module__ == "transformers.cache_utils" and (
        getattr(layer, "is_sliding", False) or not isinstance(layer, DynamicLayer)
    )


def _reason(model: Any, config: Any) -> str | None:
    """Return why no cache of ours can serve a model; None if one can."""
    parameters = signature(type(model).forward).parameters
    if config.model_type in _REFUSED:
        return _REFUSED[config.model_type]
    if getattr(config, "is_encoder_decoder", False) and "encoder_outputs" in parameters:
        return "it is an encoder-decoder; load it with attendre_core.load instead"
    if "past_key_values" not in parameters:
        found = (why for name, why in _OTHER_STATES.items() if name in parameters)
        return next(found, "it has no cache: it reads the whole text again for every token")
    supports = getattr(model, "_supports_default_dynamic_cache", None)
    if supports is not None and not supports():
        return "it works only with a cache class of its own"
    return None


def attends_through_us(model: Any, config: Any) -> bool:
    """Whether a model hands its queries to an attention function."""
    if config.model_type in _ATTEND_BY_THEMSELVES:
        return False
    inner = [x for x in model.modules() if getattr(x, "config", None) is config]
    return any(
        x._can_set_attn_implementation()
        for x in inner
        if hasattr(x, "_can_set_attn_implementation")
    )


def _held(model: Any, number: int, own: Any, memory: MemoryConfig) -> Any:
    """Return a layer for a model that attends by itself."""
    name = type(model).__name__
    if type(own) not in HELD_LAYERS:
        raise ConfigError(
            f"AttendreCache: {name} cannot be bounded: its layer {number} needs a "
            f"{type(own).__name__}, which holds more than keys and values and grows."
        )
    if not hasattr(sys.modules[type(model).__module__], "create_causal_mask"):
        raise ConfigError(
            f"AttendreCache: {name} cannot be bounded: it computes its attention and its masks "
            "inside its own layers, for a cache that holds all tokens."
        )
    if not needs_no_queries(memory):
        raise ConfigError(
            f"AttendreCache: {name} computes its attention inside its own layers, so nobody sees "
            f"its queries, which the policy of {memory.name} needs. Use 'MT' (first in, first "
            "out) or 'AS' (with attention sinks)."
        )
    if len(set(memory.layer_sizes)) > 1:
        raise ConfigError(
            f"AttendreCache: {name} attends by itself, with one mask for all layers, so they must "
            f"hold equally many entries, but layer_sizes is {memory.layer_sizes}. Leave it out."
        )
    held = HELD_LAYERS[type(own)]()
    held.__dict__.update(own.__dict__)
    return held.hold(number, memory, inside=makes_biases(model))


def reads_in_chunks(model: Any, layers: list[Any]) -> bool:
    """Whether ``generate`` can be told to read a prompt in chunks.

    Not all models continue recurrent states by chunks, and generate of transformers before 5.21
    reads again by chunks what a cache has read.
    """
    plain = all(
        type(x) is MemoryLayer or getattr(x, "is_sliding", False)
        for x in layers
        if type(x).__name__ != "DummyLayer"
    )
    plain = plain and any(type(x) is MemoryLayer for x in layers)  # windows need no chunks
    own = type(model).generate.__module__ != "transformers.generation.utils"
    continues = Version(transformers.__version__) >= Version("5.21")
    return plain and continues and not own


def memory_of(config: Any, memory: MemoryConfig | str | int) -> MemoryConfig:
    """Make the memories of a model from what a user gave."""
    sizes: dict[str, Any] = {"layers": 1, "kv_heads": 1, "head_dim": 1}
    if isinstance(memory, str) and memory.rstrip().lower().endswith("b"):  # a number of bytes
        heads = _largest(config, "num_attention_heads") or 1
        sizes = {
            "layers": config.num_hidden_layers,
            "kv_heads": _largest(config, "num_key_value_heads") or heads,
            "head_dim": _largest(config, "head_dim") or config.hidden_size // heads,
            "windows": [
                getattr(config, "sliding_window", None) if kind == "sliding_attention" else None
                for kind in getattr(config, "layer_types", None) or ()
            ],
        }
    dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    found = memory_for(memory, causal=True, dtype=dtype, **sizes)
    if found is None:
        raise ConfigError(
            "AttendreCache: memory is None, which is full attention. Use transformers' own cache "
            "for that, or say how many entries to hold, such as 'attendre-causal:1024'."
        )
    if found.host is not None:
        raise ConfigError(
            f"AttendreCache: in {found.name} entries go on to a store outside of the device, whose "
            "rows cannot be selected, repeated and copied, as transformers does with a cache. "
            "Load the model with attendre_core.load, or leave the store out."
        )
    if found.q_size:
        raise ConfigError(
            f"AttendreCache: in {found.name} queries wait for {found.q_size} later tokens, but a "
            "causal model cannot use them. Use 'attendre-causal', or q_size=0."
        )
    return found


def _largest(config: Any, name: str) -> int | None:
    """Return a size; the largest one if layers differ."""
    every = getattr(config, "per_layer_config", None)
    if every is None:
        return getattr(config, name, None)
    return max((getattr(one, name, None) or 0 for one in every), default=0) or None
