"""A GGUF file: one model, its configuration and its tokenizer, usually quantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.errors import CheckpointError
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.loading.checkpoint import Stored
from attendre_core.zoo.loading.gguf_header import gguf_package, read_gguf_header
from attendre_core.zoo.loading.gguf_names import configuration_of, public_names
from attendre_core.zoo.loading.mapping import mapped_bytes
from attendre_core.zoo.loading.rotation import in_halves

__all__ = ["GGUFCheckpoint"]

_PLAIN = {
    "F64": ("float64", "<f8"),
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
}


class GGUFCheckpoint:
    """A model in a GGUF file; quantised tensors become float32, one at a time.

    Parameters
    ----------
    file
        The file.

    Attributes
    ----------
    metadata
        What the file says about model and tokenizer.
    """

    def __init__(self, file: Path) -> None:
        self.where = str(file)
        self._data = mapped_bytes(file)
        header = read_gguf_header(self.where, self._data)
        self.metadata, self._places = header.metadata, header.tensors
        factors = "rope_freqs.weight"
        self.config = RawConfig(
            configuration_of(
                self.where, header, self._numbers(factors) if factors in self._places else None
            ),
            self.where,
        )
        self._architecture: str = self.metadata["general.architecture"]
        self._names = public_names(self._architecture, self._places)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no such tensor."""
        own = self._names.get(name)
        return None if own is None else self._places[own].shape

    def read(self, name: str) -> Stored:
        """Return a tensor: mapped if it is plain numbers in the order that is needed."""
        own = self._names[name]
        turned = self._architecture == "llama" and own.rpartition(".")[0].endswith(
            (".attn_q", ".attn_k")
        )
        centred = self._architecture == "gemma3" and own.endswith("norm.weight")
        kind = self._places[own].kind.name
        if kind in _PLAIN and not centred:
            dtype, layout = _PLAIN[kind]
            array = self._raw(own).view(layout).reshape(self._places[own].shape)
        else:
            dtype, array = "float32", self._numbers(own)
        if turned:
            query = ".attn_q." in own
            counted = "num_attention_heads" if query else "num_key_value_heads"
            heads = self.config.size(counted, self.config.size("num_attention_heads"))
            array = in_halves(array, heads)
        if centred:
            # llama.cpp multiplies by the weight; the model was made to multiply by 1 + weight.
            array = array - np.float32(1.0)
        return Stored(array, dtype)

    def _raw(self, own: str) -> Any:
        place = self._places[own]
        return self._data[place.start : place.stop]

    def _numbers(self, own: str) -> Any:
        """Return a tensor as float32, whatever its kind."""
        place, gguf = self._places[own], gguf_package()
        rows = self._raw(own).reshape(*place.shape[:-1], -1)
        try:
            numbers = gguf.dequantize(rows, place.kind)
        except (NotImplementedError, ValueError) as error:
            raise CheckpointError(
                f"{self.where}: the tensor {own[:80]!r} is of kind {place.kind.name}, which the "
                f"gguf package cannot turn into numbers ({error})."
            ) from error
        return np.asarray(numbers, dtype=np.float32).reshape(place.shape)
