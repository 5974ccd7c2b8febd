"""A ``pytorch_model.bin``, read without running what it may contain.

The file is a pickle, which may run code when it is opened. It is read only through PyTorch's
``weights_only=True``, which builds tensors and plain containers and refuses everything else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.zoo.loading.placing import Stored

__all__ = ["pickled_tensors"]

_KNOWN = ("float64", "float32", "float16", "bfloat16")


def pickled_tensors(file: Path) -> dict[str, Stored]:
    """Return the floating-point tensors of a PyTorch file, mapped where its format allows."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"load: {file} can only be read by PyTorch. Install it with: pip install "
            "'attendre-core[torch]', or convert the file to safetensors."
        ) from error
    tensors = {}
    for name, tensor in _plain_weights(torch, file).items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            continue
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or _lies(tensor):
            raise CheckpointError(
                f"{file}: {str(name)[:80]!r} is no ordinary tensor with all its numbers in the "
                "file. Convert it to safetensors."
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        tensor = tensor.detach()
        if dtype == "bfloat16":
            tensors[str(name)] = Stored(tensor.view(torch.int16).numpy().view(np.uint16), dtype)
        elif dtype in _KNOWN:
            tensors[str(name)] = Stored(tensor.numpy(), dtype)
    return tensors


def _plain_weights(torch: Any, file: Path) -> dict[Any, Any]:
    problem: BaseException | None = None
    for mapped in (True, False):  # files older than PyTorch 1.6 cannot be mapped
        try:
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception as error:
            problem = error
            continue
        if not isinstance(content, dict):
            raise CheckpointError(
                f"{file}: holds a {type(content).__name__}, expected named tensors."
            )
        return content
    raise CheckpointError(
        f"{file}: PyTorch refuses to read it as plain weights ({str(problem)[:200]}). Nothing of "
        "it was run."
    ) from problem


def _lies(tensor: Any) -> bool:
    """Whether a tensor claims more numbers than it stores."""
    return bool(tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size())
