"""What the tests of `attendre eval` share: a made-up decoder of one byte a token, and real data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attendre_core.tree import tree_map
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.model import Model

#: Real questions and texts that are not part of this repository, beside it.
DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


class Bytes:
    """A tokenizer of one byte a token."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


@pytest.fixture(scope="session")
def decoder() -> Model:
    """A Llama with two layers and made-up weights."""
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 256, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    }  # fmt: skip
    rng = np.random.default_rng(5)
    architecture = architecture_of(RawConfig(config, "made up"))
    params = tree_map(
        lambda tensor: (
            0.3 * rng.standard_normal(tensor.shape)
            if len(tensor.shape) > 1
            else np.ones(tensor.shape)
        ).astype(np.float32),
        architecture.parameters(),
    )
    return Model(architecture, params, tokenizer=Bytes())


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """Return a file of real data, or skip."""

    def find(name: str) -> Path:
        if not (DATA / name).exists():
            pytest.skip(f"needs {name} in a folder shared/data beside the repository")
        return DATA / name

    return find
