"""SmolLM2-135M in transformers over our memories, against our own run of the same system."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from attendre_core.presets import preset
from attendre_core.speed.recommended import CHUNK, SIZE
from attendre_core.speed.timing import Ratio, of_pairs, seconds
from attendre_core.speed.torch_models import smollm2
from attendre_torch import AttendreCache, from_transformers

__all__ = ["Caches"]


class Caches:
    """The same model and system, once through transformers and once through our own code.

    Parameters
    ----------
    length
        Number of tokens to read.
    model
        Another model, for tests.
    """

    def __init__(self, length: int, model: Any = None) -> None:
        self.theirs = smollm2() if model is None else model
        config = preset("attendre-causal", SIZE, chunk=CHUNK)
        self.stream = from_transformers(self.theirs, memory=config).stream()
        self.cache = AttendreCache(self.theirs, config)
        rng = np.random.default_rng(0)
        self.tokens = rng.integers(3, self.theirs.config.vocab_size, size=length).tolist()

    def prefill(self) -> tuple[Ratio, Ratio]:
        """Return the prefill with the cache ÷ our own run, and ÷ transformers' full attention."""
        pairs = []
        for i in range(0, len(self.tokens), CHUNK):
            chunk = self.tokens[i : i + CHUNK]
            cached = seconds(partial(self._read, [chunk], past_key_values=self.cache))
            pairs.append((cached, seconds(partial(self.stream.feed, chunk))))
        self.cache.detach()
        full = seconds(partial(self._read, [self.tokens]))
        return of_pairs(pairs[SIZE // CHUNK :]), of_pairs([(sum(p[0] for p in pairs), full)])

    def _read(self, tokens: Any, **options: Any) -> Any:
        return self.theirs(torch.tensor(tokens), logits_to_keep=1, **options)
