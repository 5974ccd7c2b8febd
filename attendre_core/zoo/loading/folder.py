"""A Hugging Face folder: config.json and safetensors, in one file or in shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.zoo.config import RawConfig, read_json
from attendre_core.zoo.loading.mapping import mapped_bytes
from attendre_core.zoo.loading.onnx_file import onnx_tensors
from attendre_core.zoo.loading.other_formats import others_in
from attendre_core.zoo.loading.pickled import pickled_tensors
from attendre_core.zoo.loading.placing import NUMPY_DTYPES, Stored

__all__ = ["FolderCheckpoint", "mapped_tensors", "shape_of"]

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class FolderCheckpoint:
    """A folder with a model in it.

    Parameters
    ----------
    folder
        Holds ``config.json``, and ``model.safetensors``, or shards with an index, or
        ``pytorch_model.bin``, or ``model.onnx``, also in a folder ``onnx``.
    weights
        A file to read instead.
    """

    def __init__(self, folder: Path, weights: Path | None = None) -> None:
        self.where = str(folder)
        self.config = _configuration(folder)
        self._tensors: dict[str, Stored] = {}
        for file in _weight_files(folder) if weights is None else [weights]:
            new = _READERS.get(file.suffix, pickled_tensors)(file)
            twice = self._tensors.keys() & new.keys()
            if twice:
                raise CheckpointError(
                    f"{file}: holds {min(twice)[:80]!r} and {len(twice) - 1} more tensors that "
                    "another shard holds too, expected each in one. Download all shards again."
                )
            self._tensors |= new

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no such tensor."""
        return shape_of(self.where, name, self._tensors.get(name))

    def read(self, name: str) -> Stored:
        """Return a tensor, mapped."""
        return self._tensors[name]


def shape_of(where: str, name: str, found: Stored | None) -> tuple[int, ...] | None:
    """Return the shape of a tensor, None if there is none; refuse what holds no floats."""
    if found is None:
        return None
    if found.dtype not in NUMPY_DTYPES:
        raise CheckpointError(
            f"{where}: {name[:80]} is stored as {found.dtype}, expected one of "
            f"{', '.join(_DTYPES)}. Use a checkpoint that is not quantised, or a GGUF file."
        )
    return tuple(found.array.shape)


def _configuration(folder: Path) -> RawConfig:
    """Read ``config.json``, and from ``generation_config.json`` the tokens that end a text."""
    file = folder / "config.json"
    config = RawConfig(read_json(file), str(file))
    if config.has("quantization_config"):
        kind = config.part("quantization_config").values.get("quant_method", "some method")
        raise CheckpointError(
            f"{file}: the weights are quantised by {str(kind)[:40]}, which cannot be undone here. "
            "Use the original checkpoint, or a GGUF file."
        )
    beside = folder / "generation_config.json"
    if beside.is_file():
        ends = RawConfig(read_json(beside), str(beside)).tokens("eos_token_id")
        if ends:
            return RawConfig({**config.values, "eos_token_id": list(ends)}, str(file))
    return config


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
    for exported in (folder / "model.onnx", folder / "onnx" / "model.onnx"):
        if exported.is_file():
            return [exported]
    raise others_in(folder) or CheckpointError(
        f"{folder}: no weights found, expected model.safetensors, shards with "
        "model.safetensors.index.json, or pytorch_model.bin. Download the whole folder."
    )


def _shards(folder: Path, index: Path) -> list[Path]:
    """Return the files that an index names; they must lie in the same folder."""
    content = RawConfig(read_json(index), str(index)).part("weight_map").values
    names = sorted({str(name) for name in content.values()})
    suffix = index.name.removesuffix(".index.json").rpartition(".")[2]
    files = []
    for name in names:
        inside = Path(name).name == name and "\\" not in name and len(name) < 200
        if not inside or not name.endswith(f".{suffix}"):
            raise CheckpointError(
                f"{index}: names the file {name[:80]!r}, expected a .{suffix} file in the same "
                "folder."
            )
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{index}: names the file {name[:80]!r}, which is not there. Download all shards."
            )
        files.append(folder / name)
    if not files:
        raise CheckpointError(f"{index}: names no file. Download it again.")
    return files


def mapped_tensors(file: Path, *, trusted: bool = False) -> dict[str, Stored]:
    """Map all tensors of a safetensors file into memory without reading them.

    A ``trusted`` file, one whose hash was compared, is not checked by the package safetensors.
    """
    if not trusted:
        _validated(file)
    data = mapped_bytes(file)
    length = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + length].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = _DTYPES.get(entry["dtype"])
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        array: Any = data[start:stop]
        if dtype is not None:
            array = array.view(NUMPY_DTYPES[dtype]).reshape(entry["shape"])
        tensors[name] = Stored(array, dtype or str(entry["dtype"]))
    return tensors


_READERS = {".safetensors": mapped_tensors, ".onnx": onnx_tensors}


def _validated(file: Path) -> None:
    """Let safetensors check header, sizes and offsets before anything is mapped."""
    try:
        from safetensors import safe_open
    except ModuleNotFoundError as error:
        raise ConfigError(
            "load: reading safetensors needs the package safetensors. Install it with: "
            "pip install 'attendre-core[zoo]'."
        ) from error
    if not file.is_file():
        raise CheckpointError(f"{file}: is not a file, expected weights in safetensors.")
    try:
        with safe_open(str(file), framework="numpy"):
            pass
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of compiled code is no Exception
        raise CheckpointError(
            f"{file}: is damaged or no safetensors file ({str(error)[:200]}). Download it again."
        ) from error
