"""The weights of an encoder in an ONNX file. Its program is not run: only its names are read.

Exporters keep the names of most tensors, but store the weights of linear maps as (in, out) under
numbers. What such a weight is called in a checkpoint follows from the bias that is added to the
product, or from the path in the name of the node::

    x ─► MatMul "/encoder/layer.0/output/dense/MatMul" ─► Add ─►
              │ onnx::MatMul_42                            │ encoder.layer.0.output.dense.bias
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.zoo.loading.placing import Stored

__all__ = ["onnx_tensors"]

#: Numbers of data types in ONNX, what we call them, and how they lie in the file.
_DTYPES = {
    1: ("float32", "<f4"),
    10: ("float16", "<f2"),
    11: ("float64", "<f8"),
    16: ("bfloat16", "<u2"),
}
#: Operations of quantised programs.
_QUANTISED = ("MatMulInteger", "QLinearMatMul", "DequantizeLinear", "DynamicQuantizeLinear")


def onnx_tensors(file: Path) -> dict[str, Stored]:
    """Return the floating-point weights of an ONNX file under the names of the checkpoint."""
    graph = _graph(file)
    kinds = {node.op_type for node in graph.node}
    if kinds & set(_QUANTISED):
        raise CheckpointError(
            f"{file}: is quantised ({', '.join(sorted(kinds & set(_QUANTISED)))}), expected the "
            "weights as they were exported. Load model.onnx instead, or safetensors."
        )
    arrays = {
        tensor.name: _stored(file, tensor)
        for tensor in graph.initializer
        if tensor.data_type in _DTYPES
    }
    named = dict(arrays)
    same: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "Identity" and len(node.input) == len(node.output) == 1:
            origin = same.get(node.input[0], node.input[0])
            same[node.output[0]] = origin
            if origin in arrays:
                named.setdefault(node.output[0], arrays[origin])
    biases = _biases(graph, named)
    for node in graph.node:
        weight = node.input[1] if len(node.input) > 1 else ""
        found = arrays.get(same.get(weight, weight))
        if node.op_type not in ("MatMul", "Gemm") or found is None or found.array.ndim != 2:
            continue
        bias = biases.get(node.output[0]) if node.output else None
        if node.op_type == "Gemm" and len(node.input) > 2:
            bias = node.input[2]
        flipped = any(given.name == "transB" and given.i for given in node.attribute)
        array = found.array if flipped else found.array.T
        path = ".".join(part for part in node.name.split("/")[:-1] if part)
        for name in (bias.removesuffix(".bias") if bias else "", path):
            if name:
                named.setdefault(f"{name}.weight", Stored(array, found.dtype))
    return named


def _graph(file: Path) -> Any:
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"load: {file} needs the package onnx. Install it with: "
            "pip install 'attendre-core[onnx]', or load the model from safetensors."
        ) from error
    if not file.is_file() or file.stat().st_size == 0:
        raise CheckpointError(f"{file}: is empty or no file, expected ONNX. Download it again.")
    try:
        return onnx.load_model(str(file), load_external_data=False).graph
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # what a parser of another language raises is no contract
        raise CheckpointError(
            f"{file}: is damaged or no ONNX file ({str(error)[:200]}). Download it again."
        ) from error


def _biases(graph: Any, named: dict[str, Stored]) -> dict[str, str]:
    """Return the bias that is added to an output, by the name of the output."""
    found = {}
    for node in graph.node:
        if node.op_type == "Add" and len(node.input) == 2:
            for bias, other in (node.input, reversed(node.input)):
                if bias.endswith(".bias") and bias in named:
                    found[other] = bias
    return found


def _stored(file: Path, tensor: Any) -> Stored:
    """Return a tensor whose numbers are all in the file."""
    where = f"{file}: {tensor.name[:80]!r}"
    if tensor.external_data or tensor.data_location == 1:
        raise CheckpointError(
            f"{where} lies in another file, which is not read. Export the model into one file, or "
            "load it from safetensors."
        )
    dtype, lies = _DTYPES[tensor.data_type]
    shape = tuple(tensor.dims)
    if any(size < 0 for size in shape):
        raise CheckpointError(f"{where} has shape {shape}. The file is damaged.")
    count = math.prod(shape)
    array: Any
    if tensor.raw_data:
        if len(tensor.raw_data) != count * np.dtype(lies).itemsize:
            raise CheckpointError(
                f"{where} has {len(tensor.raw_data)} bytes, expected {count} numbers of {dtype}. "
                "The file is damaged."
            )
        array = np.frombuffer(tensor.raw_data, lies)
    else:
        listed = {1: tensor.float_data, 11: tensor.double_data}.get(
            tensor.data_type, tensor.int32_data
        )
        if len(listed) != count:
            raise CheckpointError(
                f"{where} has {len(listed)} numbers, expected {count}. The file is damaged."
            )
        kind = lies if tensor.data_type in (1, 11) else "<u2"
        array = np.asarray(listed).astype(kind).view(lies)
    return Stored(array.reshape(shape), dtype)
