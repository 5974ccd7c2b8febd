"""`Model.generate` called as transformers' ``generate`` is: its keywords, its arrays."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attendre_core.backend import Array
from attendre_core.errors import ConfigError, ShapeError
from attendre_core.zoo.architectures.base import EncoderDecoder
from attendre_core.zoo.generate import generate, written
from attendre_core.zoo.generation_config import (
    NEUTRAL,
    Wishes,
    end_tokens,
    new_tokens,
    wishes_of,
)
from attendre_core.zoo.input_kind import InputKind
from attendre_core.zoo.tokens import is_single, is_text

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["NEW_TOKENS", "Settings", "generate_as_transformers", "settings_of"]

_WHERE = "Model.generate"
#: How many tokens are generated for a prompt if nothing is said.
NEW_TOKENS = 32
#: Our names of settings that transformers has, too.
_OURS = {"beams": "num_beams", "stop": "stop_strings"}
#: Keywords that mean the same here.
_KNOWN = (
    "bad_words_ids", "do_sample", "eos_token_id", "length_penalty", "max_length", "max_new_tokens",
    "num_beams", "pad_token_id", "stop_strings", "temperature", "top_k", "top_p",
)  # fmt: skip
#: Keywords that change nothing here, or only with a value other than these.
_IGNORED: dict[str, tuple[Any, ...]] = {
    "bos_token_id": (), "cache_implementation": (), "output_attentions": (False,),
    "output_hidden_states": (False,), "output_logits": (False,), "output_scores": (False,),
    "return_dict_in_generate": (False,), "renormalize_logits": (False, True),
    "remove_invalid_values": (False, True), "synced_gpus": (False,), "use_cache": (True, False),
}  # fmt: skip
#: What to use instead of keywords that have no counterpart here.
_INSTEAD = {
    "streamer": "on_token=function, which is called with row, token and piece of text",
    "generation_config": "its settings as keywords, or attendre_torch.from_transformers",
    "past_key_values": "model.stream(), which keeps what was read",
    "inputs_embeds": "input_ids",
    "stopping_criteria": "stop=[...] or eos_token_id",
    "return_dict_in_generate": "the array that is returned, or model.logits for scores",
    "num_return_sequences": "several calls with different seeds",
    "seed": "seed=",
}


class Settings(NamedTuple):
    """Keywords of transformers, as `generate` takes them.

    Attributes
    ----------
    limit
        Maximum number of new tokens.
    wishes
        How tokens are chosen.
    end, pad
        Token ids that end a row, and the one that fills it up.
    """

    limit: int
    wishes: Wishes
    end: tuple[int, ...]
    pad: int


def settings_of(model: Model, given: dict[str, Any], read: int) -> Settings:
    """Translate keywords; what has no counterpart is refused by name.

    Parameters
    ----------
    given
        Keywords of transformers or of `Model.generate`.
    read
        Tokens that ``max_length`` includes before the first new one.
    """
    given = {_OURS.get(name, name): v for name, v in given.items() if v is not None}
    for name, value in given.items():
        _refuse(name, value, given)
    config = getattr(model, "generation_config", None)
    if "temperature" in given and "do_sample" not in given:
        given["do_sample"] = given["temperature"] > 0
    elif given.get("do_sample") and given.get("temperature") == 0:
        given["do_sample"] = False
    if given.get("num_beams", 1) > 1:
        given.setdefault("do_sample", False)
    merged = SimpleNamespace(**{
        name: given.get(name, getattr(config, name, None)) for name in (*_KNOWN, *NEUTRAL)
    })  # fmt: skip
    never = model.architecture.never if isinstance(model.architecture, EncoderDecoder) else ()
    end = end_tokens(merged) if "eos_token_id" in given else model.end
    end = tuple(token for token in end if token >= 0)
    pad = merged.pad_token_id if merged.pad_token_id is not None else (*end, 0)[0]
    if not isinstance(pad, int) or isinstance(pad, bool):
        raise ConfigError(f"{_WHERE}: pad_token_id is {pad!r}, expected a token id.")
    return Settings(new_tokens(merged, lambda: read), wishes_of(merged, never), end, pad)


def generate_as_transformers(
    model: Model,
    prompt: Any,
    input_ids: Any,
    attention_mask: Any,
    given: dict[str, Any],
    *,
    seed: int = 0,
    on_token: Any = None,
) -> Any:
    """Generate with keywords of transformers, for its arrays or for a prompt of ours.

    Parameters
    ----------
    prompt, input_ids, attention_mask, seed, on_token
        As in `Model.generate`.
    given
        Keywords as in `settings_of`.
    """
    if (prompt is None) == (input_ids is None):
        both = "both a prompt and" if prompt is not None else "neither a prompt nor"
        raise ConfigError(f"{_WHERE}: {both} input_ids, expected one of them.")
    if input_ids is not None:
        return _arrays(model, input_ids, attention_mask, given, seed, on_token)
    if attention_mask is not None:
        raise ConfigError(
            f"{_WHERE}: attention_mask without input_ids. Rows of a prompt need no padding."
        )
    rows = model._rows("generate", prompt)
    read = 1 if isinstance(model.architecture, EncoderDecoder) else max(map(len, rows))
    if not hasattr(model, "generation_config") and given.get("max_length") is None:
        given = {**given, "max_new_tokens": given.get("max_new_tokens") or NEW_TOKENS}
    settings = settings_of(model, given, read)
    model = _ending(model, settings)
    options = {**settings.wishes._asdict(), "seed": seed, "on_token": on_token}
    new = generate(model, model._read(rows).writer, settings.limit, **options)
    return InputKind(is_text(prompt), is_single(prompt)).answer(model, new, settings.wishes.stop)


def _ending(model: Model, settings: Settings) -> Model:
    """Return the model, with other end tokens if they are asked for."""
    if settings.end != model.end:
        model = copy.copy(model)
        model.end = settings.end
    return model


def _arrays(
    model: Model,
    input_ids: Any,
    attention_mask: Any,
    given: dict[str, Any],
    seed: int,
    on_token: Any,
) -> Array:
    """Continue padded rows and return what transformers returns.

    Parameters
    ----------
    input_ids, attention_mask
        (batch, length), of any library: token ids, padded on either side, and 1 for real ones.

    Returns
    -------
    array
        Integers of the model's library, (batch, longest row): the input and what was generated,
        with the token that ended it, filled up with ``pad_token_id``. An encoder-decoder returns
        its start token instead of the input.
    """
    ids = _table("input_ids", input_ids)
    architecture = model.architecture
    first = ids
    if isinstance(architecture, EncoderDecoder):
        first = np.full((len(ids), 1), architecture.start)
    settings = settings_of(model, given, first.shape[1])
    real = _real(ids, attention_mask, given, settings)
    rows = [row[flags].tolist() for row, flags in zip(ids, real, strict=True)]
    model = _ending(model, settings)
    new = _new_tokens(model, rows, settings, seed, on_token)
    table = np.full((len(ids), max(map(len, new))), settings.pad, dtype=np.int64)
    for number, row in enumerate(new):
        table[number, : len(row)] = row
    table = np.concatenate([first, table], axis=1)
    xp = model.backend.xp
    return xp.astype(model.array(table.astype(np.int32)), _integers(xp))


def _new_tokens(
    model: Model, rows: list[list[int]], settings: Settings, seed: int, on_token: Any
) -> list[list[int]]:
    """Return the new tokens of each row, with the one that ended it."""
    reading = model._read(model._rows("generate", rows))
    options = settings.wishes._asdict()
    if options["beams"] > 1:
        new = generate(model, reading.writer, settings.limit, **options, seed=seed)
        ended = settings.end[:1]
        return [[*row, *ended] if len(row) < settings.limit else row for row in new]
    del options["beams"], options["length_penalty"]
    found: list[list[int]] = [[] for _ in rows]
    for row, token, piece, end in written(
        model, reading.writer, settings.limit, **options, seed=seed, text=on_token is not None
    ):
        found[row].append(token)
        if on_token is not None and (piece or not end):
            on_token(row, token, piece)
    return found


def _refuse(name: str, value: Any, given: dict[str, Any]) -> None:
    neutral = (*NEUTRAL.get(name, ()), *_IGNORED.get(name, ()))
    if name in _KNOWN or any(value is n or value == n for n in neutral):
        return
    if name in _IGNORED and not _IGNORED[name]:
        return
    if name == "token_type_ids" and not np.asarray(_plain(value)).any():
        return
    if name == "tokenizer" and "stop_strings" in given:
        return
    known = name in NEUTRAL or name in _IGNORED or name in _INSTEAD
    instead = f" Use {_INSTEAD[name]}." if name in _INSTEAD else " Leave it out."
    shown = repr(value) if isinstance(value, (bool, int, float, str, list)) else "given"
    raise ConfigError(
        f"{_WHERE}: {name} is {shown}, "
        f"{'which attendre-core cannot do' if known else 'an unknown keyword'}.{instead}"
    )


def _plain(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values


def _table(name: str, values: Any) -> Any:
    try:
        found = np.asarray(_plain(values))
    except ValueError as error:
        raise ShapeError(
            f"{_WHERE}: {name} has rows of different lengths, expected (batch, length). Let the "
            "tokenizer pad them, or pass the rows without a keyword."
        ) from error
    if found.ndim != 2 or found.dtype.kind not in "iub" or not found.size:
        raise ShapeError(
            f"{_WHERE}: {name} has shape {found.shape} and dtype {found.dtype}, expected whole "
            "numbers, (batch, length)."
        )
    return found.astype(np.int64)


def _real(ids: Any, attention_mask: Any, given: dict[str, Any], settings: Settings) -> Any:
    """Return which tokens are real; without a mask, padding is recognised as transformers does."""
    if attention_mask is None:
        pad = given.get("pad_token_id")
        every = np.ones(ids.shape, dtype=bool)
        return every if pad is None or pad in settings.end else ids != pad
    mask = _table("attention_mask", attention_mask)
    if mask.shape != ids.shape:
        raise ShapeError(
            f"{_WHERE}: attention_mask has shape {mask.shape}, expected that of input_ids, "
            f"{ids.shape}."
        )
    return mask != 0


def _integers(xp: Any) -> Any:
    """Return the dtype of token ids: int64, or the library's own where it has none."""
    info = xp.__array_namespace_info__()
    return info.default_dtypes()["integral"]
