"""Set a model's attention implementation to ours, and back."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from attendre_core.errors import ConfigError
from attendre_torch.cache.held import Held
from attendre_torch.cache.interface import implementations_of, is_ours, stand_before

__all__ = ["attach", "check_attached", "detach", "innermost"]


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


def attach(model: Any, chunk: int | None, *, through_us: bool = True) -> bool:
    """Let a model attend through our functions; returns False if it did so before.

    Parameters
    ----------
    chunk
        How many tokens of a prompt ``generate`` reads at once, unless the model's generation
        config says it; None = all.
    through_us
        Whether our functions are needed; a model that attends by itself keeps its own.
    """
    config = getattr(model, "generation_config", None)
    own = getattr(config, "prefill_chunk_size", None)
    new = model not in _BEFORE
    if new:
        _BEFORE[model] = _Before(implementations_of(model.config), own, _biases_of_held(model))
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


def _biases_of_held(model: Any) -> list[Any]:
    """Let Bloom compute its bias for the keys that it gets, not for all that its mask covers.

    Returns the hooks that do this.
    """
    name = "build_alibi_tensor"

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        layers = getattr(kwargs.get("past_key_values"), "layers", None)
        if layers and isinstance(layers[0], Held):
            setattr(module, name, partial(_bias_of_held, getattr(module, name), layers[0]))

    def after(module: Any, *_: Any) -> None:
        vars(module).pop(name, None)

    parts = [part for part in model.modules() if hasattr(part, name)]
    return [part.register_forward_pre_hook(before, with_kwargs=True) for part in parts] + [
        part.register_forward_hook(after, always_call=True) for part in parts
    ]


def _bias_of_held(make: Any, layer: Held, mask: Any, *args: Any, **options: Any) -> Any:
    return make(mask[:, layer.forgotten :], *args, **options)


def check_attached(model: Any) -> None:
    """Raise if a model no longer attends through our functions."""
    if model is not None and not is_ours(model.config):
        raise ConfigError(
            f"AttendreCache: the attention implementation of {type(model).__name__} is now "
            f"{model.config._attn_implementation!r}, so the cache is not asked. Call "
            "cache.attach(model) before it is used again."
        )
