"""Named entities and other labels of tokens, as spans of texts of any length."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, get_args, overload

import numpy as np

from attendre_core import checks
from attendre_core.backend import Array
from attendre_core.errors import ConfigError, DTypeError
from attendre_core.zoo.heads import head_programs
from attendre_core.zoo.memories import memory_stack
from attendre_core.zoo.model import Model
from attendre_core.zoo.reader import Hidden
from attendre_core.zoo.spans import Aggregation, Span, SpanDecoder
from attendre_core.zoo.tokenizers.around import around
from attendre_core.zoo.tokenizers.incremental import IncrementalTokenizer

__all__ = ["Tagger"]

#: Characters that are tokenised at once: what a long piece of text becomes takes memory, too.
_SLICE = 4096


class Tagger:
    """Finds the spans that a model for token classification labels; `pipeline` makes one.

    Laws: the spans of a text are the same wherever it is cut into pieces; they come in order, each
    once, and none is missing when the iterator ends. With room for the whole input in the memory
    and in the waiting queries, they are those of full attention.

    Parameters
    ----------
    model
        With a head for token classification, and a tokenizer.
    aggregation
        ``"first"``: a word has the label of its first token, because that is the only one that most
        models were trained to label. ``"simple"``: each token has its own.

    Notes
    -----
    Labels may be in any of the schemes that `attendre_core.zoo.spans.tags_of` lists. A span
    begins and ends with something visible, and is cut after 65,536 characters. Its score is the
    mean probability of the labels that it was made of.

    The names are those of transformers; so are the spans, but for these: its words are those of
    its tokenizer, ours are those of BERT for every tokenizer; it has the schemes BIO and IOB1
    only; and its spans may begin or end with white space, or miss combining marks.
    """

    def __init__(self, model: Model, aggregation: Aggregation = "first") -> None:
        if aggregation not in get_args(Aggregation):
            raise ConfigError(
                f"Tagger: aggregation is {aggregation!r}, expected 'first' or 'simple'."
            )
        if model.head is None or model.head.kind != "token":
            found = "no head" if model.head is None else f"a head of kind {model.head.kind!r}"
            raise ConfigError(
                f"Tagger: the model has {found}, expected one for token classification. Load a "
                "checkpoint whose config.json names such a class, for example "
                "BertForTokenClassification."
            )
        self.model, self.aggregation, self.head = model, aggregation, model.head
        self.tokenizer = model.require_tokenizer("tag")
        self._logits, _ = head_programs(model.library, model.head)
        self._around = around(self.tokenizer)

    def __repr__(self) -> str:
        return f"Tagger({self.model!r}, aggregation={self.aggregation!r})"

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of tokens, as the checkpoint names them."""
        return self.head.labels

    @property
    def delay(self) -> int:
        """How many later tokens are read before a token has its label: the sum of all N.

        Tokens are read in chunks, so up to a chunk more may have to arrive. A span comes out when
        the first token behind it has its label.
        """
        if self.model.memory is None:
            raise ConfigError(
                "Tagger.delay: without a memory there is none, because every token waits for the "
                "last one."
            )
        model = self.model
        part, memory = model.reading_part, model.memory
        return memory_stack(part, memory, model.library, causal=model.causal, far=False).delay

    @overload
    def __call__(self, texts: str | bytes) -> list[Span]: ...
    @overload
    def __call__(self, texts: list[str] | list[bytes] | tuple[str, ...]) -> list[list[Span]]: ...

    def __call__(self, texts: Any) -> Any:
        """Return the spans of a text, or of each text of a list."""
        if isinstance(texts, (str, bytes)):
            return self._spans(texts)
        return [self._spans(text) for text in texts]

    def stream(self, pieces: Iterable[str | bytes]) -> Iterator[Span]:
        """Yield the spans of one text that arrives in pieces, each as soon as it is certain.

        Parameters
        ----------
        pieces
            Texts, or bytes of UTF-8, cut anywhere; an open file will do. What is not UTF-8 becomes
            U+FFFD.

        Yields
        ------
        Span
            With places in the whole stream.
        """
        if self.model.memory is None and not self.model.causal:
            raise ConfigError(
                "Tagger.stream: a model that looks both ways cannot read a stream without a "
                "memory, because its first label depends on the last token. Give the pipeline "
                "memory=512, or call it with a whole text."
            )
        return self._streamed(_texts(pieces))

    def _streamed(self, texts: Iterable[str]) -> Iterator[Span]:
        reading = _Reading(self)
        for hidden in self._hidden(texts, reading):
            yield from reading.add(self._logits(self.model.params, hidden.x), hidden.valid)
        yield from reading.rest()

    def _hidden(self, texts: Iterable[str], reading: _Reading) -> Iterator[Hidden]:
        """Read a text in pieces; yield the hidden states of its tokens, in order."""
        stream = self.model.stream()
        for text in texts:
            for start in range(0, len(text), _SLICE):
                if ids := reading.feed(text[start : start + _SLICE]):
                    yield from stream.read(ids)
        if ids := reading.end():
            yield from stream.read(ids)
        if reading.begun:
            yield from stream.finish()

    def _spans(self, text: str | bytes) -> list[Span]:
        """Return the spans of a whole text."""
        if self.model.memory is not None:
            return list(self._streamed(_texts([text])))
        reading = _Reading(self)
        ids = [token for part in _texts([text]) for token in reading.feed(part)] + reading.end()
        if not ids:
            return []
        return [*reading.add(self.model.classify([ids])), *reading.rest()]


class _Reading:
    """One text on its way through a tagger: which tokens still wait for their labels."""

    def __init__(self, tagger: Tagger) -> None:
        self._numpy = tagger.model.backend.to_numpy
        self._tokens = IncrementalTokenizer(tagger.tokenizer)
        self._spans = SpanDecoder(tagger.labels, tagger.aggregation)
        self._before, self._after = tagger._around
        #: Places of tokens without labels; None for special ones.
        self._waiting: deque[tuple[int, int] | None] = deque()
        self.begun = False

    def feed(self, text: str) -> list[int]:
        """Take a piece of the text; return the tokens to read."""
        ids, offsets = self._tokens.feed(text)
        self._spans.feed(text)
        return self._read(ids, offsets)

    def end(self) -> list[int]:
        """Return the last tokens to read; the text ends here."""
        ids = self._read(*self._tokens.end())
        if self.begun:
            self._waiting.extend([None] * len(self._after))
            ids += self._after
        return ids

    def _read(self, ids: list[int], offsets: list[tuple[int, int]]) -> list[int]:
        if ids and not self.begun:
            self._waiting.extend([None] * len(self._before))
            ids, self.begun = self._before + ids, True
        self._waiting.extend(offsets)
        return ids

    def add(self, logits: Array, valid: Array | None = None) -> Iterator[Span]:
        """Take the logits of the next tokens, (1, n, labels); yield the spans they make certain."""
        rows = np.asarray(self._numpy(logits))[0].astype(np.float64)
        if valid is not None:
            rows = rows[np.asarray(self._numpy(valid))[0]]
        checks.finite_logits("Tagger", rows)
        best = rows.argmax(axis=-1)
        scores = 1 / np.exp(rows - rows.max(axis=-1, keepdims=True)).sum(axis=-1)
        for label, score in zip(best.tolist(), scores.tolist(), strict=True):
            place = self._waiting.popleft()
            if place is not None:
                yield from self._spans.add(*place, label, score)

    def rest(self) -> list[Span]:
        """Return the span that is open at the end."""
        return self._spans.end()


def _texts(pieces: Iterable[str | bytes]) -> Iterator[str]:
    """Decode what is bytes; characters may be cut."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for piece in [pieces] if isinstance(pieces, (str, bytes)) else pieces:
        if isinstance(piece, str):
            yield decoder.decode(b"", final=True) + piece
        elif isinstance(piece, (bytes, bytearray, memoryview)):
            yield decoder.decode(piece)
        else:
            raise DTypeError(
                f"Tagger: a piece is a {type(piece).__name__}, expected a text, or bytes of UTF-8."
            )
    yield decoder.decode(b"", final=True)
