"""Load a checkpoint: a folder, a GGUF file, a llama2.c file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from attendre_core.backend import Backend
from attendre_core.backend import backend as look_up
from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.paths import user_path
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.architectures.base import Architecture
from attendre_core.zoo.chat_template import ChatTemplate
from attendre_core.zoo.heads import head_of
from attendre_core.zoo.loading.chat_templates import template_of_folder, template_of_gguf
from attendre_core.zoo.loading.checkpoint import Checkpoint, load_parameters
from attendre_core.zoo.loading.other_formats import known_other, no_checkpoint, others_in
from attendre_core.zoo.loading.sentence import recipe_of_folder
from attendre_core.zoo.model import Model
from attendre_core.zoo.tokenizers import Tokenizer, tokenizer_at, tokenizer_of

__all__ = ["load", "open_checkpoint"]

_DTYPES = ("float32", "float16", "bfloat16", "float64", "auto")


def load(
    path: str | Path,
    memory: MemoryConfig | str | int | None = None,
    backend: str | Backend = "numpy",
    *,
    device: Any = None,
    dtype: str = "float32",
    attention: Literal["causal", "prefix"] | None = None,
    tokenizer: str | Path | None = None,
    progress: bool | None = None,
) -> Model:
    """Load a model from a checkpoint.

    Parameters
    ----------
    path
        A Hugging Face folder (``config.json`` and safetensors), a ``.gguf`` file, a llama2.c
        ``.bin`` file, or a folder with one such file; an ``.onnx`` file with a ``config.json``
        beside it or one folder up.
    memory
        ``1024`` (entries per layer) or ``"64MiB"`` (bytes of all layers): the system that we
        recommend for this architecture. ``"LRA-sum+softmax+c=0:512"``: a system by name; see
        `preset`. A `MemoryConfig`. None: full attention.
    backend
        ``"numpy"``, ``"torch"``, ``"jax"`` or another one.
    device
        Where parameters, memories and everything else are kept: a name such as ``"cuda:0"`` or
        ``"cpu:1"``, or a device of the library. None is the CPU, and JAX's default device for JAX.
    dtype
        Of parameters and memories: float32, so that backends agree; ``"auto"`` is the one that
        most of the parameters are stored in, or float32 if the library lacks it.
    attention
        ``"prefix"`` lets a decoder read its prompt in both directions.
    tokenizer
        For a checkpoint that came without one: a folder, a file such as ``tokenizer.json``, or a
        ``.gguf`` file that has one. None takes the checkpoint's own.
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

    Notes
    -----
    Tensors are converted in pieces of one MiB, and the pages of a file are given back at once, so
    that loading takes little more memory than the parameters: at most 1.2 times as much, counting
    all that is resident. Only a ``pytorch_model.bin`` stays resident itself.

    Quantised numbers of a GGUF file become ``dtype``: 1.5 billion of them take 0.9 GB in a file of
    four bits each, 6.2 GB as float32 and 3.1 GB as float16 or bfloat16.
    """
    found = look_up(backend)
    if dtype not in _DTYPES:
        raise ConfigError(f"load: dtype is {dtype!r}, expected one of {', '.join(_DTYPES)}.")
    if dtype in ("bfloat16", "float64") and dtype not in found.capabilities:
        raise ConfigError(
            f"load: {found.name} has no {dtype} here. Use float32, or another backend."
        )
    place = found.find_device(device)
    checkpoint, own_tokenizer = open_checkpoint(path)
    found_tokenizer = own_tokenizer if tokenizer is None else tokenizer_at(tokenizer)
    architecture = _architecture(checkpoint)
    # A memory that cannot be made is refused before the parameters are read.
    Model(architecture, {}, memory=memory, library=found.name, attention=attention)
    head = head_of(checkpoint, architecture)
    params, dtype = load_parameters(
        checkpoint, architecture, found, dtype, device=place, progress=progress, head=head
    )
    return Model(
        architecture,
        params,
        memory=memory,
        library=found.name,
        dtype=dtype,
        tokenizer=found_tokenizer,
        attention=attention,
        end=checkpoint.config.tokens("eos_token_id"),
        chat_template=_template(checkpoint, tokenizer),
        recipe=recipe_of_folder(Path(checkpoint.where)),
        head=head,
    )


def _template(checkpoint: Checkpoint, tokenizer: str | Path | None) -> ChatTemplate | None:
    """Return the chat template of the checkpoint, or that beside the tokenizer."""
    metadata = getattr(checkpoint, "metadata", None)
    if metadata is not None:
        return template_of_gguf(checkpoint.where, metadata)
    found = template_of_folder(Path(checkpoint.where))
    return found or (None if tokenizer is None else template_of_folder(Path(tokenizer)))


def _architecture(checkpoint: Checkpoint) -> Architecture:
    """Return what the configuration describes; every error names the file."""
    try:
        return architecture_of(checkpoint.config)
    except (CheckpointError, ConfigError) as error:
        if checkpoint.where in str(error):
            raise
        raise CheckpointError(f"{checkpoint.where}: {error}") from error


def open_checkpoint(path: str | Path) -> tuple[Checkpoint, Tokenizer | None]:
    """Find out what lies at a path and open it, without reading the weights."""
    place = user_path(path)
    if not place.exists():
        raise CheckpointError(
            f"{place}: there is no such file or folder. attendre-core loads checkpoints that you "
            "already have; it downloads nothing."
        )
    return _open_folder(place) if place.is_dir() else _open_file(place)


def _open_folder(folder: Path) -> tuple[Checkpoint, Tokenizer | None]:
    from attendre_core.zoo.loading.ctranslate import CTranslateFolder, is_ctranslate_folder
    from attendre_core.zoo.loading.folder import FolderCheckpoint
    from attendre_core.zoo.loading.llama2c import is_llama2c

    if is_ctranslate_folder(folder):
        translator = CTranslateFolder(folder)
        return translator, translator.tokenizer
    if not (folder / "config.json").exists():
        found = [*folder.glob("*.gguf"), *filter(is_llama2c, folder.glob("*.bin"))]
        damaged = [file for file in folder.glob("*.bin") if not file.name.startswith("tok")]
        if not found and len(damaged) == 1 and others_in(folder) is None:
            found = damaged  # refused with the reason
        if len(found) != 1:
            raise no_checkpoint(folder, sorted(found))
        return _open_file(found[0])
    return FolderCheckpoint(folder), tokenizer_of(folder)


def _open_file(file: Path) -> tuple[Checkpoint, Tokenizer | None]:
    if file.suffix == ".gguf":
        from attendre_core.zoo.loading.gguf_file import GGUFCheckpoint
        from attendre_core.zoo.tokenizers.from_gguf import tokenizer_of_gguf

        found = GGUFCheckpoint(file)
        return found, tokenizer_of_gguf(found.where, found.metadata)
    if file.suffix == ".bin":
        from attendre_core.zoo.loading.llama2c import Llama2cCheckpoint, is_llama2c
        from attendre_core.zoo.tokenizers.from_llama2c import tokenizer_beside

        if file.name.startswith("tok") and not is_llama2c(file):
            beside = sorted(x.name for x in file.parent.glob("*.bin") if is_llama2c(x))
            raise known_other(file) or CheckpointError(
                f"{file}: is named like a tokenizer of llama2.c, not like a model. Pass the model "
                f"that it lies beside{': ' + ', '.join(beside) if beside else ''}."
            )
        small = Llama2cCheckpoint(file)
        return small, tokenizer_beside(file, small.config.size("vocab_size"))
    homes = [home for home in file.parents[:2] if (home / "config.json").is_file()]
    if file.suffix == ".onnx" and homes:
        from attendre_core.zoo.loading.folder import FolderCheckpoint

        return FolderCheckpoint(homes[0], file), tokenizer_of(homes[0])
    raise known_other(file) or CheckpointError(
        f"{file}: is no checkpoint that can be loaded, expected a folder with config.json, a "
        ".gguf file or a llama2.c .bin file."
    )
