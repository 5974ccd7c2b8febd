"""Formats that are not read: what they are, and what to load instead."""

from __future__ import annotations

from pathlib import Path

from attendre_core.errors import CheckpointError

__all__ = ["known_other", "no_checkpoint", "others_in"]

_ORIGINAL = "Load the model that it was exported from: a folder with config.json and safetensors."
_FOLDER = "Pass the folder that it lies in, with its config.json."
#: Endings of files, what they are, and what to do.
_ENDINGS = {
    ".onnx": "is an ONNX file without a configuration, or under a name of its own. Put the model's "
    "config.json beside it, or one folder up, and pass the path of the file.",
    ".tflite": f"is a TensorFlow Lite file, which is not read. {_ORIGINAL}",
    ".h5": f"holds weights of TensorFlow, which are not read. {_ORIGINAL}",
    ".msgpack": f"holds weights of Flax, which are not read. {_ORIGINAL}",
    ".npz": "holds arrays of NumPy, as Marian writes them, which are not read here. Convert a "
    "Marian model with the script convert_marian_to_pytorch of transformers, and load the folder.",
    ".pth": "is a pickle of PyTorch. Load the Hugging Face version of the model: a folder with "
    "config.json and safetensors.",
    ".safetensors": f"is the weights alone. {_FOLDER}",
}
_ENDINGS[".pt"] = _ENDINGS[".ckpt"] = _ENDINGS[".pth"]
#: The first bytes of files that are called .bin.
_BEGINNINGS = {
    b"PK\x03\x04": f"is a PyTorch file. {_FOLDER}",
    b"\x80\x02": "is a pickle, which is never opened. Convert it to safetensors.",
    b"24ka": "is a llama2.c file of version 1 or later. Export it as version 0.",
    b"\x01" + bytes(7): "is a model of Marian, such as those of Bergamot and Firefox, whose binary "
    "format is not read here. Load an OPUS-MT model: a folder with config.json and safetensors.",
}
_ADAPTER = (
    "is an adapter (LoRA), not a model. Merge it with peft: model.merge_and_unload() and "
    "save_pretrained, and load the result."
)


def known_other(file: Path) -> CheckpointError | None:
    """Return an error that names the format of a file; None if it is not known."""
    what = _ADAPTER if file.name == "adapter_config.json" else _ENDINGS.get(file.suffix.lower())
    if file.suffix == ".bin" and file.is_file():
        with file.open("rb") as opened:
            first = opened.read(max(map(len, _BEGINNINGS)))
        what = next((w for begin, w in _BEGINNINGS.items() if first.startswith(begin)), None)
    return None if what is None else CheckpointError(f"{file}: {what}")


def others_in(folder: Path) -> CheckpointError | None:
    """Return an error about the first file in a folder, or in its folder ``onnx``, that is known.

    Files that belong to a folder like this one are not meant.
    """
    for place in (folder, folder / "onnx"):
        for file in sorted(place.iterdir()) if place.is_dir() else ():
            error = known_other(file)
            if error is not None and _FOLDER not in str(error):
                return error
    return None


def no_checkpoint(folder: Path, models: list[Path]) -> CheckpointError:
    """Return an error about a folder without ``config.json``.

    Parameters
    ----------
    models
        Files in it that are models by themselves.
    """
    if models:
        names = ", ".join(file.name[:80] for file in models[:8])
        return CheckpointError(
            f"{folder}: holds {len(models)} models: {names}. Pass the path of one of them."
        )
    return others_in(folder) or CheckpointError(
        f"{folder / 'config.json'}: cannot be read (there is no such file), expected a folder "
        "with config.json and safetensors, a .gguf file or a llama2.c .bin file. Download the "
        "whole folder."
    )
