"""Full attention, without a memory: whole inputs at once, or chunk by chunk, keeping everything."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from attendre_core import ops
from attendre_core.backend import Array, backend_of, wide
from attendre_core.layer.block import Observer
from attendre_core.layer.stack import Stack
from attendre_core.memory.state import grown
from attendre_core.policies import FIFO, Policy
from attendre_core.positions.base import Encoding, Places
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.architectures.base import Cross, Params, Part
from attendre_core.zoo.blocks import compiled, runs_eagerly
from attendre_core.zoo.memories import encoding_of, full_stack
from attendre_core.zoo.reader import Hidden, Reader, States
from attendre_core.zoo.tokens import last_rows, padded, types_apart
from attendre_core.zoo.writer import Writer, write_across, write_after

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["GrowingReader", "Whole", "compiled_length", "full_pass", "layer_program"]

#: Queries are taken this many at a time, so that the logits stay small.
_BLOCK = 512
#: Whole inputs are filled up to a multiple of this where lengths are compiled.
_LENGTH_STEP = 64
#: Slots of a memory without limit at first; doubled whenever they are full.
_FIRST_SIZE = 512


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def full_pass(
    part: Part,
    params: Params,
    tokens: Array,
    valid: Array,
    *,
    causal: bool,
    library: str,
    crosses: list[Cross] | None = None,
    run_layer: Callable[..., Any] = _called,
    types: Array | None = None,
) -> tuple[Array, list[tuple[Array, Array]]]:
    """Run a part over a whole input at once.

    Parameters
    ----------
    tokens, valid
        (batch, length); rows are padded at the end.
    crosses
        For a decoder: keys and values of its cross-attention, one for each layer.
    run_layer
        Calls ``run_layer(function, params, ...)`` for each layer, as in `Stack`.
    types
        Types of the tokens, (batch, length); None = all are of type 0.

    Returns
    -------
    hidden
        (batch, length, dim), after the final norm.
    entries
        Key and value of each layer, (batch, length, kv_heads, head_dim).
    """
    xp = backend_of(tokens).xp
    position = xp.cumulative_sum(xp.astype(valid, xp.int32), axis=1, dtype=xp.int32) - 1
    position = xp.where(valid, position, xp.zeros_like(position))
    given = () if types is None else (types,)
    x = part.embed(params, tokens, position, *given)
    entries = []
    for i in range(part.layers):
        run = layer_program(library, part, encoding_of(part, i), causal)
        cross = None if crosses is None else crosses[i]
        x, key, value = run_layer(run, params["layers"][i], x, position, valid, cross)
        entries.append((key, value))
    return part.final(params, x), entries


@lru_cache(maxsize=256)
def layer_program(library: str, part: Part, encoding: Encoding, causal: bool) -> Callable[..., Any]:
    """Return ``run(params, x, position, valid, cross)``: one layer, compiled if that pays.

    It returns the output of the layer, (batch, length, dim), and its keys and values.
    """

    def run(params: Params, x: Array, position: Array, valid: Array, cross: Cross | None) -> Any:
        query, key, value = part.project(params, x, position)
        blocks = []
        for start in range(0, x.shape[1], _BLOCK):
            stop = min(start + _BLOCK, x.shape[1])
            # Rows are padded at the end, so later places are never in the past.
            seen = stop if causal else x.shape[1]
            queries = (query[:, start:stop, ...], position[:, start:stop], valid[:, start:stop])
            keys = (position[:, :seen], valid[:, :seen])
            entries = (key[:, :seen, ...], value[:, :seen, ...])
            table = part.encoding_params(params)
            blocks.append(_attended(part, encoding, table, causal, queries, entries, keys))
        xp = backend_of(x).xp
        attended = blocks[0] if len(blocks) == 1 else xp.concat(blocks, axis=1)
        return part.finish(params, attended, x, cross), key, value

    return compiled(library, run)


def _attended(
    part: Part,
    encoding: Encoding,
    encoding_params: Any,
    causal: bool,
    queries: tuple[Array, Array, Array],
    entries: tuple[Array, Array],
    keys: tuple[Array, Array],
) -> Array:
    """Attend with some queries to all keys, (batch, seq, heads, head_dim) throughout."""
    (query, at, real), (key, value), (key_at, key_real) = queries, entries, keys
    xp = backend_of(query).xp
    scale = part.head_dim**-0.5 if part.scale is None else part.scale
    rows = wide(ops.grouped(query, key.shape[2])) * scale
    stored, values = (xp.permute_dims(x, (0, 2, 1, 3)) for x in (key, value))
    places = Places(at[:, None, None, :], key_at[:, None, :], real, key_real[:, None, :])
    encoded = encoding.encode(rows, stored, places, encoding_params)
    pairs = ops.Pairs(
        *places, order=places.key, terms=encoded.terms, query_place=encoded.places.query,
        key_place=encoded.places.key, bias=encoded.bias, near=encoded.near, causal=causal,
        scale=scale,
    )  # fmt: skip
    return xp.astype(ops.ungrouped(ops.attend(pairs, values)), query.dtype)


def compiled_length(library: str, length: int) -> int:
    """Return the length to which inputs are padded, so that few lengths are compiled."""
    return length if runs_eagerly(library) else -(-length // _LENGTH_STEP) * _LENGTH_STEP


class Whole:
    """Rows that a model has read as a whole.

    Attributes
    ----------
    hidden
        (batch, n, dim), padding included.
    valid
        Boolean, (batch, n).
    length
        Length of the longest row; ``n`` may be larger.
    """

    def __init__(self, model: Model, rows: list[list[int]]) -> None:
        self._model, self._rows = model, rows
        self.length = max(len(row) for row in rows)
        tokens, valid = padded(rows, compiled_length(model.library, self.length))
        tokens, types = types_apart(tokens, model.reading_part.vocabulary)
        self.valid = model.array(valid)
        self.hidden, self._entries = full_pass(
            model.reading_part, model.reading_params, model.array(tokens), self.valid,
            causal=model.causal, library=model.library,
            types=None if types is None else model.array(types),
        )  # fmt: skip

    def encoded(self) -> tuple[Array, Array]:
        """Return what a decoder attends to: outputs (batch, n, dim), and which are valid."""
        return self.hidden, self.valid

    def writer(self, room: int) -> tuple[Writer, Any]:
        """Return a writer that continues from here, and the logits of the first new token."""
        model = self._model
        if model.architecture.kind == "encoder-decoder":
            return write_across(model, *self.encoded(), room)
        reader = GrowingReader(model.reading_part, model.reading_params, model.library, model.dtype)
        lengths = np.asarray([len(row) for row in self._rows], dtype=np.int32)
        last = last_rows(self.hidden, model.array(lengths.astype(np.int64) - 1))
        states = reader.filled(self._entries, self.valid)
        return write_after(model, reader, states, lengths, last, room)


class GrowingReader(Reader):
    """Full causal attention, chunk by chunk: memories grow with the input, nothing is evicted."""

    def __init__(
        self,
        part: Part,
        params: Params,
        library: str,
        dtype: str,
        *,
        chunk: int = 256,
        observer: Observer | None = None,
    ) -> None:
        memory = MemoryConfig(policy=FIFO(), kv_size=chunk, chunk=chunk, positions="model")
        super().__init__(part, params, memory, library, dtype, causal=True, observer=observer)
        self._size = _FIRST_SIZE

    def stack(self, length: int) -> Stack:
        """Return layers that hold at least ``length`` positions."""
        while self._size < length:
            self._size *= 2
        return full_stack(self.part, self._size, self.library)

    def one_row(self) -> States:
        """Make empty states of one row, for their shapes."""
        return self.start(1)

    def read(
        self, state: States, tokens: Any, position: Any, valid: Any, types: Any = None
    ) -> tuple[States, Hidden]:
        """Make room for the chunk and read it."""
        # Rows may be at different places; the memory counts the entries of the fullest one.
        self.stack(int(position.max()) + 1)
        return super().read(self.fitted(state), tokens, position, valid, types)

    def probe(
        self, state: States, tokens: Any, position: Any, valid: Any, *,
        policy: Policy | None = None, donate: bool = False,
    ) -> tuple[States, Hidden]:  # fmt: skip
        """Let tokens attend to all that was read; nothing needs room."""
        size = self._size
        found = super().probe(
            self.fitted(state), tokens, position, valid, policy=policy, donate=donate
        )
        self._size = size
        return found

    def fitted(self, state: States) -> States:
        """Give states as many slots as the layers have now."""
        missing = self._size - state[0].kv.key.shape[2]
        if missing <= 0:
            self._size = max(self._size, state[0].kv.key.shape[2])
            return state
        return tuple(part._replace(kv=grown(part.kv, missing)) for part in state)

    def filled(self, entries: list[tuple[Array, Array]], valid: Array) -> States:
        """Make states that hold the entries of a whole input, as if it had been read."""
        self._size = max(int(valid.shape[1]), 1)
        stack = self.stack(self._size)
        states = []
        for layer, state, (key, value) in zip(
            stack.layers, self.start(valid.shape[0]), entries, strict=True
        ):
            kv, _ = layer.kv_memory.insert(state.kv, key, value, valid=valid)
            states.append(state._replace(kv=kv))
        return tuple(states)
