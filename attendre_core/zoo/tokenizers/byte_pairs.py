"""The byte pairs of RoBERTa: a ``vocab.json``, and a ``merges.txt`` beside it."""

from __future__ import annotations

from pathlib import Path

from attendre_core.errors import CheckpointError
from attendre_core.zoo.config import RawConfig, read_json
from attendre_core.zoo.tokenizers.base import checked_file
from attendre_core.zoo.tokenizers.byte_level import byte_level_tokenizer
from attendre_core.zoo.tokenizers.fast import FastTokenizer

__all__ = ["byte_pair_tokenizer"]

_SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
_ORDINARY, _CONTROL = 1, 3


def byte_pair_tokenizer(folder: Path) -> FastTokenizer:
    """Build the tokenizer of a folder: ``<s> text </s>``."""
    where = folder / "vocab.json"
    ids = RawConfig(read_json(where), str(where))
    numbers = {name: ids.size(name, least=0) for name in ids.values}
    tokens = sorted(numbers, key=lambda name: numbers[name])
    if [numbers[name] for name in tokens] != list(range(len(tokens))):
        raise CheckpointError(
            f"{where}: its {len(tokens)} numbers are not those from 0 to {len(tokens) - 1}. "
            "Download it again."
        )
    for name in _SPECIAL[:2]:
        if name not in numbers:
            raise CheckpointError(
                f"{where}: has no token {name}, expected the vocabulary of a RoBERTa. Other "
                "models are read from their tokenizer.json."
            )
    file = checked_file(folder / "merges.txt")
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read as text ({error}).") from error
    beside = folder / "tokenizer_config.json"
    config = RawConfig(read_json(beside) if beside.is_file() else {}, str(beside))
    prefixed = config.flag("add_prefix_space", False)
    return byte_level_tokenizer(
        str(file),
        tokens,
        [line for line in lines if line and not line.startswith("#version")],
        [_CONTROL if token in _SPECIAL else _ORDINARY for token in tokens],
        "gpt-2-prefixed" if prefixed else "gpt-2",
        [numbers["<s>"]],
        [numbers["</s>"]],
    )
