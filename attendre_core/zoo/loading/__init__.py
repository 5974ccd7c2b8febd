"""Load a checkpoint: a folder, a GGUF file, a llama2.c file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attendre_core.backend import Backend
from attendre_core.backend import backend as look_up
from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.loading.checkpoint import Checkpoint, load_parameters
from attendre_core.zoo.model import Model
from attendre_core.zoo.registry import architecture_of
from attendre_core.zoo.tokenizer import Tokenizer, tokenizer_of

__all__ = ["load", "open_checkpoint"]

_DTYPES = ("float32", "float16", "bfloat16", "float64", "auto")


def load(
    path: str | Path,
    memory: MemoryConfig | None = None,
    backend: str | Backend = "numpy",
    *,
    dtype: str = "float32",
    attention: Literal["causal", "prefix"] | None = None,
    progress: bool | None = None,
) -> Model:
    """Load a model from a checkpoint.

    Parameters
    ----------
    path
        A Hugging Face folder (``config.json`` and safetensors), a ``.gguf`` file, or a llama2.c
        ``.bin`` file.
    memory
        Sizes and policy of its memories, e.g. from `preset`; None is full attention.
    backend
        ``"numpy"``, ``"torch"``, ``"jax"`` or another one.
    dtype
        Of parameters and memories; ``"auto"`` leaves the parameters as they are stored.
    attention
        ``"prefix"`` lets a decoder read its prompt in both directions.
    progress
        Whether to show a bar; None shows one on a terminal.

    Returns
    -------
    Model
        Its parameters share memory with the file where dtype and library allow it.

    Raises
    ------
    CheckpointError
        The checkpoint is damaged, incomplete, or of an unknown kind. Nothing is half loaded, and
        no code of the checkpoint is run.
    """
    found = look_up(backend)
    if dtype not in _DTYPES:
        raise ConfigError(f"load: dtype is {dtype!r}, expected one of {', '.join(_DTYPES)}.")
    if found.name == "numpy" and dtype == "bfloat16":
        raise ConfigError("load: NumPy has no bfloat16. Use float32, or backend='torch' or 'jax'.")
    checkpoint, tokenizer = open_checkpoint(path)
    architecture = architecture_of(checkpoint.config)
    params = load_parameters(checkpoint, architecture, found, dtype, progress=progress)
    return Model(
        architecture,
        params,
        memory=memory,
        library=found.name,
        dtype="float32" if dtype == "auto" else dtype,
        tokenizer=tokenizer,
        attention=attention,
        end=checkpoint.config.tokens("eos_token_id"),
    )


def open_checkpoint(path: str | Path) -> tuple[Checkpoint, Tokenizer | None]:
    """Find out what lies at a path and open it, without reading the weights."""
    place = Path(path).expanduser()
    if not place.exists():
        raise CheckpointError(
            f"{place}: there is no such file or folder. attendre-core loads checkpoints that you "
            "already have; it downloads nothing."
        )
    if place.is_dir():
        from attendre_core.zoo.loading.folder import FolderCheckpoint

        return FolderCheckpoint(place), tokenizer_of(place)
    raise CheckpointError(
        f"{place}: is no checkpoint that can be loaded, expected a folder with config.json, a "
        ".gguf file or a llama2.c .bin file."
    )
