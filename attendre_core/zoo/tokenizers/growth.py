"""How much longer a tokenizer may make a text: what a hostile file could use to fill all memory.

A ``tokenizer.json`` may replace each character by many, several times over: five such steps of a
hundred characters make ten gigabytes of one letter, and the library that does it aborts the
process. So the steps are added up before the tokenizer is used.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from attendre_core.errors import CheckpointError

__all__ = ["MOST", "check_growth", "check_pieces", "growth_of_characters"]

#: Bytes that may become of one. The tables of SentencePiece have 33 for one ligature, and
#: replacing a space takes another 3.
MOST = 128
#: Characters of a piece. The longest that we know are runs of white space, of about 500.
_LONGEST = 2**13
#: Kinds of fields in protobuf: bytes, and those of fixed length.
_BYTES, _FIXED = 2, {1: 8, 5: 4}


def check_growth(inner: Any) -> None:
    """Refuse a tokenizer of the package tokenizers that makes much more of a text than there is."""
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        part = getattr(inner, name)
        if part is None:
            continue
        growth = _growth(json.loads(part.__getstate__()))
        if growth > MOST:
            raise CheckpointError(
                f"the {name} of the tokenizer may make {growth} bytes of one, expected at most "
                f"{MOST}: a text would fill all memory. Use another tokenizer."
            )
    _check_pieces(inner.get_vocab())


def check_pieces(model: Any) -> None:
    """Refuse a model of SentencePiece that makes much more of a text than there is."""
    spec = _field(_field(model.serialized_model_proto(), 3), 2)
    growth = growth_of_characters(spec)
    if growth > MOST:
        raise CheckpointError(
            f"the table of characters of the tokenizer may make {growth} bytes of one, expected at "
            f"most {MOST}: a text would fill all memory. Use another tokenizer."
        )
    _check_pieces(model.id_to_piece(list(range(model.get_piece_size()))))


def _check_pieces(pieces: Iterable[str]) -> None:
    longest = max(map(len, pieces), default=0)
    if longest > _LONGEST:
        raise CheckpointError(
            f"a piece of the tokenizer has {longest} characters, expected at most {_LONGEST}. Use "
            "another tokenizer."
        )


def _field(message: bytes, number: int) -> bytes:
    """Return the last field of bytes with this number in a message of protobuf."""
    at, found = 0, b""

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < len(message):
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        return value

    while at < len(message):
        key = varint()
        if key & 7 == _BYTES:
            length = varint()
            if key >> 3 == number:
                found = message[at : at + length]
            at += length
        elif key & 7 in _FIXED:
            at += _FIXED[key & 7]
        else:
            varint()
    return found


def _growth(step: Any) -> int:
    """Return a bound on how many bytes become of one, by the JSON of a step."""
    if not isinstance(step, dict):
        return 1
    total = 1
    for name in ("normalizers", "pretokenizers", "decoders"):
        for inner in step.get(name) or ():
            total *= _growth(inner)
    kind = step.get("type")
    if kind == "Replace":
        pattern, content = step.get("pattern") or {}, len(str(step.get("content")).encode())
        taken = len(str(pattern.get("String", "")).encode())
        # A pattern may match nothing, before each byte.
        total *= max(-(-content // taken), 1) if taken else content + 1
    elif kind in ("Prepend", "Strip"):
        total *= 1 + len(str(step.get("prepend", "")).encode())
    elif kind == "Precompiled":
        total *= growth_of_characters(base64.b64decode(step.get("precompiled_charsmap") or ""))
    return total


def growth_of_characters(compiled: bytes) -> int:
    """Return how many bytes a table of SentencePiece makes of one at most.

    The table is a length, a tree of that many bytes, and the replacements with a zero byte behind
    each.

    Examples
    --------
    >>> growth_of_characters((2).to_bytes(4, "little") + b"..one" + bytes(1) + b"three")
    5
    """
    replacements = compiled[4 + int.from_bytes(compiled[:4], "little") :]
    return max(map(len, replacements.split(b"\0")), default=1) or 1
