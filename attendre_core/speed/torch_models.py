"""SmolLM2-135M in a memory of 1,024 entries, against transformers with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from attendre_core.presets import preset
from attendre_core.speed.recommended import CHUNK, SIZE, package_of, smollm2_file
from attendre_core.speed.timing import Ratio, of_pairs, ratio, seconds
from attendre_torch import from_transformers

__all__ = ["Models", "smollm2"]

LENGTH = 16 * 1024


def smollm2() -> Any:
    """Load SmolLM2-135M-Instruct from its package, in float32.

    Reading the file needs accelerate.
    """
    package_of("accelerate")
    file = smollm2_file()
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model.eval()


class Models:
    """SmolLM2-135M in transformers and in this project, and the measurements of rows 8 and 9.

    Parameters
    ----------
    quick
        Read 2,048 tokens instead of 16,384, and extrapolate the time of full attention for 16,384
        tokens from 1,024 and 3,072.
    model, length
        Another model and another number of tokens, for tests.
    """

    def __init__(self, quick: bool, model: Any = None, length: int | None = None) -> None:
        self.quick = quick
        self.theirs = smollm2() if model is None else model
        config = preset("attendre-causal", SIZE, chunk=CHUNK)
        self.ours = from_transformers(self.theirs, memory=config)
        self.length = length or (2 * SIZE if quick else LENGTH)
        rng = np.random.default_rng(0)
        self.tokens = rng.integers(3, self.theirs.config.vocab_size, size=self.length).tolist()
        self.stream = self.ours.stream()

    def prefill(self) -> tuple[Ratio, Ratio]:
        """Return our prefill ÷ full attention, and ÷ a cache cropped to the memory's size.

        Our chunks alternate with those of the cropped cache.
        """
        cropped, each, pairs = _Cropped(self.theirs), [], []
        chunks = [self.tokens[i : i + CHUNK] for i in range(0, self.length, CHUNK)]
        for number, chunk in enumerate(chunks):
            ours = seconds(partial(self.stream.feed, chunk))
            each.append(ours)
            if number < 2 * SIZE // CHUNK or number % 4 == 0:
                limit = seconds(partial(cropped, chunk))
                if number >= SIZE // CHUNK:
                    pairs.append((ours, limit))
        if self.quick:
            theirs = self._extrapolated() * CHUNK / LENGTH
            full = of_pairs([(ours, theirs) for ours in each[SIZE // CHUNK :]])
        else:
            whole = torch.tensor([self.tokens])
            theirs = seconds(lambda: self.theirs(whole, logits_to_keep=1))
            full = of_pairs([(sum(each), theirs)])
        return full, of_pairs(pairs)

    def decoding(self, repeats: int) -> Ratio:
        """Return their time per token over ours, after 16,384 tokens; `prefill` must have run."""
        return ratio(self._decoding_after(self._cache(LENGTH)), self._writing(), repeats=repeats)

    def decoding_compressed(self, repeats: int) -> Ratio:
        """Return the time per token of kvpress with as many entries kept, over ours."""
        press = import_module("kvpress").KnormPress(compression_ratio=0.5)
        cache = DynamicCache()
        prompt = torch.tensor([self.tokens[: 2 * SIZE]])
        # Newer versions of transformers no longer pass the positions that kvpress needs.
        place = torch.arange(prompt.shape[1])
        with press(self.theirs):
            self.theirs.model(prompt, past_key_values=cache, cache_position=place)
        return ratio(self._decoding_after(cache), self._writing(), repeats=repeats)

    def _writing(self) -> Callable[[], Any]:
        writer, _ = self.stream.writer(256)
        token, real = np.asarray([5]), np.asarray([True])
        return lambda: writer.write(token, real)

    def _decoding_after(self, cache: Any) -> Callable[[], Any]:
        held = cache.get_seq_length()
        token = torch.tensor([[5]])

        def generate() -> Any:
            for layer in cache.layers:  # drop the token of the previous run
                layer.keys, layer.values = layer.keys[:, :, :held], layer.values[:, :, :held]
            return self.theirs(token, past_key_values=cache, use_cache=True).logits

        return generate

    def _extrapolated(self) -> float:
        """Extrapolate their time to 16,384 tokens, with a linear and a quadratic term."""
        short, long = SIZE, 3 * SIZE
        took = []
        for length in (short, long):
            tokens = torch.tensor([(self.tokens * 2)[:length]])
            took.append(seconds(partial(self.theirs, tokens, logits_to_keep=1)) / length)
        slope = (took[1] - took[0]) / (long - short)
        return LENGTH * (took[0] + slope * (LENGTH - short))

    def _cache(self, length: int) -> Any:
        """Make a cache of ``length`` random tokens; its values do not affect the time."""
        config = self.theirs.config
        width = config.hidden_size // config.num_attention_heads
        shape = (1, config.num_key_value_heads, length, width)
        cache = DynamicCache()
        for layer in range(config.num_hidden_layers):
            cache.update(torch.randn(shape), torch.randn(shape), layer)
        return cache


class _Cropped:
    """The same model with its cache cropped to the last entries before every chunk."""

    def __init__(self, model: Any) -> None:
        self.model, self.cache, self.read = model, DynamicCache(), 0

    def __call__(self, tokens: list[int]) -> Any:
        for layer in self.cache.layers:
            if layer.keys is not None and layer.keys.shape[2] > SIZE - CHUNK:
                layer.keys = layer.keys[:, :, -(SIZE - CHUNK) :]
                layer.values = layer.values[:, :, -(SIZE - CHUNK) :]
        place = torch.arange(self.read, self.read + len(tokens))[None]
        self.read += len(tokens)
        return self.model(
            torch.tensor([tokens]), past_key_values=self.cache, position_ids=place,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
