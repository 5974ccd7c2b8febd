"""The tokens of a document, and those that spans of its characters consist of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError, DTypeError
from attendre_core.zoo.tokenizers.around import around
from attendre_core.zoo.tokenizers.base import Encoded
from attendre_core.zoo.tokenizers.incremental import IncrementalTokenizer
from attendre_core.zoo.tokens import is_single, refuse_other_shapes, rows_of

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["Ids", "Span", "checked_spans", "listed", "tokens_at", "tokens_of"]

#: Tokens that are checked at a time.
_PIECE = 4096
#: Texts with more characters than the first are tokenised as many as the second at a time: a
#: tokenizer takes hundreds of bytes for a token while it works. See `IncrementalTokenizer` for what
#: that may change.
_WHOLE, _SLICE = 2**15, 2**12

#: Token ids, four bytes each.
Ids = NDArray[np.int32]
#: Where something starts and ends, the end exclusive.
Span = tuple[int, int]


def listed(where: str, documents: Any) -> tuple[list[Any], bool]:
    """Return documents as a list, and whether there is but one, which is not in a list."""
    refuse_other_shapes(where, documents)
    if getattr(getattr(documents, "dtype", None), "kind", "") in ("O", "T", "U"):
        documents = documents.tolist()  # texts of NumPy or pandas
    elif not isinstance(documents, Sequence) and not hasattr(documents, "ndim"):
        if not isinstance(documents, Iterable):
            raise DTypeError(
                f"{where}: documents is a {type(documents).__name__}, expected texts or lists of "
                "token ids, or one of these."
            )
        documents = list(documents)
    single = is_single(documents)
    return [documents] if single else list(documents), single


def tokens_of(model: Model, where: str, document: Any, special: bool = True) -> Ids:
    """Return the tokens of a text, or token ids as they are; ``where`` names the document."""
    refuse_other_shapes(where, document)
    if isinstance(document, str):
        if len(document) > _WHOLE:
            return _refuse_none(where, _ids(model, _slices(model, document), special))
        return _refuse_none(where, _array(model.tokens(document, special)))
    if not isinstance(document, Sequence) and not hasattr(document, "tolist"):
        rows_of(where, document, 0)  # refuses it with the reason
    vocabulary = model.reading_part.vocabulary
    pieces = [_array([])]
    for start in range(0, len(document), _PIECE):
        rows = rows_of(where, document[start : start + _PIECE], vocabulary)
        if not is_single(document):
            raise ConfigError(f"{where}: this is a list of lists, expected a text or token ids.")
        pieces.append(_array(rows[0]))
    return _refuse_none(where, np.concatenate(pieces))


def tokens_at(model: Model, where: str, text: str, spans: Sequence[Span]) -> tuple[Ids, list[Span]]:
    """Return the tokens of a text, and the positions of those that touch spans of characters."""
    ids, starts, ends = [], [], []
    for some, offsets in _slices(model, text):
        ids.append((some, ()))
        places = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
        starts.append(places[:, 0])
        ends.append(places[:, 1])
    row = _refuse_none(where, _ids(model, ids, True))
    before = len(around(model.require_tokenizer("embed"))[0])
    start, end = np.concatenate(starts), np.maximum.accumulate(np.concatenate(ends))
    found = []
    for first, stop in spans:
        # The first token that ends behind the start, and the first that begins at the end.
        here = (int(np.searchsorted(end, first, "right")), int(np.searchsorted(start, stop)))
        if not here[0] < here[1]:
            raise ConfigError(
                f"{where} has no tokens at the characters {first} to {stop}: "
                f"{text[first:stop][:40]!r}. Leave such spans out."
            )
        found.append((before + here[0], before + here[1]))
    return row, found


def checked_spans(where: str, spans: Any, document: Sized) -> list[Span]:
    """Return spans of a document, which are (start, end) within it and not empty."""
    what = "characters" if isinstance(document, str) else "tokens"
    if not isinstance(spans, Iterable):
        raise ConfigError(f"{where}: spans is {spans!r}, expected a list of (start, end).")
    found = []
    for given in spans:
        span = tuple(given) if isinstance(given, (tuple, list)) else ()
        if len(span) != 2 or not all(isinstance(x, (int, np.integer)) for x in span):
            raise ConfigError(f"{where}: a span is {given!r}, expected (start, end).")
        if not 0 <= span[0] < span[1] <= len(document):
            raise ConfigError(
                f"{where}: a span is {span!r}, expected 0 <= start < end <= {len(document)}, the "
                f"number of its {what}."
            )
        found.append((int(span[0]), int(span[1])))
    if not found:
        raise ConfigError(f"{where} has no spans. Give it at least one.")
    return found


def _slices(model: Model, text: str) -> Iterator[Encoded]:
    """Tokenise a text, a long one in slices, without special tokens."""
    tokenizer = model.require_tokenizer("embed")
    if len(text) <= _WHOLE:
        yield tokenizer.encode_with_offsets(text)
        return
    incremental = IncrementalTokenizer(tokenizer)
    for start in range(0, len(text), _SLICE):
        yield incremental.feed(text[start : start + _SLICE])
    yield incremental.end()


def _ids(model: Model, slices: Any, special: bool) -> Ids:
    before, after = around(model.require_tokenizer("embed")) if special else ([], [])
    parts = [_array(ids) for ids, _ in slices]
    if not sum(map(len, parts)):
        return _array([])
    return np.concatenate([_array(before), *parts, _array(after)])


def _array(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, dtype=np.int32)


def _refuse_none(where: str, ids: Ids) -> Ids:
    if not len(ids):
        raise ConfigError(
            f"{where} has no tokens, expected at least one. Leave empty documents out."
        )
    return ids
