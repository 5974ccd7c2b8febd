"""SentencePiece models whose pieces a model numbers in a way of its own: XLM-R, CamemBERT, DeBERTa.

Fairseq put special tokens before the pieces: piece i of the file is token i + offset.
"""

from __future__ import annotations

from pathlib import Path

from attendre_core.errors import CheckpointError
from attendre_core.zoo.config import RawConfig, read_json
from attendre_core.zoo.tokenizers.base import Encoded, in_use
from attendre_core.zoo.tokenizers.pieces import piece_model, spans_of_pieces

__all__ = ["ShiftedTokenizer", "shifted_tokenizer"]


class ShiftedTokenizer:
    """A SentencePiece model with numbers that are shifted.

    Parameters
    ----------
    file
        The model.
    offset
        What is added to the number of a piece.
    unknown
        Token for what no piece covers.
    before, after
        Ids around a text.
    """

    def __init__(self, file: Path, offset: int, unknown: int, before: int, after: int) -> None:
        self._model = piece_model(file)
        self._offset, self._unknown = offset, unknown
        self._before, self._after = before, after

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return token ids; ``special`` adds those that the model expects around a text."""
        with in_use(text):
            ids = [self._token(piece) for piece in self._model.encode(text)]
        return [self._before, *ids, self._after] if special else ids

    def encode_with_offsets(self, text: str) -> Encoded:
        """Return token ids without special ones, and where each is in the text, in characters."""
        pieces = spans_of_pieces(self._model, text)
        ids = [self._token(piece) for piece, _, _, _ in pieces]
        return ids, [(start, end) for _, _, start, end in pieces]

    def _token(self, piece: int) -> int:
        return self._unknown if piece == self._model.unk_id() else piece + self._offset

    def decode(self, tokens: list[int]) -> str:
        """Return the text, without special tokens."""
        model, special = self._model, {self._before, self._after, self._unknown}
        pieces = [token - self._offset for token in tokens if token not in special]
        size = model.get_piece_size()
        known = [p for p in pieces if 0 <= p < size and not model.is_control(p)]
        with in_use():
            return str(model.decode([p for p in known if not model.is_unknown(p)]))


def shifted_tokenizer(file: Path) -> ShiftedTokenizer:
    """Read ``sentencepiece.bpe.model`` (XLM-R, CamemBERT) or ``spm.model`` (DeBERTa v2 and v3)."""
    if file.name == "spm.model":
        model = piece_model(file)
        first, last = model.piece_to_id("[CLS]"), model.piece_to_id("[SEP]")
        if model.unk_id() in (first, last):
            raise CheckpointError(
                f"{file}: has no pieces [CLS] and [SEP], expected the vocabulary of a DeBERTa."
            )
        return ShiftedTokenizer(file, 0, model.unk_id(), first, last)
    beside = file.with_name("config.json")
    config = RawConfig(read_json(beside) if beside.is_file() else {}, str(beside))
    if config.word("model_type", "") == "camembert":
        model = piece_model(file)
        return ShiftedTokenizer(file, 4, 3, model.bos_id() + 4, model.eos_id() + 4)
    return ShiftedTokenizer(file, 1, 3, 0, 2)
