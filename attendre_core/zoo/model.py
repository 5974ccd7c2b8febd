"""A model with its parameters on one backend: encode, logits, generate, streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from attendre_core import checks
from attendre_core.backend import Array, Backend, backend
from attendre_core.errors import ConfigError
from attendre_core.layer.block import Observer
from attendre_core.layer.chunks import in_order
from attendre_core.presets import MemoryConfig, memory_for
from attendre_core.tree import tree_leaves
from attendre_core.zoo.architectures.base import Architecture, EncoderDecoder, Params, Part
from attendre_core.zoo.blocks import crosses_of
from attendre_core.zoo.chat_template import ChatTemplate
from attendre_core.zoo.embedding import embed
from attendre_core.zoo.full_attention import Whole, compiled_length, full_pass
from attendre_core.zoo.generate import OnToken, generate
from attendre_core.zoo.heads import Head, head_programs, required
from attendre_core.zoo.memories import shape_of, used_memory
from attendre_core.zoo.overlapping import Overlapping
from attendre_core.zoo.pieces import cut_text, stop_strings
from attendre_core.zoo.pooling import Recipe
from attendre_core.zoo.sequences import rerank, sequence_logits
from attendre_core.zoo.stream import Stream
from attendre_core.zoo.tokenizers.base import check_text
from attendre_core.zoo.tokenizers.finding import FILES
from attendre_core.zoo.tokens import is_single, is_text, padded, rows_of, typed_rows
from attendre_core.zoo.transformers_calls import NEW_TOKENS, generate_as_transformers

if TYPE_CHECKING:
    from attendre_core.zoo.chat import Chat
    from attendre_core.zoo.tokenizers import Tokenizer

__all__ = ["Model"]


class Model:
    """A model with its parameters, and optionally a memory and a tokenizer.

    `attendre_core.load` makes one from a checkpoint. Parameters are shared, never modified.

    Parameters
    ----------
    architecture, params
        What the model computes, and its parameters, nested.
    memory
        The memories, as in `load`; None means full attention, without a limit.
    library, dtype
        Name of the backend, and dtype of parameters and memories.
    tokenizer
        For text in and out.
    attention
        How a decoder reads its prompt: ``"causal"`` or, in both directions, ``"prefix"``; None
        as it was trained.
    end
        Token ids that end a text.
    chat_template
        How the messages of a chat become one text; see `chat`.
    recipe
        How embeddings are made, if the checkpoint says so; see `embed`.
    head
        What `classify` computes, or None; its parameters are ``params["classifier"]``.
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
        chat_template: ChatTemplate | None = None,
        recipe: Recipe | None = None,
        head: Head | None = None,
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
        self.chat_template, self.recipe, self.head = chat_template, recipe, head
        shape = shape_of(self.reading_part, dtype)
        self.memory = memory_for(memory, causal=self.causal, **shape)
        self.backend: Backend = backend(library)
        #: Device of the parameters, on which everything else is made; None = default.
        self.device = self.backend.device_of(tree_leaves(params)[0]) if params else None

    def __repr__(self) -> str:
        memory, used = f"memory={self.memory!r}", self.used_memory
        if used != self.memory:
            memory += f", used_memory={used!r}"
        return f"Model({self.architecture!r}, {memory}, library={self.library!r})"

    # ---------------------------------------------------------------- what it is made of

    @property
    def used_memory(self) -> MemoryConfig | None:
        """The memories that the layers use: ``memory``, adapted to the model; None without one.

        The recommended systems depend on the kind of the model and on its trained length; see
        `attendre_core.presets.adapted`.
        """
        if self.memory is None:
            return None
        return used_memory(self.reading_part, self.memory, causal=self.causal)

    @property
    def reading_part(self) -> Part:
        """The part that reads the input."""
        if isinstance(self.architecture, EncoderDecoder):
            return self.architecture.encoder
        return cast(Part, self.architecture)

    @property
    def writing_part(self) -> Part:
        """The decoder of an encoder-decoder, with the top K of its cross-attention."""
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
        """Whether tokens attend only to earlier ones."""
        return self.reading_part.causal and self.attention != "prefix"

    def array(self, values: Any) -> Array:
        """Return values of NumPy on the device of the parameters."""
        return self.backend.from_numpy(values, device=self.device)

    @property
    def parameter_count(self) -> int:
        """Number of parameters; shared ones count once."""
        seen = {id(leaf): int(np.prod(leaf.shape)) for leaf in tree_leaves(self.params)}
        return sum(seen.values())

    def with_memory(self, memory: MemoryConfig | str | int | None) -> Model:
        """Return the same model, with shared parameters and another memory or none."""
        return Model(
            self.architecture, self.params, memory=memory, library=self.library,
            dtype=self.dtype, tokenizer=self.tokenizer, attention=self.attention, end=self.end,
            chat_template=self.chat_template, recipe=self.recipe, head=self.head,
        )  # fmt: skip

    def tokens(self, text: str, special: bool = True) -> list[int]:
        """Turn a text into token ids; ``special`` adds those that the model expects around it."""
        tokenizer = self.require_tokenizer("tokens")
        check_text("tokens", text)
        return tokenizer.encode(text) if special else tokenizer.encode(text, special=False)

    def text(self, tokens: Sequence[int]) -> str:
        """Turn token ids into a text, without special tokens."""
        return self.require_tokenizer("text").decode(list(tokens))

    def require_tokenizer(self, where: str) -> Tokenizer:
        """Return the tokenizer; without one, raise an error that says what to do."""
        if self.tokenizer is None:
            raise ConfigError(
                f"Model.{where}: this checkpoint came without a tokenizer. Put its file "
                f"({', '.join(FILES)}) beside the weights; or name a folder or file that has it, "
                "with load(..., tokenizer=PATH) in Python and --tokenizer PATH in a shell. In "
                "Python, token ids need none."
            )
        return self.tokenizer

    # ---------------------------------------------------------------- reading

    def encode(self, tokens: Any, types: Any = None) -> Array:
        """Return the hidden states of the input, (batch, length, dim), in input order.

        Parameters
        ----------
        tokens
            Token ids, a list of rows of different lengths, or a text.
        types
            For a model that tells types of tokens apart, such as BERT a question and a passage:
            as many as there are tokens, for each row; None = all are of type 0.

        Returns
        -------
        array
            Zeros after the end of a shorter row.
        """
        return self._hidden(self._rows("encode", tokens), "encode", types)

    def classify(self, tokens: Any, types: Any = None) -> Array:
        """Return the logits of the labels that the model's head knows, ``model.head.labels``.

        Parameters
        ----------
        tokens, types
            As in `encode`.

        Returns
        -------
        array
            For each token, (batch, length, labels), zeros after the end of a shorter row; for
            each sequence, (batch, labels); of the tokens where an answer begins and where it
            ends, (batch, length, 2).
        """
        head = required(self.head, "Model.classify")
        rows = self._rows("classify", tokens)
        if head.kind == "sequence":
            part = self.reading_part
            typed = typed_rows("Model.classify", rows, types, part.vocabulary, part.types)
            return sequence_logits(self, [np.asarray(row, dtype=np.int32) for row in typed])
        logits_of, _ = head_programs(self.library, head)
        hidden, xp = self._hidden(rows, "classify", types), self.backend.xp
        valid = self.array(padded(rows)[1])
        logits = logits_of(self.params, hidden)
        return xp.where(valid[:, :, None], logits, xp.zeros_like(logits))

    def embed(
        self,
        documents: Any,
        pooling: Literal["mean", "cls", "max", "last"] | None = None,
        normalize: bool | None = None,
        spans: Any = None,
        *,
        batch_size: int = 8,
        progress: bool | None = False,
    ) -> Any:
        """Return one vector for each document, or for each span of a document.

        Hidden states are pooled as they come out and then dropped: with a memory, a document of
        any length takes the same space beside its tokens, four bytes each. Every token counts,
        those that the tokenizer adds (``[CLS]``, ``[SEP]``) included, as in sentence-transformers;
        padding never does.

        Parameters
        ----------
        documents
            A text, a list of texts, token ids, or a list of rows of token ids of different
            lengths. The longest are read first; results are in the order given.
        pooling
            ``"mean"`` or ``"max"`` of all positions, the ``"last"`` one, or ``"cls"``, the first.
            None does what the checkpoint's sentence-transformers files (``modules.json``) say,
            with their normalisation; without such files, the mean.
        normalize
            Whether vectors are brought to length one. None: what those files say if ``pooling``
            is None, too; otherwise not.
        spans
            ``(start, end)``, ``end`` exclusive, in a list for one document, or a list of such
            lists: the vector of each is pooled from the states that its tokens have in the whole
            document (late chunking). They count characters of a text, and the tokens that touch
            them belong to the span; of token ids, they count tokens. Spans may overlap.
        batch_size
            Documents that are read at a time, each with its own memories.
        progress
            Whether to show a bar; None shows one on a terminal.

        Returns
        -------
        array
            (documents, dim), and (dim,) for a single one, in float32 or, for such a model,
            float64. With ``spans``: (spans, dim), and a list of these for a list.

        Examples
        --------
        >>> from attendre_core.evaluation import load_tiny
        >>> model = load_tiny("prefix-lm", memory="attendre:32")
        >>> model.embed([[1, 2, 3], [4, 5, 6, 7]]).shape
        (2, 64)
        >>> model.embed(list(range(60)), spans=[(0, 30), (30, 60)]).shape
        (2, 64)
        """
        return embed(self, documents, pooling, normalize, spans, batch_size, progress)

    def rerank(
        self, query: Any, documents: Any, *, batch_size: int = 8, progress: bool | None = False
    ) -> Array:
        """Return how well each document answers a query, as a cross-encoder judges it.

        Query and document are read together, ``[CLS] query [SEP] document [SEP]`` with the types
        that the tokenizer gives them. With a memory, the document may have any length: the
        query is pinned, so that every part of the document meets it, and what the head reads
        (`classify`) is pooled from all of the document. The query's own states depend on the
        document, so each pair is read anew; documents are read in batches.

        Parameters
        ----------
        query, documents
            Texts. Or token ids, with all special tokens: those of the query up to where the
            document begins, which are of type 0, and those of each document, of type 1.
        batch_size
            Documents that are read at a time.
        progress
            Whether to show a bar; None shows one on a terminal.

        Returns
        -------
        array
            (documents,): the logit of a head with one label, or of the second of two; of no
            shape for a single document. Logits, higher is better: neither probabilities nor
            comparable between models.
        """
        return rerank(self, query, documents, batch_size, progress)

    def logits(self, tokens: Any, decoder_tokens: Any = None) -> Array:
        """Return next-token logits for every position, (batch, length, vocabulary).

        Parameters
        ----------
        tokens
            As in `encode`.
        decoder_tokens
            For an encoder-decoder: what the decoder has written so far, including its start
            token.
        """
        rows = self._rows("logits", tokens)
        if isinstance(self.architecture, EncoderDecoder):
            return self._decoder_logits(rows, decoder_tokens)
        if self.architecture.kind == "encoder":
            raise ConfigError(
                "Model.logits: an encoder has no next token. Use encode for its hidden states."
            )
        return self.architecture.logits(self.params, self._hidden(rows))

    def stream(self, batch: int = 1, *, observer: Observer | None = None) -> Stream:
        """Start reading input that arrives over time.

        Parameters
        ----------
        batch
            Number of rows.
        observer
            An object that watches what each layer reads, evicts and attends to; or None.
        """
        checks.whole_number("Model.stream", "batch", batch, least=1, hint="It counts rows.")
        return Stream(self, batch, observer=observer)

    def overlapping(self, tokens: Any, window: int) -> Overlapping:
        """Read an input in windows that overlap by half, for a decoder that attends across.

        As in Unlimiformer (Bertsch et al., 2023): every window is read with full attention, and
        the middle half of its outputs is kept. With a memory such as ``"Unlimiformer+k=64:1024"``
        each head of the decoder attends to its K best outputs.

        Parameters
        ----------
        tokens
            As in `encode`.
        window
            Tokens of a window, a multiple of 4: the longest input that the encoder was trained on
            is a good choice.
        """
        return Overlapping(self, self._rows("overlapping", tokens), window)

    def restore(self, path: str | Path) -> Stream:
        """Continue a stream that was saved, on this or another backend."""
        return Stream.restored(self, path)

    # ---------------------------------------------------------------- talking

    def chat(
        self,
        system: str | None = None,
        *,
        pin_system: bool = False,
        document: str | None = None,
        template: str | None = None,
    ) -> Chat:
        """Start a conversation in the format that the model was trained on.

        Parameters
        ----------
        system
            The system message; None: none, or the template's own.
        pin_system
            Never evict the system message from the memories.
        document
            A text to read first; the same as `Chat.read`.
        template
            A Jinja template in the dialect of transformers, or the name of one of the
            checkpoint's templates; None takes the checkpoint's default.
        """
        from attendre_core.zoo.chat import Chat

        chat = Chat(self, system, pin_system=pin_system, template=template)
        if document is not None:
            chat.read(document)
        return chat

    def restore_chat(self, path: str | Path) -> Chat:
        """Continue a chat that was saved, on this or another backend."""
        from attendre_core.zoo.chat_files import restored_chat

        return restored_chat(self, path)

    # ---------------------------------------------------------------- writing

    def generate(
        self,
        prompt: Any = None,
        max_new_tokens: int | None = None,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
        beams: int | None = None,
        length_penalty: float | None = None,
        stop: str | Sequence[str] = (),
        on_token: OnToken | None = None,
        input_ids: Any = None,
        attention_mask: Any = None,
        **transformers: Any,
    ) -> Any:
        """Continue a prompt, or answer it.

        Parameters
        ----------
        prompt
            A text, a list of texts, token ids, or a list of rows of token ids of different
            lengths.
        max_new_tokens
            Maximum number of new tokens; None is 32.
        temperature, top_p, top_k, seed
            A temperature of 0, the default, always takes the likeliest token. Otherwise tokens are
            sampled: the same ones for the same seed, on every backend.
        beams, length_penalty
            Number of beams in a search for the likeliest text, and the exponent of the length
            by which its log-probability is divided; None is 1.
        stop
            Strings that end the text, which is cut before them.
        on_token
            Called with row, token and the new piece of text for each new token. The pieces of a
            row, joined, are its text: characters and stop strings that are not complete are held
            back, and what was held back when a token ended the row comes in one more call with
            that token. Beams are not told.
        input_ids, attention_mask
            Instead of a prompt, what a tokenizer of transformers returns, padded on either side:
            ``model.generate(**tokenizer(texts, return_tensors="np", padding=True))``.
        transformers
            Keywords of transformers' ``generate``: ``max_length``, ``do_sample``, ``num_beams``,
            ``eos_token_id``, ``pad_token_id``, ``stop_strings``. What has no counterpart here is
            refused by name.

        Returns
        -------
        Any
            Without the prompt: a text for a text, token ids for token ids, a list for a list. For
            ``input_ids``, as in transformers: an integer array of the model's library with the
            input and what was generated, including the token that ended a row, filled up with
            ``pad_token_id``.
        """
        if transformers or input_ids is not None or attention_mask is not None:
            given = {
                "max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k,
                "top_p": top_p, "beams": beams, "length_penalty": length_penalty,
                "stop": stop_strings(stop) or None, **transformers,
            }  # fmt: skip
            return generate_as_transformers(
                self, prompt, input_ids, attention_mask, given, seed=seed, on_token=on_token
            )
        reading = self._read(self._rows("generate", prompt))
        written = generate(
            self, reading.writer, NEW_TOKENS if max_new_tokens is None else max_new_tokens,
            temperature=temperature or 0.0, top_p=1.0 if top_p is None else top_p, top_k=top_k,
            seed=seed, beams=1 if beams is None else beams,
            length_penalty=1.0 if length_penalty is None else length_penalty, stop=stop,
            on_token=on_token,
        )  # fmt: skip
        result = [cut_text(self.text(row), stop) for row in written] if is_text(prompt) else written
        return result[0] if is_single(prompt) else result

    # ---------------------------------------------------------------- inside

    def _rows(self, where: str, tokens: Any) -> list[list[int]]:
        where = f"Model.{where}"
        rows = rows_of(where, tokens, self.reading_part.vocabulary, self.tokens)
        if not rows or not all(rows):
            raise ConfigError(
                f"{where}: a row has no tokens, expected at least one. Leave empty texts out."
            )
        return rows

    def _read(self, rows: list[list[int]]) -> Stream | Whole:
        """Read whole rows; generation continues from the result."""
        if self.memory is None and not self.causal:
            return Whole(self, rows)
        stream = self.stream(len(rows))
        stream.feed(rows)
        return stream

    def _hidden(self, rows: list[list[int]], where: str = "logits", types: Any = None) -> Array:
        """Return hidden states in input order, with zeros after the end of a row."""
        part = self.reading_part
        typed = typed_rows(f"Model.{where}", rows, types, part.vocabulary, part.types)
        if self.memory is None:
            whole = Whole(self, typed)
            hidden = whole.hidden[:, : whole.length, ...]
            real = whole.valid[:, : whole.length, None]
            return self.backend.xp.where(real, hidden, self.backend.xp.zeros_like(hidden))
        stream = self.stream(len(rows))
        outputs = [*stream.read(rows, types), *stream.finish()]
        return in_order(outputs, max(len(row) for row in rows))

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
        part, params = self.writing_part, self.params["decoder"]
        length = max(len(row) for row in written)
        tokens, valid = padded(written, compiled_length(self.library, length))
        hidden, _ = full_pass(
            part, params, self.array(tokens), self.array(valid), causal=True, library=self.library,
            crosses=crosses_of(part, params, *self._read(rows).encoded()),
        )  # fmt: skip
        return architecture.logits(self.params, hidden[:, :length, ...])
