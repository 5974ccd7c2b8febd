"""How much longer a tokenizer may make a text: what a hostile file could use to fill all memory.

A ``tokenizer.json`` may replace each character by many, several times over: five such steps of a
hundred characters make ten gigabytes of one letter, and the library that does it aborts the
process. So the steps are multiplied before the tokenizer is used, and what would take endless time
is refused with them: patterns, and the longest word of WordPiece.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

from attendre_core.errors import CheckpointError
from attendre_core.zoo.tokenizers.patterns import check_pattern

__all__ = ["MOST", "check_growth", "check_pieces", "growth_of_characters"]

#: Bytes, or tokens, that may become of one. The tables of SentencePiece have 33 for one ligature,
#: and replacing a space takes another 3.
MOST = 128
#: Characters of a piece. The longest that we know are runs of white space, of about 500.
_LONGEST = 2**13
#: Steps of a sequence. Each may add a little to every character; the longest that we know are lists
#: of some tens of replacements.
_MOST_STEPS = 256
#: Characters of a word of WordPiece, which takes the cube of them. Files say 100.
_LONGEST_WORD = 1000
#: Bytes that become of one by steps without a text of their own: a byte becomes a character, a
#: space a mark.
_OWN_GROWTH = {"ByteLevel": 2, "Metaspace": 4}
_SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")
#: Kinds of fields in protobuf: bytes, and those of fixed length.
_BYTES, _FIXED = 2, {1: 8, 5: 4}


def check_growth(inner: Any) -> None:
    """Refuse a tokenizer of the package tokenizers that makes much more of a text than there is."""
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(inner, name)
        if part is None:
            continue
        step = json.loads(part.__getstate__())
        count = sum(1 for _ in _steps(step))
        if count > _MOST_STEPS:
            raise CheckpointError(
                f"the {name} of the tokenizer has {count} steps, expected at most {_MOST_STEPS}. "
                "Use another tokenizer."
            )
        growth = 1
        for each in _steps(step):
            growth *= _growth(each)
            if isinstance(each.get("pattern"), dict) and "Regex" in each["pattern"]:
                check_pattern(each["pattern"]["Regex"])
        if growth > MOST:
            raise CheckpointError(
                f"the {name} of the tokenizer may make {growth} "
                f"{'tokens' if name == 'post_processor' else 'bytes'} of one, expected at most "
                f"{MOST}: a text would fill all memory. Use another tokenizer."
            )
    longest = getattr(inner.model, "max_input_chars_per_word", 0)
    if longest > _LONGEST_WORD:
        raise CheckpointError(
            f"the tokenizer takes words of {longest} characters apart, expected at most "
            f"{_LONGEST_WORD}: that would take too long. Use another tokenizer."
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


def _steps(step: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part, those of sequences one by one."""
    inner = [each for name in _SEQUENCES for each in step.get(name) or ()]
    for each in inner:
        yield from _steps(each)
    if not inner:
        yield step


def _growth(step: dict[str, Any]) -> int:
    """Return a bound on how many bytes, or tokens, become of one, by the JSON of a step."""
    kind = step.get("type")
    if kind == "Replace":
        pattern, content = step.get("pattern") or {}, len(str(step.get("content")).encode())
        taken = len(str(pattern.get("String", "")).encode())
        # A pattern may match nothing, before each byte.
        return max(-(-content // taken), 1) if taken else content + 1
    if kind == "Prepend":
        return 1 + len(str(step.get("prepend", "")).encode())
    if kind == "TemplateProcessing":
        counts = {name: len(each["ids"]) for name, each in step["special_tokens"].items()}
        return max(
            sum(counts.get(part.get("SpecialToken", {}).get("id"), 1) for part in step[texts])
            for texts in ("single", "pair")
        )
    if kind == "Precompiled":
        return growth_of_characters(base64.b64decode(step.get("precompiled_charsmap") or ""))
    if "" in (step.get("suffix"), step.get("word_delimiter_token")):
        return 2  # nothing is found before each byte, and becomes a space
    return _OWN_GROWTH.get(str(kind), 1)


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
