"""Compare a model of transformers under `AttendreCache` with the same model under its own cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from tiny_models import VOCABULARY, tiny_model, tokens
from torch import Tensor
from transformers import DynamicCache

import attendre_core as at
import attendre_torch
from attendre_core.errors import ConfigError

#: Largest difference of logits in float32, relative to the largest logit.
TOLERANCE = 1e-5
PROMPT, WRITTEN = 24, 8
#: Lengths of successive calls: the prompt at once or in chunks, then a token at a time.
SCHEDULES = ([PROMPT + 4], [PROMPT, 1, 1, 1, 1], [10, 10, 4, 1, 1, 1, 1])
#: A policy that looks at attention, and one that does not, for models that do not show theirs.
MEMORIES = ("attendre-causal+fixed", "AS")
#: Slots that hold everything, slots that do not, and how many tokens are read at once.
LARGE, SMALL, CHUNK = 64, 12, 8


class Outcome(NamedTuple):
    """What became of a model type.

    Attributes
    ----------
    status
        ``"exact"``, ``"refused"`` (by `ConfigError`), ``"cannot run"`` (transformers itself),
        ``"grows"``, ``"differs"`` or ``"fails"``.
    memory
        Name of the memory.
    worst
        Largest difference of logits, relative to the largest logit.
    held
        Bytes held after a short and after a long text through a small memory.
    change
        Largest difference that a small memory makes to the logits, relative likewise; zero means
        that nothing was forgotten.
    reason
        Why it was refused, cannot run, differs or fails.
    """

    status: str
    memory: str = ""
    worst: float = float("nan")
    held: tuple[int, int] = (0, 0)
    change: float = float("nan")
    reason: str = ""


def outcome_of(model_type: str) -> Outcome:
    """Run all checks on a tiny instance of a model type."""
    try:
        model = tiny_model(model_type)
        own = _own_run(model)
    except Exception as error:
        return Outcome("cannot run", reason=_told(error))
    found = Outcome("refused")
    for memory in MEMORIES:
        try:
            found = _compared(model, own, memory)
        except ConfigError as error:
            found = Outcome("refused", memory, reason=str(error))
        except Exception as error:
            found = Outcome("fails", memory, reason=_told(error))
        if found.status != "refused":
            break
    return found


class _Own(NamedTuple):
    """What transformers computes with its own cache."""

    logits: list[Any]
    written: Tensor
    padded: Tensor | None


def _own_run(model: Any) -> _Own:
    logits: list[Any] = []
    for schedule in SCHEDULES:
        try:
            logits.append(read(model, schedule, None))
        except Exception:
            if schedule is SCHEDULES[0]:
                raise
            logits.append(None)  # Its own code goes on only inside of `generate`.
    try:
        padded = write(model, None, padded=True)
    except Exception:
        padded = None
    written = write(model, None)
    try:
        given = write(model, DynamicCache(config=model.config))
    except Exception:
        given = written  # It cannot be given a cache at all.
    if not torch.equal(given, written):
        raise ValueError("given transformers' own DynamicCache, it writes other tokens")
    return _Own(logits, written, padded)


def _compared(model: Any, own: _Own, memory: str) -> Outcome:
    worst = 0.0
    for schedule, expected in zip(SCHEDULES, own.logits, strict=True):
        if expected is not None:
            with cache_of(model, memory, LARGE) as cache:
                logits = read(model, schedule, cache)
            worst = max(worst, difference(logits, expected))
    if not worst <= TOLERANCE:
        return Outcome("differs", memory, worst, reason="logits differ")
    with cache_of(model, memory, LARGE) as cache:
        if not torch.equal(write(model, cache), own.written):
            return Outcome("differs", memory, worst, reason="writes other tokens")
    if own.padded is not None:
        with cache_of(model, memory, LARGE) as cache:
            if not torch.equal(write(model, cache, padded=True), own.padded):
                return Outcome("differs", memory, worst, reason="writes other tokens after padding")
    with cache_of(model, memory, SMALL) as cache:
        last = max(i for i, expected in enumerate(own.logits) if expected is not None)
        change = difference(read(model, SCHEDULES[last], cache), own.logits[last])
    held = []
    for length in (2 * PROMPT, 3 * PROMPT):
        with cache_of(model, memory, SMALL) as cache:
            write(model, cache, length)
            held.append(cache.nbytes)
    status = "exact" if held[0] == held[1] else "grows"
    return Outcome(status, memory, worst, (held[0], held[1]), change)


class cache_of:  # noqa: N801
    """A cache for a ``with`` block, after which the model is as it was."""

    def __init__(self, model: Any, memory: str, size: int) -> None:
        config = replace(at.preset(f"{memory}:{size}"), chunk=CHUNK)
        self.cache = attendre_torch.AttendreCache(model, config)

    def __enter__(self) -> Any:
        return self.cache

    def __exit__(self, *error: object) -> None:
        self.cache.detach()


@torch.no_grad()
def read(model: Any, schedule: Sequence[int], cache: Any) -> Tensor:
    """Read a prompt in calls of these lengths; return the logits of all tokens.

    Without a cache of ours, it is the model's own.
    """
    ids = tokens(model, sum(schedule))
    if cache is None and len(schedule) == 1:
        return model(ids).logits  # type: ignore[no-any-return]
    logits, first = [], 0
    for length in schedule:
        given = {} if cache is None else {"past_key_values": cache}
        out = model(ids[:, first : first + length], use_cache=True, **given)
        if cache is None and "past_key_values" not in out:  # It uses one, but does not return it.
            return read(model, schedule, DynamicCache(config=model.config))
        logits.append(out.logits)
        first += length
        cache = cache if cache is not None else out.past_key_values
    return torch.cat(logits, dim=1)


@torch.no_grad()
def write(model: Any, cache: Any, length: int = PROMPT, padded: bool = False) -> Tensor:
    """Write greedily after a prompt, or after two, of which one is padded on the left."""
    ids = tokens(model, length)
    mask = torch.ones(1, length, dtype=torch.int64)
    codebooks = len(ids)
    if padded:
        ids = torch.cat([ids, tokens(model, length, seed=1)])
        mask = mask.repeat(2, 1)
        ids[codebooks:, :5] = mask[1:, :5] = 0
    given = {} if cache is None else {"past_key_values": cache}
    if codebooks > 1:  # Then `generate` has no defaults for these.
        names = ("decoder_start_token_id", "pad_token_id")
        given |= dict.fromkeys(names, VOCABULARY) | {"num_return_sequences": 1}
    result: Tensor = model.generate(
        ids, attention_mask=mask, max_new_tokens=WRITTEN, min_new_tokens=WRITTEN, use_cache=True,
        do_sample=False, **given,
    )  # fmt: skip
    return result


def difference(logits: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected value."""
    return float((logits - expected).abs().max() / expected.abs().max())


def _told(error: Exception) -> str:
    """Return the first sentence of an error."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text.partition('. ')[0]}"
