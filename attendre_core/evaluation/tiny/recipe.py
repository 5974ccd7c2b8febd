"""The configurations of the tiny models, and the recipe of their training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.synthetic_words import PADDING, VOCABULARY
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.architectures.base import Architecture
from attendre_core.zoo.config import RawConfig

__all__ = ["CONFIGS", "MODELS", "TRAINED_LENGTH", "Recipe", "architecture"]

#: Longest input in training.
TRAINED_LENGTH = 128

#: ``config.json`` of each model, as Hugging Face writes it.
CONFIGS: dict[str, dict[str, Any]] = {
    "prefix-lm": {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": TRAINED_LENGTH,
        "hidden_act": "relu",
        "gated_mlp": False,
        "tie_word_embeddings": False,
    },
    "encoder-decoder": {
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_decoder_layers": 1,
        "num_heads": 4,
        "vocab_size": VOCABULARY,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": TRAINED_LENGTH,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": False,
        "decoder_start_token_id": PADDING,
        "pad_token_id": PADDING,
    },
}
#: Names of the models.
MODELS = tuple(CONFIGS)


def architecture(name: str) -> Architecture:
    """Return the architecture of a tiny model.

    Examples
    --------
    >>> architecture("encoder-decoder").kind
    'encoder-decoder'
    """
    if name not in MODELS:
        raise ConfigError(f"tiny model: {name!r} is not known; known are {', '.join(MODELS)}.")
    return architecture_of(RawConfig(CONFIGS[name], f"{name}/config.json"))


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a training run.

    Attributes
    ----------
    steps, rate, warmup, decay
        AdamW: number of steps, peak learning rate, steps until it is reached, weight decay.
    tokens
        Tokens per step: rows times length, at most.
    growth
        Share of the steps after which inputs of the full length occur.
    fade
        Share of the steps after which the auxiliary heads have no weight. They are essential:
        without them, training stays at chance level for very long.
    """

    steps: int = 3600
    rate: float = 3e-3
    warmup: int = 100
    decay: float = 0.01
    tokens: int = 2048
    growth: float = 0.4
    fade: float = 0.8

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step: a linear rise, then a cosine decay to 2 %."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))

    def auxiliary_at(self, step: int) -> float:
        """Return the weight of the auxiliary heads in a step; it falls linearly from 1 to 0."""
        return max(0.0, 1.0 - step / (self.fade * self.steps))

    def longest_at(self, step: int) -> int:
        """Return the longest input of a step, a multiple of 16.

        Examples
        --------
        >>> [Recipe(steps=1000).longest_at(step) for step in (0, 200, 900)]
        [48, 80, 128]
        """
        grown = min(step / (self.growth * self.steps), 1.0)
        return 48 + 16 * int(grown * (TRAINED_LENGTH - 48) / 16)
