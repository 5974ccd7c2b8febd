"""Input that arrives over time: feed it, generate from it, save it, restore it elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attendre_core.backend import Array, backend_of
from attendre_core.checks import dtype_named, within_range
from attendre_core.errors import ConfigError
from attendre_core.layer.block import Observer
from attendre_core.memory.encoder_output import EncoderOutputMemory
from attendre_core.memory.report import MemoryReport
from attendre_core.memory.state import Entries
from attendre_core.tree import tree_map
from attendre_core.zoo.alone import Alone, alone
from attendre_core.zoo.blocks import compiled
from attendre_core.zoo.full_attention import GrowingReader
from attendre_core.zoo.generate import generate
from attendre_core.zoo.identity import check_identity, check_windows, identity_of
from attendre_core.zoo.input_kind import InputKind
from attendre_core.zoo.labels import Labels
from attendre_core.zoo.memories import keeps_first
from attendre_core.zoo.outputs import KeepOutputs
from attendre_core.zoo.outside import Stores, fill_stores, saved_stores
from attendre_core.zoo.probing import ProbedStream
from attendre_core.zoo.reader import Hidden, Reader
from attendre_core.zoo.saving import SavedArrays, read_arrays, sorted_queues, write_arrays
from attendre_core.zoo.tokens import last_rows, padded, rows_of, typed_rows, types_apart
from attendre_core.zoo.writer import Writer, write_across, write_after

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["Stream"]

#: A decoder attends to a multiple of this many outputs of the encoder.
_PLACES = 64


class Stream(ProbedStream):
    """A model in the middle of its input.

    Tokens are read in chunks of the memory's length, whatever the pieces in which they arrive,
    and each row by itself: feeding 300 tokens at once or one by one gives the same.
    What does not fill a chunk waits until more arrives, or until something is asked for that
    needs it (`finish`, `generate`).

    Texts may come in pieces, too, cut between words: each piece is tokenised by itself. The special
    tokens that a tokenizer puts before a text (BOS, ``[CLS]``) are read once, before the first
    piece of a row; those that it puts behind a text (``[SEP]``, the end of T5) are read when the
    input is finished (`finish`, `generate`), and never between two pieces.

    Parameters
    ----------
    model
        From `attendre_core.load`.
    batch
        Number of rows.
    observer
        An object that watches what each layer reads, evicts and attends to; or None.

    Attributes
    ----------
    lengths
        Number of tokens that each row was fed.
    """

    def __init__(self, model: Model, batch: int = 1, *, observer: Observer | None = None) -> None:
        self.model, self.batch = model, batch
        self._alone = Alone("Stream")
        self._reader = _reader_of(model, observer)
        self._states = self._reader.start(batch)
        #: Tokens that wait for a full chunk, with their types (`typed_rows`).
        self._pending: list[list[int]] = [[] for _ in range(batch)]
        self._kind = InputKind()
        self._labels = Labels(batch)
        self._asked: list[list[int]] | None = None
        self._keeps: KeepOutputs | None = None
        self._read = np.zeros(batch, dtype=np.int32)
        #: First token of each row with its type, or -1.
        self._first = [-1] * batch
        #: Type of the last token of each row, which what ends a text has too.
        self._type = [0] * batch
        xp = model.backend.xp
        #: Hidden state and position of the last token of each row that came out, on the device.
        self._last = model.array(np.zeros((batch, self._reader.part.dim), np.float32))
        self._last = xp.astype(self._last, dtype_named(xp, model.dtype))
        self._last_at = model.array(np.full(batch, -1, dtype=np.int32))
        self._outputs = _outputs_of(model)
        self._encoded: Any = None
        if self._outputs is not None:
            self._encoded = _empty_outputs(model, self._outputs, batch)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens that each row was fed."""
        return tuple(int(n) + len(p) for n, p in zip(self._read, self._pending, strict=True))

    @alone
    def feed(self, tokens: Any, *, types: Any = None, **labels: Any) -> None:
        """Read more input.

        Parameters
        ----------
        tokens
            A text or token ids for one row, a list of them for more.
        types
            For a model that tells types of tokens apart, such as BERT a question and a passage:
            the type of all these tokens, or a list of one for each row, or of as many as the row
            has tokens. None = 0.
        labels
            Names of what is fed, for `attention_by`: ``feed(text, document="a")``. A text or a
            whole number, or a list of one for each row.
        """
        self._labels.check(labels)
        start = self.lengths
        self._accept(tokens, types)
        for _ in self._full_chunks():
            pass
        self._labels.add(labels, start, self.lengths)

    def read(self, tokens: Any, types: Any = None) -> Iterator[Hidden]:
        """Do what `feed` does, and hand out the hidden states, late by the sum of all N.

        The tokens are checked and taken at once; they are read as the iterator advances, one chunk
        for each `Hidden`, so the memory this takes does not grow with the input. Iterate to the
        end: what an abandoned iterator leaves unread is still in the stream, and whatever is
        called next (`read`, `feed`, `finish`, ...) reads it first, and hands it out if it hands
        out anything.

        Examples
        --------
        >>> from attendre_core.evaluation import load_tiny
        >>> stream = load_tiny("prefix-lm", memory="attendre:32").stream()
        >>> total = 0
        >>> for hidden in stream.read(list(range(3, 30)) * 10):
        ...     total += int(hidden.valid.sum())
        >>> total += sum(int(hidden.valid.sum()) for hidden in stream.finish())
        >>> total
        270
        """
        self._accept(tokens, types)
        return self._full_chunks()

    @alone
    def _accept(self, tokens: Any, types: Any) -> None:
        """Check tokens and let them wait to be read."""
        kind = self._kind.copy()
        vocabulary = self._reader.part.vocabulary
        rows = kind.rows(self.model, "Stream.feed", tokens, vocabulary, self.lengths)
        if len(rows) != self.batch:
            raise ConfigError(
                f"Stream.feed: {len(rows)} rows of tokens, expected {self.batch}. Give each row of "
                "the stream its tokens, an empty list for none."
            )
        within_range(
            "Stream.feed", max(map(sum, zip(self.lengths, map(len, rows), strict=True))) - 1
        )
        rows = typed_rows("Stream.feed", rows, types, vocabulary, self._reader.part.types)
        self._kind = kind
        for number, (row, length) in enumerate(zip(rows, self.lengths, strict=True)):
            self._pending[number].extend(row)
            if row:
                self._first[number] = self._first[number] if length else row[0]
                self._type[number] = row[-1] // vocabulary

    def _full_chunks(self) -> Iterator[Hidden]:
        """Read chunk by chunk, in the same memory for an input of any length."""
        chunk = self._reader.memory.chunk
        while True:
            with self._alone:
                if all(len(pending) < chunk for pending in self._pending):
                    return
                # A row with less than a chunk waits: what it reads must not depend on the others.
                rows = [p[:chunk] if len(p) >= chunk else [] for p in self._pending]
                hidden = self._advance(rows)
            yield hidden

    @alone
    def finish(self) -> list[Hidden]:
        """Read what waits for a full chunk, and let waiting queries out; more may be fed then.

        Texts are ended with the special tokens that the tokenizer puts behind a text, if any.
        """
        vocabulary = self._reader.part.vocabulary
        for number, after in self._kind.end(self.model).items():
            self._pending[number] += [t + self._type[number] * vocabulary for t in after]
        outputs = self._read_pending()
        self._states, rest = self._reader.finish(self._states, int(self._read.max()))
        for hidden in rest:
            self._keep(hidden)
        return outputs + rest

    @alone
    def generate(self, max_new_tokens: int = 32, **options: Any) -> Any:
        """Continue every row; options as in `Model.generate`. More may be fed afterwards.

        What was generated is not read: feed it to make it part of the input.

        Returns
        -------
        Any
            As `Model.generate`: texts if only texts were fed, else token ids; a list if a list
            was fed.
        """
        rows = generate(self.model, self.writer, max_new_tokens, **options)
        return self._kind.answer(self.model, rows, options.get("stop", ()))

    @alone
    def copy(self) -> Stream:
        """Return a stream that has read the same; neither disturbs the other from here on.

        An observer stays with this stream alone.

        Examples
        --------
        >>> from attendre_core.evaluation import load_tiny
        >>> stream = load_tiny("prefix-lm", memory="attendre:32").stream()
        >>> stream.feed([1, 2, 3])
        >>> other = stream.copy()
        >>> other.feed([4])
        >>> stream.lengths, other.lengths
        ((3,), (4,))
        """
        xp = self.model.backend.xp
        twin = copy.copy(self)
        # Steps overwrite their states, on every backend, so each stream needs its own.
        twin._states, twin._encoded, twin._last = tree_map(
            lambda leaf: xp.asarray(leaf, copy=True), (self._states, self._encoded, self._last)
        )
        twin._alone = Alone("Stream")
        twin._reader = _reader_of(self.model, None)
        if isinstance(twin._reader, GrowingReader):
            twin._reader.stack(self._states[0].kv.key.shape[2])
        elif self.stores:
            twin._reader.stores = tuple(store and store.copy() for store in self.stores)
        twin._pending = [list(row) for row in self._pending]
        twin._type, twin._first = list(self._type), list(self._first)
        twin._kind = self._kind.copy()
        twin._labels = self._labels.copy()
        return twin

    @alone
    def first(self) -> Array:
        """Return the hidden state of the first token of each row after all that was fed.

        Waiting queries see N positions of their future; for the summary that a token such as
        ``[CLS]`` makes of a text that is not enough. It is read as any other, so that others can
        attend to it, and here it is asked again: with its queries alone, layer by layer, it
        attends to all that the memories hold, as one more token would. That costs the step of one
        token and changes nothing. What waits is let out first, as by `finish`.

        The memories must still hold it: pin it (``MemoryConfig(pin=((0, 1),))``), or, in a model
        without sliding windows, use sinks; `attendre` has sinks in an encoder. If M and N are at
        least the length of the input, this is what full attention computes.

        Returns
        -------
        array
            (batch, dim).

        Examples
        --------
        >>> from attendre_core.evaluation import load_tiny
        >>> stream = load_tiny("prefix-lm", memory="attendre+sinks=1:32").stream()
        >>> stream.feed([1, 2, 3])
        >>> stream.first().shape
        (1, 64)
        """
        if self.model.causal:
            raise ConfigError(
                "Stream.first: this model reads only forwards, so its first token never sees "
                "another. Take the last one: pooling='last'."
            )
        if not keeps_first(self._reader.part, self.model.used_memory):
            raise ConfigError(
                "Stream.first: the memories may evict the first token, which asks again at the "
                "end. Keep it: MemoryConfig(..., pin=((0, 1),)), or '+sinks=1' in the name of a "
                "memory for a model without sliding windows."
            )
        self._finish_for("Stream.first")
        if min(self._first) < 0:
            raise ConfigError(
                "Stream.first: this stream was saved by a version that did not note its first "
                "token. Read the input again."
            )
        first = np.asarray(self._first, dtype=np.int32)[:, None]
        types, tokens = np.divmod(first, np.int32(self._reader.part.vocabulary))
        return self._reader.again(
            self._states, tokens, np.zeros_like(tokens), int(self._read.max()), types
        ).x[:, 0, :]  # fmt: skip

    @alone
    def next_logits(self) -> Array:
        """Return the logits of the token after the last, (batch, vocabulary)."""
        model = self.model
        if self._outputs is not None:
            return self.writer(1)[1]
        self._finish_for("Stream.next_logits")
        return model.architecture.logits(model.params, self._last[:, None, :])[:, 0, :]

    @alone
    def writer(self, room: int) -> tuple[Writer, Any]:
        """Return a writer that continues from here, and the logits of the first new token."""
        if self._outputs is not None:
            return write_across(self.model, *self.encoded(), room, self._keeps)
        self._finish_for("Stream.generate")
        return write_after(
            self.model, self._reader, self._states, self._read.copy(), self._last, room
        )

    @alone
    def encoded(self) -> tuple[Array, Array]:
        """Return what a decoder attends to: outputs (batch, n, dim), and which are valid."""
        if self._outputs is None:
            raise ConfigError("Stream.encoded: only the stream of an encoder-decoder has it.")
        self._finish_for("Stream.generate")
        held = self._outputs.read(self._encoded)
        # Empty places come first. Most of them are dropped; a few stay, so that there are few
        # lengths to compile for.
        count = min(int(self._read.max()), held.valid.shape[1])
        first = max(held.valid.shape[1] - -(-count // _PLACES) * _PLACES, 0)
        return held.data[:, first:, ...], held.valid[:, first:]

    @alone
    def keep_encoder_outputs(self, share: float, *, layer: int = -1, after: int = 1) -> None:
        """Let what is generated from here on attend across to a share of the encoder's outputs.

        After ``after`` tokens, the share of the outputs that the last of them attends to most, on
        the mean over the heads of one decoder layer, is kept, and the others are dropped for the
        rest of that text (Berchansky et al., 2023). A share of 1 keeps all.

        Parameters
        ----------
        share
            Of each row's outputs, rounded up.
        layer
            The decoder layer whose attention decides.
        after
            How many tokens are generated with all outputs, at least 1.
        """
        if self._outputs is None:
            raise ConfigError(
                "Stream.keep_encoder_outputs: only an encoder-decoder attends across. A memory "
                "keeps a share of what a decoder reads: load it with memory=..."
            )
        keeps = KeepOutputs(share, layer, after)
        self._keeps = None if share == 1 else keeps

    @alone
    def reports(self) -> list[MemoryReport]:
        """Return a report on the memory of each layer."""
        layers = self._reader.stack(int(self._read.max())).layers
        return [
            layer.kv_memory.report(state.kv, warn_below=0.0)
            for layer, state in zip(layers, self._states, strict=True)
        ]

    @property
    def stores(self) -> Stores:
        """Of each layer, what it keeps outside of the device: a `HostStore`, or None."""
        return self._reader.stores or ()

    @alone
    def entries(self) -> list[Entries]:
        """Return what the memory of each layer holds: keys, values, positions and scores."""
        layers = self._reader.stack(int(self._read.max())).layers
        return [
            layer.kv_memory.entries(state.kv)
            for layer, state in zip(layers, self._states, strict=True)
        ]

    # ---------------------------------------------------------------- saving

    @alone
    def save(self, path: str | Path, notes: dict[str, Any] | None = None) -> None:
        """Save everything that is needed to continue in a safetensors file.

        The file is written under another name and then moved, so it is never incomplete.

        Parameters
        ----------
        notes
            What else to note in it, as JSON can hold it.
        """
        if isinstance(self._reader, GrowingReader):
            # This stream and one that is restored from the file must have the same sizes.
            self._states = self._reader.fitted(self._states)
        notes = {
            **(notes or {}),
            **identity_of(self.model),
            "read": self._read.tolist(),
            "last_at": self.model.backend.to_numpy(self._last_at).tolist(),
            "pending": self._pending,
            "types": self._type,
            "first": self._first,
            "input": self._kind.notes(),
            "labels": self._labels.notes(),
        }
        arrays = {**self._arrays, "stores": saved_stores(self.stores)}
        write_arrays(path, arrays, self.model.backend.to_numpy, notes)

    @classmethod
    def restored(cls, model: Model, path: str | Path | SavedArrays) -> Stream:
        """Read a file that `save` wrote, or take its contents."""
        saved = path if isinstance(path, SavedArrays) else read_arrays(path)
        check_identity(model, saved)
        part = model.reading_part
        batch, _ = saved.shape("last", (None, part.dim))
        key = saved.shape("states.0.kv.key", (batch, part.kv_heads, None, part.head_dim))
        if batch < 1:
            raise saved.refused("has no rows")
        reader = _reader_of(model, None)
        if isinstance(reader, GrowingReader):
            reader.stack(key[2])
        else:
            check_windows(model, saved, reader.one_row())
        outputs = _outputs_of(model)
        read = saved.check(
            {
                "states": reader.one_row(),
                "encoded": None if outputs is None else _empty_outputs(model, outputs, 1),
            },
            batch,
        )
        last_at = saved.whole_numbers("last_at", batch, least=-1)
        if (last_at >= read).any():
            raise saved.refused("has a last position that was not read")
        stream = cls(model, batch)
        if isinstance(stream._reader, GrowingReader):
            stream._reader.stack(key[2])
            stream._states = stream._reader.fitted(stream._states)
        saved = fill_stores(stream.stores, stream._states, saved)
        new = saved.fill(stream._arrays, model.backend)
        stream._states, stream._encoded = sorted_queues((new["states"], new["encoded"]))
        stream._last = new["last"]
        stream._read, stream._last_at = read, model.array(last_at)
        if "types" in saved.notes:  # older versions knew one type
            stream._type = saved.whole_numbers("types", stream.batch, least=0).tolist()
            if max(stream._type) >= part.types:
                raise saved.refused(f"has a note types beyond {part.types - 1}")
        if "first" in saved.notes:  # older versions did not ask the first token again
            stream._first = saved.whole_numbers("first", stream.batch, least=-1).tolist()
            if max(stream._first) >= part.vocabulary * part.types:
                raise saved.refused("has a note first that is no token of the model")
        try:
            pending = [
                rows_of("pending", row, part.vocabulary * part.types)[0]
                for row in saved.notes["pending"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise saved.refused("has waiting tokens that are not token ids") from error
        if len(pending) != stream.batch:
            raise saved.refused(f"has waiting tokens of {len(pending)} rows, not {stream.batch}")
        stream._pending = pending
        stream._kind = InputKind.noted(saved, stream.batch)
        stream._labels = Labels.noted(saved, stream.lengths)
        return stream

    @property
    def _arrays(self) -> dict[str, Any]:
        return {"states": self._states, "encoded": self._encoded, "last": self._last}

    # ---------------------------------------------------------------- inside

    def _advance(self, rows: list[list[int]]) -> Hidden:
        """Read the first tokens of each row that waits."""
        tokens, valid = padded(rows, self._reader.memory.chunk)
        tokens, types = types_apart(tokens, self._reader.part.vocabulary)
        position = self._read[:, None] + np.cumsum(valid, axis=1, dtype=np.int32) - 1
        position = np.where(valid, position, 0).astype(np.int32)
        self._states, hidden = self._reader.read(self._states, tokens, position, valid, types)
        self._read = self._read + valid.sum(axis=1, dtype=np.int32)
        for pending, row in zip(self._pending, rows, strict=True):
            del pending[: len(row)]
        self._keep(hidden)
        return hidden

    def _keep(self, hidden: Hidden) -> None:
        """Keep the last hidden state of each row, and the outputs that a decoder will attend to."""
        keep = _keeping_program(self.model.library)
        self._last, self._last_at = keep(self._last, self._last_at, *hidden)
        if self._outputs is not None:
            insert = _inserting_program(self.model.library, self._outputs)
            self._encoded = insert(self._encoded, hidden.x, hidden.position, hidden.valid)

    def _finish_for(self, where: str) -> None:
        if min(self.lengths) == 0:
            raise ConfigError(
                f"{where}: a row of the stream has no tokens yet. Feed every row first."
            )
        self.finish()


def _reader_of(model: Model, observer: Observer | None) -> Reader:
    """Return a reader over the model's memories, or one that keeps everything."""
    part, params = model.reading_part, model.reading_params
    if model.memory is not None:
        return Reader(
            part, params, model.memory, model.library, model.dtype,
            causal=model.causal, observer=observer,
        )  # fmt: skip
    if not model.causal:
        raise ConfigError(
            "Model.stream: a model that looks both ways cannot read a stream without a "
            "memory, because its first output depends on the last token. Load it with "
            "memory=at.preset(...), or use encode."
        )
    return GrowingReader(part, params, model.library, model.dtype, observer=observer)


def _outputs_of(model: Model) -> EncoderOutputMemory | None:
    """Return the memory for what an encoder gives to its decoder; None if there is none."""
    if model.architecture.kind != "encoder-decoder" or model.memory is None:
        return None
    return EncoderOutputMemory(model.memory.encoder_outputs)


def _empty_outputs(model: Model, outputs: EncoderOutputMemory, batch: int) -> Any:
    return outputs.init(
        batch=batch, dim=model.reading_part.dim, xp=model.library, dtype=model.dtype,
        device=model.device,
    )  # fmt: skip


@lru_cache(maxsize=16)
def _keeping_program(library: str) -> Callable[..., Any]:
    """Return ``keep(last, last_at, x, position, valid)``: the newest of each row, if newer."""

    def keep(last: Array, last_at: Array, x: Array, position: Array, valid: Array) -> Any:
        xp = backend_of(x).xp
        place = xp.where(valid, position, xp.full_like(position, -1))
        newest = xp.max(place, axis=1)
        newer = newest > last_at
        rows = last_rows(x, xp.argmax(place, axis=1))
        return xp.where(newer[:, None], rows, last), xp.where(newer, newest, last_at)

    return compiled(library, keep)


@lru_cache(maxsize=64)
def _inserting_program(library: str, memory: EncoderOutputMemory) -> Callable[..., Any]:
    def insert(state: Any, output: Array, position: Array, valid: Array) -> Any:
        return memory.insert(state, output, position, valid)[0]

    return compiled(library, insert, donate=True)
