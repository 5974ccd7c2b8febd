"""SentencePiece models: ``tokenizer.model``, ``spiece.model``, and Marian's pair of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from attendre_core.errors import CheckpointError
from attendre_core.zoo.config import RawConfig, read_json
from attendre_core.zoo.tokenizers.base import (
    Encoded,
    checked_file,
    in_use,
    needed_package,
    refused_if_broken,
)
from attendre_core.zoo.tokenizers.growth import check_pieces

__all__ = ["MarianTokenizer", "PieceTokenizer", "piece_model", "spans_of_pieces"]

#: T5's places to fill in stand behind its pieces, the last one first.
_BLANKS = 100
_BLANK = re.compile(r"(<extra_id_[0-9]{1,2}>)")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_LANGUAGE = re.compile(r">>[^<>\s]{1,40}<<")


class PieceTokenizer:
    """A SentencePiece model.

    Parameters
    ----------
    file
        ``spiece.model`` (T5: ends with EOS, knows ``<extra_id_0>``) or ``tokenizer.model``
        (Llama, Mistral, Gemma: begins with BOS; a text may spell control pieces such as
        ``</s>``). ``add_bos_token`` and ``add_eos_token`` of a ``tokenizer_config.json`` beside
        it count more.
    """

    def __init__(self, file: Path) -> None:
        self._model = piece_model(file)
        beside = file.with_name("tokenizer_config.json")
        config = RawConfig(read_json(beside) if beside.is_file() else {}, str(beside))
        self._blanks = file.name == "spiece.model"
        bos, eos = self._model.bos_id(), self._model.eos_id()
        begins = config.flag("add_bos_token", not self._blanks) and bos >= 0
        ends = config.flag("add_eos_token", self._blanks) and eos >= 0
        self._before, self._after = [bos] * begins, [eos] * ends
        model = self._model
        control = {} if self._blanks else {
            model.id_to_piece(i): i for i in range(model.get_piece_size()) if model.is_control(i)
        }  # fmt: skip
        self._whole: dict[str, int] = {text: i for text, i in control.items() if text}
        longest_first = sorted(self._whole, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return token ids; ``special`` adds those that the model expects around a text."""
        ids: list[int] = []
        for part in self._parts(text):
            whole = self._token(part)
            if whole is None:
                with in_use(part):
                    ids += self._model.encode(part)
            else:
                ids.append(whole)
        return [*self._before, *ids, *self._after] if special else ids

    def encode_with_offsets(self, text: str) -> Encoded:
        """Return token ids without special ones, and where each is in the text, in characters."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        begin = 0
        for part in self._parts(text):
            whole = self._token(part)
            found = (
                spans_of_pieces(self._model, part) if whole is None else [(whole, "", 0, len(part))]
            )
            ids += [number for number, _, _, _ in found]
            offsets += [(begin + start, begin + end) for _, _, start, end in found]
            begin += len(part)
        return ids, offsets

    def _parts(self, text: str) -> list[str]:
        """Cut a text at what is always one token."""
        split = _BLANK if self._blanks else self._split if self._whole else None
        return [text] if split is None else split.split(text)

    def _token(self, part: str) -> int | None:
        """Return the id of what is always one token; None for other texts."""
        if self._blanks and _BLANK.fullmatch(part):
            return int(self._model.get_piece_size()) + _BLANKS - 1 - int(part[10:-1])
        return self._whole.get(part)

    def decode(self, tokens: list[int]) -> str:
        """Return the text, without special tokens."""
        model = self._model
        known = [t for t in tokens if 0 <= t < model.get_piece_size() and not model.is_control(t)]
        with in_use():
            return str(model.decode(known))


class MarianTokenizer:
    """Two SentencePiece models, for the two languages, that share a numbering of their own.

    Parameters
    ----------
    folder
        Holds ``source.spm``, ``target.spm`` and ``vocab.json``.
    """

    def __init__(self, folder: Path) -> None:
        self._source, self._target = (
            piece_model(folder / "source.spm"),
            piece_model(folder / "target.spm"),
        )
        where = folder / "vocab.json"
        ids = RawConfig(read_json(where), str(where))
        self._ids = {name: ids.size(name, least=0) for name in ids.values}
        self._pieces = {number: piece for piece, number in self._ids.items()}
        for name in ("</s>", "<unk>"):
            if name not in self._ids:
                raise CheckpointError(f"{where}: has no piece {name}, expected one. It is damaged.")
        self._special = {self._ids[n] for n in ("</s>", "<unk>", "<pad>") if n in self._ids}

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return token ids of the source language, with ``special`` also the end.

        ``>>fra<<`` names the target language.
        """
        ids, _ = self.encode_with_offsets(text)
        return [*ids, self._ids["</s>"]] if special else ids

    def encode_with_offsets(self, text: str) -> Encoded:
        """Return token ids without special ones, and where each is in the text, in characters."""
        language, begin = _LANGUAGE.match(text), 0
        pieces = []
        if language is not None and language[0] in self._ids:
            begin = language.end()
            pieces.append((0, language[0], -begin, 0))
        pieces += spans_of_pieces(self._source, text[begin:])
        unknown = self._ids["<unk>"]
        ids = [self._ids.get(piece, unknown) for _, piece, _, _ in pieces]
        return ids, [(begin + start, begin + end) for _, _, start, end in pieces]

    def decode(self, tokens: list[int]) -> str:
        """Return the text of the target language, without special tokens."""
        known = [t for t in tokens if t not in self._special and t in self._pieces]
        with in_use():
            return str(self._target.decode_pieces([self._pieces[t] for t in known]))


def piece_model(file: Path) -> Any:
    """Read a SentencePiece model."""
    sentencepiece = needed_package("sentencepiece", file)
    with refused_if_broken(file):
        # Read here and not by the library, which writes to stderr about a file it cannot open.
        model = sentencepiece.SentencePieceProcessor(model_proto=checked_file(file).read_bytes())
        check_pieces(model)
        return model


def spans_of_pieces(model: Any, text: str) -> list[tuple[int, str, int, int]]:
    """Return the pieces of a text: id, piece, and its first character and the one behind it.

    Of several pieces that spell one character SentencePiece gives it to the last; here all have it.
    """
    encoded = getattr(model, "EncodeAsImmutableProto", None) or model.EncodeAsProto
    with in_use(text):
        pieces = [(p.id, p.piece, p.begin, p.end) for p in encoded(text).pieces]
    if not text.isascii() and encoded("\u00e9").pieces[-1].end == 2:  # it counts bytes of UTF-8
        places = [n for n, character in enumerate(text) for _ in character.encode()]
        places.append(len(text))
        pieces = [(number, piece, places[a], places[b]) for number, piece, a, b in pieces]
    shared, (begin, end) = [], (len(text), len(text))
    for number, piece, start, stop in reversed(pieces):
        if start < stop or piece == _SPACE:
            begin, end = start, stop
        shared.append((number, piece, begin, end))
    return shared[::-1]
