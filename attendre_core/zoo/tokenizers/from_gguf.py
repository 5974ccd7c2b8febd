"""The tokenizer inside a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attendre_core.errors import CheckpointError
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.tokenizers.base import Tokenizer, UnknownTokenizer
from attendre_core.zoo.tokenizers.byte_level import PRE_TOKENIZERS, byte_level_tokenizer
from attendre_core.zoo.tokenizers.fast import FastTokenizer
from attendre_core.zoo.tokenizers.scored import ScoredTokenizer
from attendre_core.zoo.tokenizers.unigram import unigram_tokenizer
from attendre_core.zoo.tokenizers.wordpiece import wordpiece_of_pieces

__all__ = ["tokenizer_of_gguf"]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_WHOLE = (_CONTROL, _USER_DEFINED)
_KEY = "tokenizer.ggml."
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def tokenizer_of_gguf(where: str, metadata: Mapping[str, Any]) -> Tokenizer | None:
    """Build the tokenizer that the metadata describes; None if there is none.

    ``add_bos_token`` and ``add_eos_token`` say what stands around a text; where they are missing,
    llama.cpp's defaults hold: a start for Llama 2 and 3, an end for T5, nothing for others.
    """
    data = RawConfig(metadata, where)
    if not data.has(f"{_KEY}model"):
        return None
    kind = data.word(f"{_KEY}model")
    if kind not in ("gpt2", "llama", "bert", "t5"):
        return UnknownTokenizer(
            f"the tokenizer in {where} is of kind {kind[:40]!r}, expected gpt2, llama, bert or t5."
        )
    tokens = _texts(data, "tokens")
    kinds = _numbers(data, "token_type", len(tokens), _NORMAL)
    if kind == "llama":
        return _scored(data, tokens, kinds)
    if kind == "bert":
        return _wordpiece(data, tokens, kinds)
    if kind == "t5":
        return _unigram(data, tokens, kinds)
    pre = data.word(f"{_KEY}pre", "default")
    if pre not in PRE_TOKENIZERS:
        return UnknownTokenizer(
            f"the tokenizer in {where} cuts texts the way of {pre[:40]!r}, expected one of "
            f"{', '.join(sorted(PRE_TOKENIZERS))}."
        )
    way = PRE_TOKENIZERS[pre]
    before, after = _around(data, len(tokens), begins=way == "llama-bpe")
    whole = [int(number) for number in kinds]
    return byte_level_tokenizer(where, tokens, _texts(data, "merges"), whole, way, before, after)


def _wordpiece(data: RawConfig, tokens: list[str], kinds: Any) -> FastTokenizer:
    """Write pieces the way of BERT again: GGUF marks where words begin, not where they go on.

    Whether letters are lowered is not stored; llama.cpp always lowers them.
    """
    pieces = [
        token if kind == _CONTROL else token[1:] if token.startswith(_SPACE) else f"##{token}"
        for token, kind in zip(tokens, kinds, strict=True)
    ]
    return wordpiece_of_pieces(data.where, pieces, RawConfig({}, data.where))


def _unigram(data: RawConfig, tokens: list[str], kinds: Any) -> FastTokenizer:
    before, after = _around(data, len(tokens), begins=False, ends=True)
    compiled = data.values.get(f"{_KEY}precompiled_charsmap")
    replacements = compiled.astype(np.uint8).tobytes() if isinstance(compiled, np.ndarray) else b""
    found = {kind: np.flatnonzero(kinds == kind).tolist() for kind in (_UNKNOWN, *_WHOLE)}
    return unigram_tokenizer(
        data.where,
        tokens,
        _numbers(data, "scores", len(tokens), 0.0).tolist(),
        unknown=found[_UNKNOWN][0] if found[_UNKNOWN] else None,
        special=found[_UNKNOWN] + found[_CONTROL],
        whole=found[_USER_DEFINED],
        replacements=replacements,
        before=before,
        after=after,
    )


def _scored(data: RawConfig, tokens: list[str], kinds: Any) -> ScoredTokenizer:
    scores = _numbers(data, "scores", len(tokens), 0.0).tolist()
    before, after = _around(data, len(tokens), begins=True)
    of_kind = {
        kind: np.flatnonzero(kinds == kind).tolist()
        for kind in (_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE)
    }
    byte_ids = {}
    for number in of_kind[_BYTE]:
        try:
            byte_ids[int(tokens[number].removeprefix("<0x").removesuffix(">"), 16) & 255] = number
        except ValueError as error:
            raise CheckpointError(
                f"{data.where}: token {number} is {tokens[number][:40]!r}, expected a byte such as "
                "<0x0A>. The file is damaged."
            ) from error
    return ScoredTokenizer(
        tokens,
        scores,
        mergeable=of_kind[_NORMAL] + of_kind[_USER_DEFINED],
        byte_ids=byte_ids,
        space=_SPACE,
        prefix_space=data.flag(f"{_KEY}add_space_prefix", True),
        special=of_kind[_UNKNOWN] + of_kind[_CONTROL],
        whole={tokens[n]: n for n in of_kind[_CONTROL] + of_kind[_USER_DEFINED]},
        unknown=of_kind[_UNKNOWN][0] if of_kind[_UNKNOWN] else None,
        before=before,
        after=after,
    )


def _around(
    data: RawConfig, count: int, *, begins: bool, ends: bool = False
) -> tuple[list[int], list[int]]:
    """Return the ids that stand before and behind every text."""
    around = []
    for name, wanted in (("bos", begins), ("eos", ends)):
        present = data.has(f"{_KEY}{name}_token_id")
        wanted = data.flag(f"{_KEY}add_{name}_token", wanted and present)
        around.append([data.token(f"{_KEY}{name}_token_id", None, count)] if wanted else [])
    return around[0], around[1]


def _texts(data: RawConfig, name: str) -> list[str]:
    value = data.values.get(_KEY + name)
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise CheckpointError(
            f"{data.where}: {_KEY}{name} is {'missing' if value is None else 'no list of texts'}, "
            "expected a list of texts. The file is damaged."
        )
    return value


def _numbers(data: RawConfig, name: str, count: int, default: float) -> Any:
    value = data.values.get(_KEY + name)
    if value is None:
        return np.full(count, default)
    if not isinstance(value, np.ndarray) or value.shape != (count,):
        raise CheckpointError(
            f"{data.where}: {_KEY}{name} does not fit, expected {count} numbers, one for each "
            "token. The file is damaged."
        )
    return value
