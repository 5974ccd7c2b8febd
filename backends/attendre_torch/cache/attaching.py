"""Set a model's attention implementation to ours, and back."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from attendre_core.errors import ConfigError
from attendre_torch.cache.interface import implementations_of, is_ours, stand_before
from attendre_torch.cache.masking import watch_masks

__all__ = ["attach", "check_attached", "check_watched", "detach", "innermost"]


class _Before(NamedTuple):
    """What a model had before it was attached."""

    implementations: dict[str, Any]
    prefill_chunk_size: int | None
    hooks: list[Any]


_BEFORE: WeakKeyDictionary[Any, _Before] = WeakKeyDictionary()


def innermost(model: Any) -> Any:
    """Return the model of transformers inside compiled models and adapters."""
    model = getattr(model, "_orig_mod", model)
    if hasattr(model, "get_base_model"):  # peft
        model = model.get_base_model()
    model = getattr(model, "_orig_mod", model)
    if not (hasattr(model, "set_attn_implementation") and hasattr(model, "config")):
        raise ConfigError(
            f"AttendreCache: model is a {type(model).__name__}, expected a causal LM of "
            "transformers, such as AutoModelForCausalLM.from_pretrained(...) returns."
        )
    return model


def attach(model: Any, chunk: int | None, *, through_us: bool, by_itself: bool) -> bool:
    """Let a model attend through our functions; returns False if it did so before.

    Parameters
    ----------
    chunk
        How many tokens of a prompt ``generate`` reads at once, unless the model's generation
        config says it; None = all.
    through_us
        Whether our functions are needed; a model that attends by itself keeps its own.
    by_itself
        Whether it attends by itself in layers that hold entries, so that its masks must be seen.
    """
    config = getattr(model, "generation_config", None)
    own = getattr(config, "prefill_chunk_size", None)
    new = model not in _BEFORE
    if new:
        hooks = watch_masks(model) if by_itself else []
        _BEFORE[model] = _Before(implementations_of(model.config), own, hooks)
        if through_us:
            before = _BEFORE[model].implementations
            model.set_attn_implementation({name: stand_before(x) for name, x in before.items()})
    if config is not None and own is None:
        config.prefill_chunk_size = chunk
    return new


def detach(model: Any) -> None:
    """Give a model back the attention implementation that it had."""
    before = _BEFORE.pop(model, None)
    if before is None:
        return
    for hook in before.hooks:
        hook.remove()
    if is_ours(model.config):
        model.set_attn_implementation(before.implementations)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.prefill_chunk_size = before.prefill_chunk_size


def check_watched(model: Any) -> None:
    """Raise if a model that attends by itself has no hook that sees its masks."""
    if model is not None and not (model in _BEFORE and _BEFORE[model].hooks):
        raise ConfigError(
            f"AttendreCache: {type(model).__name__} attends by itself, and the cache was detached, "
            "so nobody sees its masks. Call cache.attach(model) before it is used again."
        )


def check_attached(model: Any) -> None:
    """Raise if a model no longer attends through our functions."""
    if model is not None and not is_ours(model.config):
        raise ConfigError(
            f"AttendreCache: the attention implementation of {type(model).__name__} is now "
            f"{model.config._attn_implementation!r}, so the cache is not asked. Call "
            "cache.attach(model) before it is used again."
        )
