"""A llama2.c file: seven whole numbers, then float32 weights of a small Llama, in one order.

::

    dim hidden layers heads kv_heads vocabulary context │ embedding │ norms │ wq wk wv wo │ ...
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attendre_core.errors import CheckpointError
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.loading.mapping import mapped_bytes
from attendre_core.zoo.loading.other_formats import known_other
from attendre_core.zoo.loading.placing import Stored
from attendre_core.zoo.loading.row_orders import in_halves

__all__ = ["Llama2cCheckpoint", "is_llama2c"]

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)
_HEADER = 4 * len(_SIZES)


class Llama2cCheckpoint:
    """A model in a llama2.c file; everything but queries and keys is mapped.

    Parameters
    ----------
    file
        Written by llama2.c's ``export.py --version 0``.
    """

    def __init__(self, file: Path) -> None:
        self.where = str(file)
        data = mapped_bytes(file)
        other = known_other(file)
        if other is not None:
            raise other
        if len(data) < _HEADER:
            raise CheckpointError(
                f"{file}: has {len(data)} bytes, expected {_HEADER} of header and then weights. It "
                "is truncated or no llama2.c file."
            )
        header = data[:_HEADER].view("<i4").tolist()
        values = dict(zip(_SIZES, header, strict=True))
        # A negative vocabulary says that the output matrix is not the embedding.
        tied = values["vocab_size"] > 0
        values["vocab_size"] = abs(values["vocab_size"])
        self.config = RawConfig(
            {
                **values,
                "model_type": "llama",
                "tie_word_embeddings": tied,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "eos_token_id": [1, 2],  # llama2.c ends a text at the start of the next one
            },
            self.where,
        )
        self._numbers = data[_HEADER:]
        self._places = self._layout(tied)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no such tensor."""
        found = self._places.get(name)
        return None if found is None else found[1]

    def read(self, name: str) -> Stored:
        """Return a tensor, mapped; the rows of queries and keys are in another order."""
        start, shape = self._places[name]
        stop = start + 4 * int(np.prod(shape))
        array = self._numbers[start:stop].view("<f4").reshape(shape)
        order = None
        for part, count in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if f".{part}." in name:
                order = in_halves(np.arange(len(array)), self.config.size(count))
        return Stored(array, "float32", order=order)

    def _layout(self, tied: bool) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Return first byte and shape of every tensor; all of them must fill the file exactly."""
        size = self.config.size
        dim, hidden, layers = (size(name) for name in _SIZES[:3])
        heads, kv_heads = size("num_attention_heads"), size("num_key_value_heads")
        vocabulary, context = size("vocab_size"), size("max_position_embeddings")
        if dim % (2 * heads) or heads % kv_heads:
            raise CheckpointError(
                f"{self.where}: {dim} features, {heads} heads and {kv_heads} K/V heads do not go "
                "together, expected each to divide the one before, and heads of even width. It is "
                "damaged or no llama2.c file."
            )
        head_dim = dim // heads
        outer = kv_heads * head_dim
        parts: list[tuple[str, tuple[int, ...]]] = [
            ("input_layernorm", (dim,)),
            ("self_attn.q_proj", (dim, dim)),
            ("self_attn.k_proj", (outer, dim)),
            ("self_attn.v_proj", (outer, dim)),
            ("self_attn.o_proj", (dim, dim)),
            ("post_attention_layernorm", (dim,)),
            ("mlp.gate_proj", (hidden, dim)),
            ("mlp.down_proj", (dim, hidden)),
            ("mlp.up_proj", (hidden, dim)),
        ]
        each = sum(_product(shape) for _, shape in parts)
        # Cosines and sines of the rotation, which are computed here.
        rotation = context * head_dim
        total = vocabulary * dim * (1 if tied else 2) + layers * each + dim + rotation
        if 4 * total != len(self._numbers):
            raise CheckpointError(
                f"{self.where}: the header asks for {4 * total} bytes of weights, but "
                f"{len(self._numbers)} follow. It is truncated, damaged or no llama2.c file."
            )
        places: dict[str, tuple[int, tuple[int, ...]]] = {}
        at = 0

        def place(name: str, shape: tuple[int, ...]) -> None:
            nonlocal at
            places[name] = (at, shape)
            at += 4 * _product(shape)

        place("model.embed_tokens.weight", (vocabulary, dim))
        for part, shape in parts:
            for layer in range(layers):
                place(f"model.layers.{layer}.{part}.weight", shape)
        place("model.norm.weight", (dim,))
        at += 4 * rotation
        if not tied:
            place("lm_head.weight", (vocabulary, dim))
        return places


def is_llama2c(file: Path) -> bool:
    """Whether header and size of a file are those of a model of llama2.c."""
    try:
        Llama2cCheckpoint(file)
    except CheckpointError:
        return False
    return True


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total
