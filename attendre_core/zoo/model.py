"""A model with its parameters, ready to read and write on one array library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from attendre_core import checks
from attendre_core.backend import Array, Backend, backend
from attendre_core.errors import ConfigError
from attendre_core.layer.stack import in_order
from attendre_core.presets import MemoryConfig, memory_for
from attendre_core.tree import tree_leaves
from attendre_core.zoo.architecture import Architecture, Cross, EncoderDecoder, Params, Part
from attendre_core.zoo.full import full_pass
from attendre_core.zoo.generation import Ending, OnToken, continue_by_beams, continue_rows
from attendre_core.zoo.growing import GrowingReader
from attendre_core.zoo.prepared import PreparedWriter, can_prepare
from attendre_core.zoo.reading import Reader
from attendre_core.zoo.rows import last_rows, padded, rows_of
from attendre_core.zoo.sampling import Sampling
from attendre_core.zoo.stacks import ModelStack, blocks_of, full_stack
from attendre_core.zoo.writing import Writer

if TYPE_CHECKING:
    from attendre_core.zoo.stream import Stream
    from attendre_core.zoo.tokenizers import Tokenizer

__all__ = ["Model"]

#: Whole inputs are filled up to a multiple of this, so that few lengths are compiled.
_LENGTH_STEP = 64


class Model:
    """A model, a memory (or none), and a tokenizer (or none).

    `attendre_core.load` makes one from a checkpoint. The parameters are shared, never changed.

    Parameters
    ----------
    architecture, params
        What it computes, and with which numbers.
    memory
        The memories, as in `load`; None is full attention without any limit.
    library, dtype
        Backend name and dtype of parameters and memories.
    tokenizer
        For text in and out.
    attention
        ``"causal"`` or ``"prefix"``: whether a decoder reads its prompt only backwards, or in
        both directions; None is what the model was made for.
    end
        Token ids that end a text.
    """

    def __init__(
        self,
        architecture: Architecture,
        params: Params,
        *,
        memory: MemoryConfig | str | int | None = None,
        library: str = "numpy",
        dtype: str = "float32",
        tokenizer: Tokenizer | None = None,
        attention: Literal["causal", "prefix"] | None = None,
        end: tuple[int, ...] = (),
    ) -> None:
        if attention not in (None, "causal", "prefix"):
            raise ConfigError(
                f"Model: attention is {attention!r}, expected 'causal', 'prefix' or None."
            )
        if attention is not None and architecture.kind != "decoder":
            raise ConfigError(
                f"Model: attention is {attention!r}, but this is an {architecture.kind}. Only a "
                "decoder can read its prompt in two ways."
            )
        self.architecture, self.params = architecture, params
        self.library, self.dtype, self.tokenizer = library, dtype, tokenizer
        self.attention, self.end = attention, end or architecture.end
        part = self.reading_part
        self.memory = memory_for(
            memory, causal=self.causal, layers=part.layers, kv_heads=part.kv_heads,
            head_dim=part.head_dim, dtype=dtype, heads=part.heads, carry_dim=part.dim,
        )  # fmt: skip
        self.backend: Backend = backend(library)

    def __repr__(self) -> str:
        return f"Model({self.architecture!r}, memory={self.memory!r}, library={self.library!r})"

    # ---------------------------------------------------------------- what it is made of

    @property
    def reading_part(self) -> Part:
        """The part that reads the input."""
        if isinstance(self.architecture, EncoderDecoder):
            return self.architecture.encoder
        return cast(Part, self.architecture)

    @property
    def writing_part(self) -> Part:
        """The decoder of an encoder-decoder, with the top K of its attention across."""
        decoder = cast(EncoderDecoder, self.architecture).decoder
        top_k = None if self.memory is None else self.memory.cross_top_k
        return decoder if top_k is None else replace(decoder, cross_top_k=top_k)

    @property
    def reading_params(self) -> Params:
        """The parameters of the part that reads."""
        both: Params = self.params
        if isinstance(self.architecture, EncoderDecoder):
            both = self.params["encoder"]
        return both

    @property
    def causal(self) -> bool:
        """Whether it reads only backwards."""
        return self.reading_part.causal and self.attention != "prefix"

    @property
    def parameter_count(self) -> int:
        """Numbers in the parameters, shared ones counted once."""
        seen = {id(leaf): int(np.prod(leaf.shape)) for leaf in tree_leaves(self.params)}
        return sum(seen.values())

    def with_memory(self, memory: MemoryConfig | str | int | None) -> Model:
        """Return the same model, parameters shared, with another memory or none."""
        return Model(
            self.architecture, self.params, memory=memory, library=self.library,
            dtype=self.dtype, tokenizer=self.tokenizer, attention=self.attention, end=self.end,
        )  # fmt: skip

    def tokens(self, text: str) -> list[int]:
        """Turn a text into token ids, special ones included."""
        return self._tokenizer("tokens").encode(text)

    def text(self, tokens: Sequence[int]) -> str:
        """Turn token ids into text, special ones left out."""
        return self._tokenizer("text").decode(list(tokens))

    def _tokenizer(self, where: str) -> Tokenizer:
        if self.tokenizer is None:
            raise ConfigError(
                f"Model.{where}: this checkpoint came without a tokenizer. Pass token ids, or put "
                "its tokenizer file beside the weights."
            )
        return self.tokenizer

    # ---------------------------------------------------------------- reading

    def reader(self) -> Reader:
        """Return the part that reads, over its memories."""
        part, params = self.reading_part, self.reading_params
        if self.memory is not None:
            return Reader(part, params, self.memory, self.library, self.dtype, causal=self.causal)
        if not self.causal:
            raise ConfigError(
                "Model.stream: a model that looks both ways cannot read a stream without a "
                "memory, because its first output depends on the last token. Load it with "
                "memory=at.preset(...), or use encode."
            )
        return GrowingReader(part, params, self.library, self.dtype)

    def encode(self, tokens: Any) -> Array:
        """Return the hidden states of the input, (batch, length, dim), in input order.

        Parameters
        ----------
        tokens
            Token ids, or a list of rows of different lengths; or a text.

        Returns
        -------
        array
            Zeros behind the end of a shorter row.
        """
        rows = self._rows("encode", tokens)
        return self._hidden(rows)[0]

    def logits(self, tokens: Any, decoder_tokens: Any = None) -> Array:
        """Return next-token logits for every position, (batch, length, vocabulary).

        Parameters
        ----------
        tokens
            As in `encode`.
        decoder_tokens
            For an encoder-decoder: what the decoder has written so far, its start token
            included.
        """
        rows = self._rows("logits", tokens)
        if isinstance(self.architecture, EncoderDecoder):
            return self._decoder_logits(rows, decoder_tokens)
        if self.architecture.kind == "encoder":
            raise ConfigError(
                "Model.logits: an encoder has no next token. Use encode for its hidden states."
            )
        hidden, _ = self._hidden(rows)
        return self.architecture.logits(self.params, hidden)

    def stream(self, batch: int = 1) -> Stream:
        """Start reading input that arrives over time."""
        from attendre_core.zoo.stream import Stream

        checks.whole_number("Model.stream", "batch", batch, least=1, hint="It counts rows.")
        return Stream(self, batch)

    def restore(self, path: str | Path) -> Stream:
        """Go on from a stream that was saved, on this or on another backend."""
        from attendre_core.zoo.stream import Stream

        return Stream.restored(self, path)

    # ---------------------------------------------------------------- writing

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int = 32,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
        beams: int = 1,
        length_penalty: float = 1.0,
        stop: Sequence[str] = (),
        on_token: OnToken | None = None,
    ) -> Any:
        """Continue a prompt, or answer it.

        Parameters
        ----------
        prompt
            A text, a list of texts, token ids, or a list of rows of token ids of different
            lengths.
        max_new_tokens
            At most so many.
        temperature, top_p, top_k, seed
            0 always takes the likeliest token; otherwise tokens are drawn, the same for the
            same seed on every backend.
        beams, length_penalty
            Search for the likeliest text with so many beams.
        stop
            Texts that end it.
        on_token
            Called with row, token and the text so far, as soon as a token is there.

        Returns
        -------
        Any
            A text for a text, token ids for token ids, a list for a list; without the prompt.
        """
        texts = isinstance(prompt, str) or (
            isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], str)
        )
        rows = self._rows("generate", prompt)
        stream: Stream | _ReadOnce
        if self.memory is None and not self.causal:
            stream = _ReadOnce(self, rows)
        else:
            stream = self.stream(len(rows))
            stream.feed(rows)
        written = self.continue_from(
            stream, max_new_tokens, Sampling(temperature, top_p, top_k), seed=seed, beams=beams,
            length_penalty=length_penalty, stop=tuple(stop), on_token=on_token,
        )  # fmt: skip
        ending = Ending(0, stop=tuple(stop))
        result = [ending.cut(self.text(row)) for row in written] if texts else written
        return result[0] if _is_single(prompt) else result

    def continue_from(
        self,
        stream: Stream | _ReadOnce,
        limit: int,
        sampling: Sampling,
        *,
        seed: int = 0,
        beams: int = 1,
        length_penalty: float = 1.0,
        stop: tuple[str, ...] = (),
        on_token: OnToken | None = None,
    ) -> list[list[int]]:
        """Continue what a stream has read; the stream stays as it is."""
        where = "Model.generate"
        checks.whole_number(where, "max_new_tokens", limit, least=1, hint="32 is the default.")
        checks.whole_number(where, "beams", beams, least=1, hint="1 is no beam search.")
        if beams > 1 and sampling.temperature:
            raise ConfigError(
                f"{where}: beams is {beams} and temperature {sampling.temperature}. Beams look "
                "for the likeliest text: leave the temperature at 0."
            )
        if self.architecture.kind == "encoder":
            raise ConfigError(f"{where}: an encoder writes nothing. Use encode.")
        decode: Callable[[Sequence[int]], str] | None = None
        if self.tokenizer is not None:
            decode = self.text
        elif stop:
            self._tokenizer("generate")
        never = self.architecture.never if isinstance(self.architecture, EncoderDecoder) else ()
        ending = Ending(limit, self.end, stop, never, decode)
        writer, logits = stream.writer(limit)
        if beams > 1:
            return continue_by_beams(writer, logits, ending, beams, length_penalty)
        return continue_rows(writer, logits, ending, sampling, seed, on_token)

    # ---------------------------------------------------------------- inside

    def _rows(self, where: str, tokens: Any) -> list[list[int]]:
        if isinstance(tokens, str):
            tokens = [self.tokens(tokens)]
        elif isinstance(tokens, Sequence) and tokens and isinstance(tokens[0], str):
            tokens = [self.tokens(text) for text in tokens]
        rows = rows_of(f"Model.{where}", tokens, self.reading_part.vocabulary)
        if not rows or not all(rows):
            raise ConfigError(
                f"Model.{where}: a row has no tokens, expected at least one. Leave empty texts out."
            )
        return rows

    def full_hidden(
        self, rows: list[list[int]]
    ) -> tuple[Array, list[tuple[Array, Array]], Array, int]:
        """Read whole rows by full attention: hidden states, entries, which are real, length."""
        length = max(len(row) for row in rows)
        tokens, valid = padded(rows, self._compiled_length(length))
        flags = self.backend.from_numpy(valid)
        hidden, entries = full_pass(
            self.reading_part, self.reading_params, self.backend.from_numpy(tokens), flags,
            causal=self.causal, library=self.library,
        )  # fmt: skip
        return hidden, entries, flags, length

    def _compiled_length(self, length: int) -> int:
        step = _LENGTH_STEP if "compile" in self.backend.capabilities else 1
        return -(-length // step) * step

    def _hidden(self, rows: list[list[int]]) -> tuple[Array, Array]:
        """Return hidden states in input order, and which of them are real."""
        xp = self.backend.xp
        if self.memory is None:
            hidden, _, valid, length = self.full_hidden(rows)
            hidden = xp.where(valid[:, :, None], hidden, xp.zeros_like(hidden))
            return hidden[:, :length, ...], valid[:, :length]
        stream = self.stream(len(rows))
        outputs = [*stream.read(rows), *stream.finish()]
        length = max(len(row) for row in rows)
        _, valid = padded(rows)
        hidden = in_order([(h.x, h.position, h.valid) for h in outputs], len(rows), length)
        return hidden, self.backend.from_numpy(valid)

    def crosses(self, encoded: Array, valid: Array) -> list[Cross]:
        """Project the encoder's output once for every decoder layer."""
        layers = self.params["decoder"]["layers"]
        return [(*self.writing_part.cross_project(layer, encoded), valid) for layer in layers]

    def _decoder_logits(self, rows: list[list[int]], decoder_tokens: Any) -> Array:
        architecture = cast(EncoderDecoder, self.architecture)
        if decoder_tokens is None:
            decoder_tokens = [[architecture.start] for _ in rows]
        written = rows_of("Model.logits", decoder_tokens, architecture.decoder.vocabulary)
        if len(written) != len(rows):
            raise ConfigError(
                f"Model.logits: {len(rows)} rows of tokens but {len(written)} of decoder_tokens, "
                "expected as many. Give each input its own decoder tokens."
            )
        length = max(len(row) for row in written)
        tokens, valid = padded(written, self._compiled_length(length))
        hidden, _ = full_pass(
            self.writing_part, self.params["decoder"], self.backend.from_numpy(tokens),
            self.backend.from_numpy(valid), causal=True, library=self.library,
            crosses=self.crosses(*self._encoded(rows)),
        )  # fmt: skip
        return architecture.logits(self.params, hidden[:, :length, ...])

    def _encoded(self, rows: list[list[int]]) -> tuple[Array, Array]:
        """Return the outputs of the encoder that its decoder attends to, and which are real."""
        if self.memory is None:
            hidden, _, valid, _ = self.full_hidden(rows)
            return hidden, valid
        stream = self.stream(len(rows))
        stream.feed(rows)
        return stream.encoded()

    def writer_across(self, encoded: Array, valid: Array, room: int) -> tuple[Writer, Any]:
        """Start a decoder that attends to an encoder's output; and its first logits."""
        architecture = cast(EncoderDecoder, self.architecture)
        part, params = self.writing_part, self.params["decoder"]
        batch = int(valid.shape[0])
        stack = full_stack(part, room + 1, self.library)
        states = stack.init(
            batch, part.heads, part.kv_heads, part.head_dim, part.dim, self.library, self.dtype
        )
        writer = Writer(
            architecture, part, params, self.params, stack, states,
            blocks_of(part, params, self.crosses(encoded, valid)), np.zeros(batch), own=True,
        )  # fmt: skip
        start = np.full(batch, architecture.start)
        return writer, writer.write(start, np.ones(batch, dtype=bool))

    def writer_after(
        self, reader: Reader, states: Any, lengths: Any, hidden: Array, room: int
    ) -> tuple[Writer, Any]:
        """Go on from what a decoder has read; ``hidden`` is that of each row's last token."""
        inside = self.memory is not None and self.memory.decode == "inside"
        stack = reader.stack(int(np.max(lengths)) + room)
        layers, states = stack.decoding(states, None if inside else room)
        given = (
            self.architecture, reader.part, reader.params, self.params,
            ModelStack(layers.layers, self.library), states, reader.blocks, lengths,
        )  # fmt: skip
        prepare = not inside and can_prepare(self.library, layers.layers, states)
        writer = (PreparedWriter if prepare else Writer)(*given)
        return writer, writer.logits(hidden)


class _ReadOnce:
    """Rows read as a whole by full attention in both directions, ready to be continued."""

    def __init__(self, model: Model, rows: list[list[int]]) -> None:
        self.model, self.rows = model, rows

    def writer(self, room: int) -> tuple[Writer, Any]:
        """Return a writer and the logits of the first token."""
        model = self.model
        hidden, entries, valid, _ = model.full_hidden(self.rows)
        if model.architecture.kind == "encoder-decoder":
            return model.writer_across(hidden, valid, room)
        reader = GrowingReader(model.reading_part, model.reading_params, model.library, model.dtype)
        lengths = np.asarray([len(row) for row in self.rows], dtype=np.int32)
        last = last_rows(model.backend, hidden, lengths - 1)
        return model.writer_after(reader, reader.filled(entries, valid), lengths, last, room)


def _is_single(prompt: Any) -> bool:
    """Whether a prompt is one text or one row of ids, not a list of them."""
    if isinstance(prompt, str):
        return True
    if hasattr(prompt, "ndim"):
        return bool(prompt.ndim == 1)
    return bool(prompt) and isinstance(prompt[0], (int, np.integer))
