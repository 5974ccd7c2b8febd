"""Embeddings of long documents: our memory, full attention, and pieces that overlap by half."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

from attendre_core.evaluation.controls import system
from attendre_core.evaluation.piecewise import vectors_of
from attendre_core.speed.timing import Ratio, of_pairs, seconds
from attendre_torch import from_transformers

__all__ = ["SIZE", "Encoders"]

#: M, and the tokens of a piece; queries wait for half of it.
SIZE = 512


class Encoders:
    """A BERT of the sizes of MiniLM, with random weights and positions enough.

    Parameters
    ----------
    longest
        Tokens of the longest document.
    config
        Sizes of another model, for tests.
    """

    def __init__(self, longest: int, **config: int) -> None:
        sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
                 "intermediate_size": 1536, **config}  # fmt: skip
        torch.manual_seed(0)
        told: Any = BertConfig(max_position_embeddings=longest, attn_implementation="sdpa", **sizes)
        self.theirs = BertModel(told, add_pooling_layer=False).eval()
        self.ours = from_transformers(self.theirs, memory=f"attendre+wait={SIZE // 2}:{SIZE}")
        rng = np.random.default_rng(0)
        self.tokens = rng.integers(1000, told.vocab_size, size=longest).tolist()

    def against_full(self, length: int, repeats: int) -> Ratio:
        """Return our time ÷ that of full attention, of transformers with its fused attention."""
        tokens = torch.tensor([self.tokens[:length]])

        def full() -> Any:
            return self.theirs(tokens).last_hidden_state.mean(dim=1)

        return self._ratio(length, full, repeats)

    def against_pieces(self, length: int, repeats: int) -> Ratio:
        """Return our time ÷ that of pieces that overlap by half, read eight at a time."""
        overlapping = system("overlapping-pieces", SIZE)
        row = self.tokens[:length]
        around: tuple[list[int], list[int]] = ([], [])

        def pieces() -> Any:
            return list(vectors_of(self.ours, [row], around, overlapping, SIZE, 8))

        return self._ratio(length, pieces, repeats)

    def _ratio(self, length: int, other: Any, repeats: int) -> Ratio:
        ours = partial(self.ours.embed, self.tokens[:length], "mean")
        self.ours.embed(self.tokens[: 2 * SIZE], "mean")
        return of_pairs([(seconds(ours), seconds(other)) for _ in range(repeats)])
