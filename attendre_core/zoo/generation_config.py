"""Translate a GenerationConfig of transformers to the arguments of `Model.generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from attendre_core.errors import ConfigError

__all__ = ["NEUTRAL", "Wishes", "end_tokens", "new_tokens", "wishes_of"]

#: Defaults of transformers.
_NEW_TOKENS, _TOP_K = 20, 50
#: Settings that change the output and that `Model.generate` does not support, with the values,
#: besides None, that have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "assistant_early_exit": (),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0.0,),
    "dola_layers": (),
    "early_stopping": (False,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "guidance_scale": (1.0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "min_p": (0.0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0.0,),
    "repetition_penalty": (1.0,),
    "sequence_bias": ({}, []),
    "suppress_tokens": ([],),
    "top_h": (),
    "typical_p": (1.0,),
    "watermarking_config": (),
}
#: Settings that matter only when sampling, or only with beam search.
_SAMPLING = ("epsilon_cutoff", "eta_cutoff", "min_p", "top_h", "typical_p")
_BEAMS = ("diversity_penalty", "early_stopping", "num_beam_groups")


class Wishes(NamedTuple):
    """How a model should generate; fields as in `Model.generate`."""

    temperature: float
    top_p: float
    top_k: int | None
    beams: int
    length_penalty: float
    stop: tuple[str, ...]


def end_tokens(config: Any) -> tuple[int, ...]:
    """Return the token ids that end a text.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> end_tokens(SimpleNamespace(eos_token_id=2)), end_tokens(SimpleNamespace(eos_token_id=None))
    ((2,), ())
    """
    ids = _value(config, "eos_token_id", [])
    return (ids,) if isinstance(ids, int) else tuple(int(i) for i in ids)


def new_tokens(config: Any, read: Callable[[], int]) -> int:
    """Return how many tokens to generate.

    Parameters
    ----------
    read
        Returns how many existing tokens ``max_length`` includes: those of the prompt, or the start
        token of an encoder-decoder.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> new_tokens(SimpleNamespace(max_length=50), lambda: 42), new_tokens(None, lambda: 42)
    (8, 20)
    """
    limit = _value(config, "max_new_tokens", None)
    if limit is not None:
        return int(limit)
    total = _value(config, "max_length", None)
    if total is None:
        return _NEW_TOKENS
    if total <= read():
        raise ConfigError(
            f"generate: texts end at max_length = {total} tokens, and {read()} are there already. "
            "Pass max_new_tokens, or set it in the model's GenerationConfig."
        )
    return int(total) - read()


def wishes_of(config: Any, never: tuple[int, ...] = ()) -> Wishes:
    """Read a GenerationConfig; None = all defaults.

    Parameters
    ----------
    never
        Tokens that the architecture never generates, whatever the configuration says.

    Raises
    ------
    ConfigError
        If it sets something that `Model.generate` does not support; nothing is ignored silently.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> wishes_of(SimpleNamespace(do_sample=True, top_p=0.9)).top_p
    0.9
    """
    sampling = bool(_value(config, "do_sample", False))
    beams = int(_value(config, "num_beams", 1))
    _refuse_unknown(config, sampling, beams, never)
    top_k = int(_value(config, "top_k", _TOP_K))
    stop = _value(config, "stop_strings", ())
    return Wishes(
        temperature=float(_value(config, "temperature", 1.0)) if sampling else 0.0,
        top_p=float(_value(config, "top_p", 1.0)) if sampling else 1.0,
        top_k=top_k if sampling and top_k > 0 else None,
        beams=beams,
        length_penalty=float(_value(config, "length_penalty", 1.0)),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


def _value(config: Any, name: str, default: Any) -> Any:
    found = getattr(config, name, None)
    return default if found is None else found


def _refuse_unknown(config: Any, sampling: bool, beams: int, never: tuple[int, ...]) -> None:
    for name, neutral in NEUTRAL.items():
        value = getattr(config, name, None)
        if value is None or value in neutral:
            continue
        if (name in _SAMPLING and not sampling) or (name in _BEAMS and beams == 1):
            continue
        raise _refusal(name, value)
    words = _value(config, "bad_words_ids", [])
    if not all(len(word) == 1 and word[0] in never for word in words):
        raise _refusal("bad_words_ids", words)


def _refusal(name: str, value: Any) -> ConfigError:
    return ConfigError(
        f"generate: the model's GenerationConfig sets {name} to {value!r}, which attendre-core "
        f"cannot do. To go on without it, set model.generation_config.{name} = None."
    )
