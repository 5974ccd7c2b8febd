"""The WordPiece vocabulary of BERT and its relatives: a ``vocab.txt``, one piece per line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attendre_core.errors import CheckpointError
from attendre_core.zoo.config import RawConfig, read_json
from attendre_core.zoo.tokenizers.base import checked_file, needed_package, refused_if_broken
from attendre_core.zoo.tokenizers.fast import FastTokenizer

__all__ = ["wordpiece_of_pieces", "wordpiece_tokenizer"]

_SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "<pad>", "<mask>")
_ENDS, _ENDS_OF_MPNET = ("[CLS]", "[SEP]"), ("<s>", "</s>")


def wordpiece_tokenizer(file: Path) -> FastTokenizer:
    """Build the tokenizer of a ``vocab.txt``: ``[CLS] text [SEP]``.

    Whether letters are lowered and accents dropped is read from ``tokenizer_config.json`` beside
    it; BERT's defaults hold without one.
    """
    try:
        # Not splitlines: some pieces are characters that it takes for the end of a line.
        pieces = checked_file(file).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read as text ({error}).") from error
    beside = file.with_name("tokenizer_config.json")
    config = RawConfig(read_json(beside) if beside.is_file() else {}, str(beside))
    return wordpiece_of_pieces(file, pieces, config)


def wordpiece_of_pieces(
    where: str | Path, pieces: Sequence[str], config: RawConfig
) -> FastTokenizer:
    """Build a tokenizer from a list of pieces and the values of a ``tokenizer_config.json``."""
    tokenizers = needed_package("tokenizers", where)
    ids = {piece: number for number, piece in enumerate(pieces)}
    # MPNet has BERT's pieces between RoBERTa's special tokens.
    ends = _ENDS if "[CLS]" in ids or "<s>" not in ids else _ENDS_OF_MPNET
    for name in ("[UNK]", *ends):
        if name not in ids:
            raise CheckpointError(
                f"{where}: has {len(pieces)} pieces but not {name}, expected the vocabulary of a "
                "BERT model."
            )
    with refused_if_broken(where):
        inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
        inner.normalizer = tokenizers.normalizers.BertNormalizer(
            lowercase=config.flag("do_lower_case", True),
            strip_accents=(
                config.flag("strip_accents", True) if config.has("strip_accents") else None
            ),
            handle_chinese_chars=config.flag("tokenize_chinese_chars", True),
        )
        inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        inner.decoder = tokenizers.decoders.WordPiece()
        inner.add_special_tokens([name for name in (*_SPECIAL, *ends) if name in ids])
        return FastTokenizer(inner, before=[ids[ends[0]]], after=[ids[ends[1]]])
