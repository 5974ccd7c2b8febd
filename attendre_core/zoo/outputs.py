"""Keep a share of the encoder's outputs while a decoder writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from attendre_core import checks
from attendre_core.backend import Array, backend_of, numbers
from attendre_core.errors import ConfigError
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.memory.encoder_output import cross_attention
from attendre_core.ops.counting import count_true
from attendre_core.ops.slots import gather_slots
from attendre_core.zoo.architectures.base import Cross
from attendre_core.zoo.blocks import ModelBlock

__all__ = ["KeepOutputs"]


@dataclass(frozen=True)
class KeepOutputs:
    """Drop the outputs of the encoder that one decoder layer attends to least, once.

    Attributes
    ----------
    share, layer, after
        As in `Stream.keep_encoder_outputs`.
    """

    share: float
    layer: int = -1
    after: int = 1

    def __post_init__(self) -> None:
        where = "keep_encoder_outputs"
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"{where}: share is {self.share}, expected more than 0 and at most 1, such as 0.3."
            )
        checks.whole_number(where, "after", self.after, least=1, hint="It counts tokens.")

    def kept(
        self,
        layers: Sequence[AttendreLayer],
        states: Sequence[Any],
        blocks: Sequence[ModelBlock],
        x: Array,
        at: Array,
        real: Array,
    ) -> tuple[ModelBlock, ...]:
        """Return blocks that attend across to the share that the last token attends to most.

        Parameters
        ----------
        layers, states, blocks
            The decoder, after it has read the token.
        x, at, real
            (batch, 1, dim), (batch, 1) and (batch, 1): the token, its position, and which rows
            have one.
        """
        weights = self.weights(layers, states, blocks, x, at, real)
        key, _, valid = cast(Cross, blocks[0].cross)
        xp = backend_of(key).xp
        # How many a row keeps depends on how many it has; the arrays are as long as the longest.
        held = count_true(valid, axis=1)
        many = xp.astype(xp.ceil(xp.astype(held, weights.dtype) * self.share), held.dtype)
        count = math.ceil(valid.shape[1] * self.share)
        order = xp.argsort(xp.where(valid, -weights, 1.0), axis=1)[:, :count]
        stays = numbers(count, held) < many[:, None]
        # In the order of the input again.
        place = xp.argsort(xp.where(stays, order, valid.shape[1]), axis=1)
        order, stays = (xp.take_along_axis(array, place, axis=1) for array in (order, stays))

        def cut(block: ModelBlock) -> ModelBlock:
            if block.cross is None:
                return block
            key, value, _ = block.cross
            own = (gather_slots(array, order, axis=1) for array in (key, value))
            return replace(block, cross=(*own, stays))

        return tuple(cut(block) for block in blocks)

    def weights(
        self,
        layers: Sequence[AttendreLayer],
        states: Sequence[Any],
        blocks: Sequence[ModelBlock],
        x: Array,
        at: Array,
        real: Array,
    ) -> Array:
        """Return how much the token attends to each output, (batch, slots): the mean over heads."""
        if not -len(blocks) <= self.layer < len(blocks):
            raise ConfigError(
                f"keep_encoder_outputs: layer is {self.layer}, but the decoder has {len(blocks)} "
                "layers, numbered from 0."
            )
        last = self.layer % len(blocks)
        for layer, state, block in zip(layers[: last + 1], states, blocks, strict=False):
            query, _, _ = block.project(x, at)
            # The token itself is in the memory.
            _, attended = layer.probe(
                state, query, position=at, valid=real, encoding_params=block.encoding_params
            )
            if block is blocks[last]:
                break
            x = block.finish(attended, x)
        across = block.part.cross_query(block.params, attended, x)
        scale = block.part.scale
        _, weights = cross_attention(across, *(block.cross or ()), scale=scale, weights=True)
        return backend_of(weights).xp.mean(weights[:, 0, ...], axis=1)
