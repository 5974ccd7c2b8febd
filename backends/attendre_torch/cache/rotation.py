"""Find out how a model rotates its keys, so that the rotation can be taken off again.

Keys reach a cache rotated by their positions. Beyond the length that a model was trained on they
have to be rotated otherwise (``positions="clamp"`` or ``"in-cache"``). How a model rotates is not
written down anywhere, so it is measured: a single token attends only to itself, so whatever its
position, every layer sees the same input, and its keys differ by the rotation alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from attendre_core.backend import Array, backend_of
from attendre_core.positions.rope import RoPE

__all__ = ["MeasuredRotation", "read_one_token", "rotations_of", "trained_length"]


@dataclass(frozen=True)
class MeasuredRotation(RoPE):
    """The rotation of one layer of a model.

    Parameters
    ----------
    each
        The angle per position, for each pair of features.
    skipped
        How many features come before the rotated ones.
    """

    each: tuple[float, ...] = ()
    skipped: int = 0

    def frequencies(self, head_dim: int) -> list[float]:
        """Return the angle per position, for each pair of features."""
        return list(self.each)

    def rotate(self, x: Array, position: Array) -> Array:
        """Rotate features by their positions."""
        if not self.skipped:
            return super().rotate(x, position)
        rotated = super().rotate(x[..., self.skipped :], position)
        return backend_of(x).xp.concat([x[..., : self.skipped], rotated], axis=-1)


def trained_length(config: Any) -> int | None:
    """Return how many positions a model was trained on; None if its configuration says nothing."""
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


_FOUND: WeakKeyDictionary[Any, dict[int, MeasuredRotation]] = WeakKeyDictionary()


def rotations_of(model: Any, make_cache: Any, length: int) -> dict[int, MeasuredRotation]:
    """Return the rotations of the layers whose keys are rotated by their positions.

    Parameters
    ----------
    model
        The model of transformers.
    make_cache
        Makes an empty `AttendreCache` for it that keeps keys as they arrive.
    length
        The positions to measure at are lower than this.
    """
    if model not in _FOUND:
        _FOUND[model] = _measured(model, make_cache, length)
    return _FOUND[model]


def _measured(model: Any, make_cache: Any, length: int) -> dict[int, MeasuredRotation]:
    tables = list(_frequencies_in(model))
    if not tables or "position_ids" not in signature(type(model).forward).parameters:
        return {}
    places = [0, min(7, length - 1), length - 1]
    keys = [_keys_at(model, make_cache(), place) for place in places]
    found = {}
    for number, plain in keys[0].items():
        for rotation in _candidates(tables, plain.shape[-1]):
            if all(
                _alike(rotation.rotate(plain, torch.full_like(plain[..., 0], place)), own[number])
                for place, own in zip(places[1:], keys[1:], strict=True)
            ):
                found[number] = rotation
                break
    return found


def read_one_token(model: Any, cache: Any, place: int | None = None) -> None:
    """Let a model read one token from the middle of its vocabulary, where no special ones are.

    Parameters
    ----------
    place
        Its position; None leaves it to the model.
    """
    embedding = model.get_input_embeddings()
    device = embedding.weight.device
    if device.type == "meta":  # accelerate fetches the weights of this module when it is called
        hook = getattr(embedding, "_hf_hook", None)
        device = getattr(hook, "execution_device", None) or device
    token = torch.full((1, 1), embedding.weight.shape[0] // 2, device=device)
    options = {} if place is None else {"position_ids": torch.full_like(token, place)}
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            model(input_ids=token, past_key_values=cache, use_cache=True, **options)
    finally:
        model.train(training)


def _keys_at(model: Any, cache: Any, place: int) -> dict[int, Tensor]:
    """Return the keys of one token at a position, (kv_heads, head_dim), by layer."""
    read_one_token(model, cache, place)
    return {
        number: layer.state.kv.key[0][:, layer.state.kv.valid[0], :][:, 0, :].float()
        for number, layer in cache.memories.items()
        if layer.state is not None
    }


def _frequencies_in(model: Any) -> Iterator[tuple[float, ...]]:
    """Yield every table of angles per position that a module of the model holds."""
    seen = set()
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and buffer.ndim == 1 and not buffer.is_meta:
            table = tuple(float(number) for number in buffer.tolist())
            if table not in seen:
                seen.add(table)
                yield table


def _candidates(tables: list[tuple[float, ...]], dim: int) -> Iterator[MeasuredRotation]:
    for each in tables:
        rotary = 2 * len(each)
        if rotary > dim:
            continue
        for skipped in sorted({0, dim - rotary}):
            for interleaved in (False, True):
                yield MeasuredRotation(interleaved=interleaved, each=each, skipped=skipped)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether keys are equal up to the rounding of half precision."""
    size = one.abs().amax()
    return bool(size > 0) and bool((one - other).abs().amax() <= 2e-2 * size)
