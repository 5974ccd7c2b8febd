"""The tokenizer beside a llama2.c file: ``tok512.bin`` or ``tokenizer.bin``.

::

    longest piece │ score  length  bytes │ score  length  bytes │ ...
"""

from __future__ import annotations

import struct
from pathlib import Path

from attendre_core.errors import CheckpointError
from attendre_core.zoo.tokenizers.base import checked_file
from attendre_core.zoo.tokenizers.scored import ScoredTokenizer

__all__ = ["tokenizer_beside"]

_UNKNOWN, _BEGIN, _END, _FIRST_BYTE = 0, 1, 2, 3
_FIRST_PIECE = _FIRST_BYTE + 256


def tokenizer_beside(model: Path, vocabulary: int) -> ScoredTokenizer | None:
    """Find the tokenizer of a llama2.c file in its folder, by the size of its vocabulary."""
    found = [*sorted(model.parent.glob("tok*.bin"))]
    broken: CheckpointError | None = None
    for file in found:
        if file == model:
            continue
        try:
            pieces, scores = _read(file)
        except CheckpointError as error:
            broken = error
            continue
        if len(pieces) == vocabulary:
            return _built(file, pieces, scores)
    if broken is not None:
        raise broken
    return None


def _read(file: Path) -> tuple[list[bytes], list[float]]:
    """Read all pieces; no length in the file is believed."""
    data = checked_file(file).read_bytes()
    pieces, scores, at = [], [], 4
    while at < len(data):
        if at + 8 > len(data):
            break
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        if length < 0 or at + length > len(data):
            at = len(data) + 1
            break
        pieces.append(data[at : at + length])
        scores.append(score)
        at += length
    if at != len(data):
        raise CheckpointError(
            f"{file}: piece {len(pieces)} does not fit into the {len(data)} bytes of the file. It "
            "is truncated, damaged, or no tokenizer of llama2.c."
        )
    return pieces, scores


def _built(file: Path, pieces: list[bytes], scores: list[float]) -> ScoredTokenizer:
    try:
        texts = [piece.decode("utf-8") for piece in pieces]
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file}: a piece is not UTF-8. It is damaged.") from error
    if len(texts) < _FIRST_PIECE:
        raise CheckpointError(
            f"{file}: has {len(texts)} pieces, expected at least {_FIRST_PIECE}: three special "
            "ones and a byte each for 0 to 255."
        )
    return ScoredTokenizer(
        texts,
        scores,
        mergeable=range(_FIRST_PIECE, len(texts)),
        byte_ids={byte: _FIRST_BYTE + byte for byte in range(256)},
        prefix_space=True,
        special=(_UNKNOWN, _BEGIN, _END),
        unknown=_UNKNOWN,
        before=(_BEGIN,),
    )
