"""A folder of safetensors under CTranslate2's names, with vocabularies in text files.

::

    model.safetensors        encoder/layer_0/self_attention/linear_0/weight, ...
    source_vocabulary.txt    one token per line; or shared_vocabulary.txt for both
    target_vocabulary.txt
    config.json              optional: what shapes cannot tell

All sizes are read from the shapes of the tensors, but for the number of heads, which leaves no
trace there. ``config.json`` may name it and a few more things, with CTranslate2's words:
``num_heads`` (8), ``layer_norm_epsilon`` (1e-5), ``activation`` (relu), ``add_source_bos`` and
``add_source_eos`` (false), ``bos_token`` (<s>), ``eos_token`` (</s>), ``decoder_start_token``
(that of ``bos_token``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attendre_core.errors import CheckpointError
from attendre_core.zoo.config import RawConfig, read_json
from attendre_core.zoo.loading.folder import mapped_tensors, shape_of
from attendre_core.zoo.loading.placing import Stored
from attendre_core.zoo.tokenizers.vocabulary import VocabularyTokenizer

__all__ = ["CTranslateFolder", "is_ctranslate_folder"]

_FIRST = "encoder/layer_0/self_attention/linear_0/weight"
_LARGEST_VOCABULARY = 64 * 2**20


def is_ctranslate_folder(folder: Path) -> bool:
    """Whether a folder names no model type, and its tensors have CTranslate2's names."""
    weights, config = folder / "model.safetensors", folder / "config.json"
    if not weights.is_file():
        return False
    if config.is_file() and RawConfig(read_json(config), str(config)).has("model_type"):
        return False
    return _FIRST in mapped_tensors(weights)


class CTranslateFolder:
    """Weights, inferred configuration and vocabularies of a folder."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._tensors = mapped_tensors(folder / "model.safetensors")
        said: dict[str, Any] = {}
        if (folder / "config.json").is_file():
            file = folder / "config.json"
            said = dict(RawConfig(read_json(file), str(file)).values)
        self.config = RawConfig({"num_heads": 8, **said, **self._sizes()}, self.where)
        source = _vocabulary(folder, "source", self.config.size("encoder_vocabulary"))
        target = _vocabulary(folder, "target", self.config.size("decoder_vocabulary"))
        self.tokenizer: VocabularyTokenizer | None = None
        start, end = self._special(target)
        if source and target:
            first, last = self._special(source)
            self.tokenizer = VocabularyTokenizer(
                source,
                target,
                (first,) if self.config.flag("add_source_bos", False) else (),
                (last,) if self.config.flag("add_source_eos", False) else (),
            )
        if self.config.has("decoder_start_token"):
            start = _place(target, self.config.word("decoder_start_token"), start, self.where)
        ids = {"decoder_start_token_id": start, "eos_token_id": end}
        self.config = RawConfig({**self.config.values, **ids}, self.where)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no such tensor."""
        return shape_of(self.where, name, self._tensors.get(name))

    def read(self, name: str) -> Stored:
        """Return a tensor, mapped."""
        return self._tensors[name]

    def _sizes(self) -> dict[str, Any]:
        sizes: dict[str, Any] = {"model_type": "ctranslate2"}
        for part in ("encoder", "decoder"):
            vocabulary, sizes["d_model"] = self._matrix(f"{part}/embeddings/weight")
            hidden, _ = self._matrix(f"{part}/layer_0/ffn/linear_0/weight")
            layers = 1
            while self.shape(f"{part}/layer_{layers}/ffn/linear_0/weight") is not None:
                layers += 1
            found = {"vocabulary": vocabulary, "ffn_dim": hidden, "layers": layers}
            sizes |= {f"{part}_{name}": size for name, size in found.items()}
        return sizes

    def _matrix(self, name: str) -> tuple[int, int]:
        shape = self.shape(name)
        if shape is None or len(shape) != 2:
            given = "missing" if shape is None else f"of shape {shape}"
            raise CheckpointError(
                f"{self.where}: {name} is {given}, expected a matrix. Download the file again."
            )
        return shape[0], shape[1]

    def _special(self, tokens: tuple[str, ...]) -> tuple[int, int]:
        """Return the ids that begin and end a text."""
        begin = self.config.word("bos_token", "<s>")
        end = self.config.word("eos_token", "</s>")
        return _place(tokens, begin, 1, self.where), _place(tokens, end, 2, self.where)


def _vocabulary(folder: Path, side: str, rows: int) -> tuple[str, ...]:
    """Read a list of tokens, empty if there is none."""
    for file in (folder / f"{side}_vocabulary.txt", folder / "shared_vocabulary.txt"):
        if file.is_file():
            break
    else:
        return ()
    if file.stat().st_size > _LARGEST_VOCABULARY:
        raise CheckpointError(
            f"{file}: {file.stat().st_size} bytes are too many for a vocabulary, expected at "
            f"most {_LARGEST_VOCABULARY}."
        )
    try:
        tokens = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read as text ({error}).") from error
    if len(tokens) > rows:
        raise CheckpointError(
            f"{file}: {len(tokens)} tokens, expected at most {rows}, the rows of the embedding. "
            "Does it belong to this model?"
        )
    return tuple(tokens)


def _place(tokens: tuple[str, ...], token: str, default: int, where: str) -> int:
    """Find the id of a token; without a vocabulary it is the default."""
    if not tokens:
        return default
    if token not in tokens:
        raise CheckpointError(
            f"{where}: the vocabulary has no token {token!r}. Name the right one in config.json: "
            "bos_token, eos_token or decoder_start_token."
        )
    return tokens.index(token)
