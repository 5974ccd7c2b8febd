"""Zoo models as pure functions of their parameters, for `jax.jit`, `jax.grad` and training.

::

    params, tokens ─► embed ─► layers: full attention, or memories chunk by chunk ─► logits
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp

from attendre_core.backend import Array
from attendre_core.errors import ConfigError
from attendre_core.layer.block import Flow
from attendre_core.layer.chunks import in_order, join
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.architectures.base import Architecture, EncoderDecoder, Params, Part
from attendre_core.zoo.full_attention import layer_program
from attendre_core.zoo.memories import encoding_of, is_far, memory_stack
from attendre_core.zoo.model import Model
from attendre_core.zoo.reader import Hidden
from attendre_jax.chunks import joined_chunks, split_chunks
from attendre_jax.layer_runs import (
    Run,
    drained_runs,
    runs_of,
    stacked_params,
    started_runs,
    through_runs,
)
from attendre_jax.scanning import scan_chunks

__all__ = ["ModelFunctions"]


@dataclass(frozen=True)
class ModelFunctions:
    """What a zoo model computes, as pure functions of nested parameters.

    Hashable and without arrays: a static argument, or a closure.

    Parameters
    ----------
    architecture
        An architecture of the zoo.
    memory
        Memories of fixed size; inputs are read chunk by chunk in a scan. None = full attention.
    attention
        ``"causal"``, ``"prefix"`` (both directions), or None: as the model was trained.
    remat
        Recompute layers, or chunks, in the backward pass instead of keeping their activations.
    truncate
        Gradients flow back over at most this many chunks; None = no limit.
    scan_layers
        Run equal neighbouring layers in one scan, which compiles as fast as one layer.
    far
        Inputs may be longer than the model was trained on, so distances are clamped (see
        `MemoryConfig.positions`); None decides by the length of each call.

    Examples
    --------
    >>> import attendre_core as at
    >>> from attendre_core.zoo.config import RawConfig
    >>> from attendre_core.zoo.architectures import architecture_of
    >>> from attendre_jax import random_parameters
    >>> sizes = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
    ...          "vocab_size": 9, "num_hidden_layers": 2, "num_attention_heads": 2}
    >>> tiny = architecture_of(RawConfig(sizes, "config.json"))
    >>> params = random_parameters(tiny, jax.random.key(0))
    >>> functions = ModelFunctions(tiny, memory=at.preset("LFA-0", kv_size=8, chunk=4))
    >>> jax.jit(functions.logits)(params, jnp.ones((1, 10), dtype=jnp.int32)).shape
    (1, 10, 9)
    """

    architecture: Architecture
    memory: MemoryConfig | None = None
    attention: Literal["causal", "prefix"] | None = None
    remat: bool = True
    truncate: int | None = None
    scan_layers: bool = True
    far: bool | None = None

    @classmethod
    def of(cls, model: Model, **options: Any) -> ModelFunctions:
        """Return the functions of a loaded model; options override its own settings."""
        own = {"memory": model.memory, "attention": model.attention}
        return cls(model.architecture, **{**own, **options})

    # ---------------------------------------------------------------- whole inputs

    def logits(
        self,
        params: Params,
        tokens: Array,
        valid: Array | None = None,
        decoder_tokens: Array | None = None,
    ) -> Array:
        """Return next-token logits, (batch, length, vocabulary).

        Parameters
        ----------
        params
            Nested, as `attendre_core.Model.params` is.
        tokens
            int32, (batch, length).
        valid
            Boolean, (batch, length): rows are padded at the end. None = no padding.
        decoder_tokens
            int32, (batch, any): the decoder input of an encoder-decoder, its start token first.
        """
        hidden = self.hidden(params, tokens, valid)
        if not isinstance(self.architecture, EncoderDecoder):
            return self.architecture.logits(params, hidden)
        if decoder_tokens is None:
            raise ConfigError(
                "ModelFunctions.logits: an encoder-decoder needs decoder_tokens, its start token "
                f"({self.architecture.start}) first."
            )
        decoder, own = self.architecture.decoder, params["decoder"]
        read = (hidden, self._attended_to(_flags(tokens, valid)))
        written = self._full(decoder, own, decoder_tokens, _flags(decoder_tokens, None), True, read)
        return self.architecture.logits(params, written)

    def hidden(self, params: Params, tokens: Array, valid: Array | None = None) -> Array:
        """Return hidden states, (batch, length, dim), in input order; zeros where not valid."""
        flags = _flags(tokens, valid)
        part, own = self._reading(params)
        if self.memory is None:
            x = self._full(part, own, tokens, flags, self._causal, None)
        else:
            x = self._through_memory(part, own, tokens, flags)
        return jnp.where(flags[:, :, None], x, jnp.zeros_like(x))

    # ---------------------------------------------------------------- input that goes on

    def start(self, params: Params, batch: int) -> Any:
        """Make the empty states of all layers, for `read`."""
        part, own = self._reading(params)
        return self._started(part, own, batch, self._memory_runs(part, own, 0))

    def read(
        self, params: Params, state: Any, tokens: Array, valid: Array | None = None
    ) -> tuple[Any, Hidden]:
        """Continue reading from a state; outputs are late by the sum of all N.

        Gradients stop at ``state`` unless it is differentiated, too. Call this on one piece of a
        long input after another for truncated back-propagation in constant memory.

        Parameters
        ----------
        tokens, valid
            (batch, any): read in chunks of the memory's length.

        Returns
        -------
        state
            For the next call.
        hidden
            (batch, any, dim), with position and validity of each.
        """
        part, own = self._reading(params)
        runs = self._memory_runs(part, own, tokens.shape[1])
        state, flow = self._scanned(part, own, runs, state, tokens, _flags(tokens, valid))
        return state, Hidden(part.final(own, flow.x), flow.position, flow.valid)

    def finish(self, params: Params, state: Any) -> tuple[Any, Hidden]:
        """Let all waiting queries out; return the outputs in order."""
        part, own = self._reading(params)
        runs = self._memory_runs(part, own, 0)
        state, flows = self._drained(part, own, runs, state)
        if not flows:
            none = jnp.zeros((_batch_of(state), 0), dtype=jnp.int32)
            x = jnp.zeros((*none.shape, part.dim), dtype=_leaf(own).dtype)
            return state, Hidden(x, none, none > 0)
        flow = join(flows)
        return state, Hidden(part.final(own, flow.x), flow.position, flow.valid)

    # ---------------------------------------------------------------- inside

    @property
    def _causal(self) -> bool:
        part = cast(Any, self.architecture)
        reading: Part = part.encoder if isinstance(part, EncoderDecoder) else part
        return reading.causal and self.attention != "prefix"

    def _reading(self, params: Params) -> tuple[Part, Params]:
        if isinstance(self.architecture, EncoderDecoder):
            return self.architecture.encoder, params["encoder"]
        return cast(Part, self.architecture), params

    def _attended_to(self, valid: Array) -> Array:
        """Leave the decoder the last O outputs of each row, as the encoder-output memory does."""
        if self.memory is None:
            return valid
        number = jnp.cumsum(valid, axis=1)
        return valid & (number > number[:, -1:] - self.memory.encoder_outputs)

    def _full(
        self,
        part: Part,
        params: Params,
        tokens: Array,
        valid: Array,
        causal: bool,
        read: tuple[Array, Array] | None,
    ) -> Array:
        """Run a part over whole inputs; ``read`` is an encoder's output, for its decoder."""
        position = jnp.where(valid, jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1, 0)
        x = part.embed(params, tokens, position)
        kinds = [encoding_of(part, i) for i in range(part.layers)]
        runs = runs_of(kinds, params, scan=self.scan_layers)
        for run, own in zip(runs, stacked_params(runs, params), strict=True):
            program = layer_program("jax", part, run.kind, causal)

            def one(x: Array, layer: Params, program: Any = program) -> tuple[Array, None]:
                cross = None if read is None else (*part.cross_project(layer, read[0]), read[1])
                return program(layer, x, position, valid, cross)[0], None

            step = jax.checkpoint(one, prevent_cse=run.alone) if self.remat else one
            x, _ = step(x, own) if run.alone else jax.lax.scan(step, x, own)
        return part.final(params, x)

    def _memory_runs(self, part: Part, params: Params, length: int) -> list[Run]:
        if self.memory is None:
            raise ConfigError(
                "ModelFunctions: reading a stream needs a memory. Make it with "
                "memory=at.preset(...), or use logits or hidden on whole inputs."
            )
        far = is_far(part, length) if self.far is None else self.far
        stack = memory_stack(part, self.memory, "jax", causal=self._causal, far=far)
        return runs_of(stack.layers, params, scan=self.scan_layers)

    def _started(self, part: Part, params: Params, batch: int, runs: list[Run]) -> Any:
        memory = cast(MemoryConfig, self.memory)
        place = jnp.zeros((batch, 1), dtype=jnp.int32)
        longest = max(memory.chunk, memory.q_size if memory.finish == "flush" else 0)

        def init(layer: Any) -> Any:
            return layer.init(
                batch=batch, heads=part.heads, kv_heads=part.kv_heads, head_dim=part.head_dim,
                carry_dim=part.dim, xp="jax", dtype=_leaf(params).dtype, metadata=(place,),
                chunk=longest,
            )  # fmt: skip

        return started_runs(runs, init)

    def _scanned(
        self, part: Part, params: Params, runs: list[Run], state: Any, tokens: Array, valid: Array
    ) -> tuple[Any, Flow]:
        """Read whole inputs chunk by chunk; metadata is the place of each token in the input."""
        memory = cast(MemoryConfig, self.memory)
        own = stacked_params(runs, params)
        place = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)

        def step(state: Any, chunk: tuple[Array, Array, Array]) -> tuple[Any, Flow]:
            tokens, valid, place = chunk
            clock = state[0].kv.clock if runs[0].alone else state[0].kv.clock[0]
            position = clock[:, None] + jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1
            x = part.embed(params, tokens, jnp.where(valid, position, 0))
            return through_runs(part, runs, own, state, Flow(x, position, valid, None, (place,)))

        chunks = split_chunks((tokens, valid, place), memory.chunk)
        state, flows = scan_chunks(step, state, chunks, remat=self.remat, truncate=self.truncate)
        return state, joined_chunks(flows)

    def _drained(
        self, part: Part, params: Params, runs: list[Run], state: Any
    ) -> tuple[Any, list[Flow]]:
        memory = cast(MemoryConfig, self.memory)
        length = None if memory.finish == "flush" else memory.chunk
        return drained_runs(part, runs, stacked_params(runs, params), state, length)

    def _through_memory(self, part: Part, params: Params, tokens: Array, valid: Array) -> Array:
        batch, length = tokens.shape
        runs = self._memory_runs(part, params, length)
        state = self._started(part, params, batch, runs)
        state, flow = self._scanned(part, params, runs, state, tokens, valid)
        if all(run.kind.q_memory is None for run in runs):
            return part.final(params, flow.x[:, :length])
        _, rest = self._drained(part, params, runs, state)
        flow = join([flow, *rest])
        x = in_order([(flow.x, flow.metadata[0], flow.valid)], length)
        return part.final(params, x)


def _flags(tokens: Array, valid: Array | None) -> Array:
    return jnp.ones(tokens.shape, dtype=bool) if valid is None else valid


def _leaf(params: Params) -> Array:
    """Return a parameter of the layers, for its dtype."""
    return jax.tree.leaves(params["layers"])[0]


def _batch_of(state: Any) -> int:
    return int(state[0].kv.clock.shape[-1])
