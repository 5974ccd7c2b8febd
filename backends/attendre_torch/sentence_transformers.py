"""Models of the zoo as the first module of a ``SentenceTransformer``: texts are not cut."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.zoo.loading import load
from attendre_core.zoo.pooling import POOLINGS
from attendre_core.zoo.tokenizers.around import around
from attendre_core.zoo.tokens import padded
from attendre_torch.trainable import TrainableModel

__all__ = ["AttendreTransformer"]

#: Inside of what a `SentenceTransformer` saves: the checkpoint, and what training changed.
_CHECKPOINT, _TRAINED = "checkpoint", "trained.safetensors"
#: What belongs to a checkpoint besides its weights; other files of its folder are not copied.
_BESIDE = (".json", ".txt", ".model", ".jinja", ".safetensors", ".bin", ".gguf", ".vocab")
_THEIRS = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")


class AttendreTransformer(InputModule):  # type: ignore[misc]
    """A model of the zoo in bounded memory, as the first module of a ``SentenceTransformer``.

    Texts of any length are read whole: ``max_seq_length`` is None. A `Pooling` and a `Normalize`
    of sentence-transformers can follow::

        first = AttendreTransformer(path, memory="attendre:512")
        SentenceTransformer(modules=[first, Pooling(first.get_embedding_dimension())])

    They need the hidden states of all tokens of a batch at once, a row of floats for each token.
    With ``pooling=`` the module pools by itself while it reads, in memory that does not depend on
    the length, and no `Pooling` follows.

    Parameters
    ----------
    path
        A checkpoint, as in `attendre_core.load`.
    memory
        As in `attendre_core.load`; None is full attention.
    pooling
        None, or ``"mean"``, ``"cls"``, ``"max"``, ``"last"``, as in `Model.embed`; then it cannot
        be trained.
    dtype, tokenizer
        As in `attendre_core.load`.
    """

    save_in_root = False
    config_file_name = "attendre_config.json"
    config_keys = ["memory", "pooling", "dtype"]  # noqa: RUF012 - as their base class has it

    def __init__(
        self,
        path: str | Path,
        memory: str | int | None = None,
        *,
        pooling: Literal["mean", "cls", "max", "last"] | None = None,
        dtype: str = "float32",
        tokenizer: str | Path | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(memory, str | int | None):
            raise ConfigError(
                f"AttendreTransformer: memory is a {type(memory).__name__}, expected a name, a "
                "size or None: it is saved with the module. A MemoryConfig has a name."
            )
        if pooling is not None and pooling not in POOLINGS:
            raise ConfigError(
                f"AttendreTransformer: pooling is {pooling!r}, expected {', '.join(POOLINGS)}, or "
                "None for all hidden states."
            )
        self.path, self.tokenizer_path = Path(path), tokenizer
        self.memory, self.pooling, self.dtype = memory, pooling, dtype
        model = load(path, memory, "torch", dtype=dtype, tokenizer=tokenizer, progress=False)
        self.tokenizer = model.require_tokenizer("embed")
        self.model = TrainableModel(model)

    @property
    def max_seq_length(self) -> int | None:
        """None: texts are not cut."""
        return None

    def get_embedding_dimension(self) -> int:
        """Return the length of a hidden state."""
        return int(self.model.reading_part.dim)

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """Turn texts into token ids, padded to the longest."""
        begin = prompt or ""
        texts = [begin + text for text in inputs]
        tokens, valid = padded([self.tokenizer.encode(text) for text in texts])
        features = {
            "input_ids": torch.from_numpy(tokens).long(),
            "attention_mask": torch.from_numpy(valid).long(),
        }
        if begin:
            before = around(self.tokenizer)[0]
            own = self.tokenizer.encode(begin, special=False)
            features["prompt_length"] = len(before) + len(own)
        return features

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add ``token_embeddings``, or ``sentence_embedding`` if this module pools."""
        tokens, mask = features["input_ids"], features["attention_mask"]
        if torch.is_grad_enabled() and self.training:
            if self.pooling is not None:
                raise ConfigError(
                    "AttendreTransformer: with pooling= it is made for reading. To train it, leave "
                    "pooling out and add a Pooling module."
                )
            features["token_embeddings"] = self.model.hidden(tokens, mask)
            return features
        model = self.model.model()
        rows = [row[real].tolist() for row, real in zip(tokens, mask.bool(), strict=True)]
        if self.pooling is None:
            features["token_embeddings"] = model.encode(rows)
        else:
            features["sentence_embedding"] = model.embed(
                rows, pooling=self.pooling, batch_size=len(rows)
            )
        return features

    # ---------------------------------------------------------------- files

    def save(
        self, output_path: str, *args: Any, safe_serialization: bool = True, **options: Any
    ) -> None:
        """Save a copy of the checkpoint, the settings, and what training has changed."""
        self.save_config(output_path)
        target = Path(output_path) / _CHECKPOINT
        target.mkdir(exist_ok=True)
        for file in _files_of(self.path):
            shutil.copyfile(file, target / file.name)
        if self.tokenizer_path is not None:
            for file in _files_of(Path(self.tokenizer_path)):
                if file.name.startswith(("tokenizer", "vocab", "spiece", "sentencepiece")):
                    shutil.copyfile(file, target / file.name)
        stored = TrainableModel(
            load(target, None, "torch", dtype=self.dtype, progress=False)
        ).state_dict()
        trained = {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in self.model.state_dict().items()
            if not torch.equal(tensor.detach().cpu(), stored[name])
        }
        if trained:
            save_file(trained, Path(output_path) / _TRAINED)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> Self:
        """Load what `save` wrote, from a folder or a hub."""
        names = ("token", "cache_folder", "revision", "local_files_only")
        hub = {name: options[name] for name in names if name in options}
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub)
        folder = cls.load_dir_path(model_name_or_path, subfolder=subfolder, **hub)
        if folder is None or not (Path(folder) / _CHECKPOINT).is_dir():
            raise CheckpointError(
                f"{model_name_or_path}/{subfolder}: has no folder {_CHECKPOINT}. Save the model "
                "again with SentenceTransformer.save."
            )
        module = cls(Path(folder) / _CHECKPOINT, **config)
        trained = Path(folder) / _TRAINED
        if trained.exists():
            changed: dict[str, Tensor] = load_file(trained)
            module.model.load_state_dict({**module.model.state_dict(), **changed})
        return module


def _files_of(path: Path) -> list[Path]:
    """Return the files of a checkpoint, without those of sentence-transformers."""
    if path.is_file():
        beside = [file for file in path.parent.glob("tok*.bin") if path.suffix == ".bin"]
        return [path, *beside]
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: the checkpoint is not there any more, so it cannot be saved elsewhere."
        )
    files = (file for file in sorted(path.iterdir()) if file.is_file())
    return [file for file in files if file.suffix in _BESIDE and file.name not in _THEIRS]
