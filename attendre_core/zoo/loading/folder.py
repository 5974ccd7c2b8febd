"""A Hugging Face folder: config.json and safetensors, in one file or in shards.

``pytorch_model.bin`` is a pickle, which may run code when it is opened; it is read only through
PyTorch's ``weights_only=True``, which does not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.zoo.config import RawConfig, read_json
from attendre_core.zoo.loading.checkpoint import Stored

__all__ = ["FolderCheckpoint", "mapped_tensors"]

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NUMPY = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
_LARGEST_HEADER = 100 * 2**20


class FolderCheckpoint:
    """A folder with a model in it.

    Parameters
    ----------
    folder
        Holds ``config.json``, and ``model.safetensors``, or shards with an index, or
        ``pytorch_model.bin``.
    """

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self.config = RawConfig(read_json(folder / "config.json"), str(folder / "config.json"))
        self._tensors: dict[str, Stored] = {}
        for file in _weight_files(folder):
            self._tensors |= (
                mapped_tensors(file) if file.suffix == ".safetensors" else _pickled_tensors(file)
            )

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no such tensor."""
        found = self._tensors.get(name)
        return None if found is None else tuple(found.array.shape)

    def read(self, name: str) -> Stored:
        """Return a tensor, mapped."""
        return self._tensors[name]


def _weight_files(folder: Path) -> list[Path]:
    for index, single in (
        ("model.safetensors.index.json", "model.safetensors"),
        ("pytorch_model.bin.index.json", "pytorch_model.bin"),
    ):
        if (folder / index).is_file():
            return _shards(folder, folder / index)
        if (folder / single).is_file():
            return [folder / single]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    raise CheckpointError(
        f"{folder}: no weights found, expected model.safetensors, shards with "
        "model.safetensors.index.json, or pytorch_model.bin. Download the whole folder."
    )


def _shards(folder: Path, index: Path) -> list[Path]:
    """Return the files that an index names; they must lie in the same folder."""
    content = RawConfig(read_json(index), str(index)).part("weight_map").values
    names = sorted({str(name) for name in content.values()})
    files = []
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(
                f"{index}: names the file {name!r}, expected one in the same folder."
            )
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{index}: names the file {name}, which is not there. Download all shards."
            )
        files.append(folder / name)
    if not files:
        raise CheckpointError(f"{index}: names no file. Download it again.")
    return files


def mapped_tensors(file: Path) -> dict[str, Stored]:
    """Map all tensors of a safetensors file into memory without reading them."""
    _validated(file)
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    # Copy on write: a library may ask for writable memory, the file never changes.
    data = np.memmap(file, dtype=np.uint8, mode="c", offset=8 + length) if header else None
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None or data is None:
            continue  # whole numbers and such: buffers that no architecture asks for
        start, stop = entry["data_offsets"]
        array: Any = data[start:stop].view(_NUMPY[dtype]).reshape(entry["shape"])
        tensors[name] = Stored(np.asarray(array), dtype)
    return tensors


def _validated(file: Path) -> None:
    """Let safetensors check header, sizes and offsets before anything is mapped."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise ConfigError(
            "load: reading safetensors needs the package safetensors. Install it with: "
            "pip install 'attendre-core[zoo]'."
        ) from error
    try:
        with safe_open(str(file), framework="numpy"):
            pass
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"{file}: is damaged or no safetensors file ({error}). Download it again."
        ) from error


def _pickled_tensors(file: Path) -> dict[str, Stored]:
    """Read a PyTorch file without running what it may contain."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"load: {file} can only be read by PyTorch. Install it with: pip install "
            "'attendre-core[torch]', or convert the file to safetensors."
        ) from error
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise CheckpointError(
            f"{file}: PyTorch refuses to read it as plain weights ({str(error)[:200]})."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: holds a {type(content).__name__}, expected named tensors.")
    tensors = {}
    for name, tensor in content.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            continue
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype == "bfloat16":
            tensors[str(name)] = Stored(tensor.view(torch.int16).numpy().view(np.uint16), dtype)
        elif dtype in _NUMPY:
            tensors[str(name)] = Stored(tensor.numpy(), dtype)
    return tensors
