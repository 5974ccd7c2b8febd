"""A GGUF file: one model, its configuration and its tokenizer, usually quantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.errors import CheckpointError
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.loading.gguf_config import configuration_of
from attendre_core.zoo.loading.gguf_header import gguf_package, read_gguf_header
from attendre_core.zoo.loading.gguf_names import FAMILIES, own_name
from attendre_core.zoo.loading.mapping import mapped_bytes
from attendre_core.zoo.loading.placing import NUMPY_DTYPES, Stored
from attendre_core.zoo.loading.row_orders import in_groups, in_halves

__all__ = ["GGUFCheckpoint"]

_PLAIN = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class GGUFCheckpoint:
    """A model in a GGUF file; quantised tensors become numbers, some rows at a time.

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
        self._family = FAMILIES[self._architecture]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no such tensor."""
        place = self._places.get(own_name(self._architecture, name) or "")
        return None if place is None else place.shape

    def read(self, name: str) -> Stored:
        """Return a tensor: mapped if it is plain numbers, decoded later if it is quantised."""
        own = str(own_name(self._architecture, name))
        place, order = self._places[own], self._order(own)
        if self._family.centred and own.endswith("norm.weight"):
            # llama.cpp multiplies by the weight; the model was made to multiply by 1 + weight.
            return Stored(self._numbers(own) - np.float32(1.0), "float32")
        if place.kind.name in _PLAIN:
            dtype = _PLAIN[place.kind.name]
            array = self._raw(own).view(NUMPY_DTYPES[dtype]).reshape(place.shape)
            return Stored(array, dtype, order=order)
        if len(place.shape) == 1:
            return Stored(self._numbers(own), "float32", order=order)
        rows = self._raw(own).reshape(*place.shape[:-1], -1)
        return Stored(rows, "float32", place.shape, lambda some: self._decoded(own, some), order)

    def _order(self, own: str) -> Any:
        """Return which row of the file is row 0, 1, ... of a tensor; None if it is the same."""
        part, rows = own.split(".")[-2], np.arange(self._places[own].shape[0])
        heads = self.config.size("num_attention_heads", 1)
        if self._family.rows == "pairs" and part in ("attn_q", "attn_k"):
            kv_heads = self.config.size("num_key_value_heads", heads)
            return in_halves(rows, heads if part == "attn_q" else kv_heads)
        if self._family.rows == "fused" and part == "attn_qkv":
            return in_groups(rows, heads, self.config.size("num_kv_heads", heads))
        return None

    def _raw(self, own: str) -> Any:
        place = self._places[own]
        return self._data[place.start : place.stop]

    def _numbers(self, own: str) -> Any:
        """Return a small tensor as float32, whatever its kind."""
        shape = self._places[own].shape
        return self._decoded(own, self._raw(own).reshape(*shape[:-1], -1)).reshape(shape)

    def _decoded(self, own: str, rows: Any) -> Any:
        """Return rows of a tensor as float32."""
        kind = self._places[own].kind
        try:
            return np.asarray(gguf_package().dequantize(rows, kind), dtype=np.float32)
        except (NotImplementedError, ValueError) as error:
            raise CheckpointError(
                f"{self.where}: the tensor {own[:80]!r} is of kind {kind.name}, which the gguf "
                f"package cannot turn into numbers ({error})."
            ) from error
