"""Models of the zoo as ``nn.Module``, to be trained chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from attendre_core import checks
from attendre_core.errors import ConfigError, DTypeError
from attendre_core.layer.chunks import chunks_of, in_order, join
from attendre_core.layer.stack import Stack, StackOutput
from attendre_core.presets import MemoryConfig
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures.base import EncoderDecoder, Params
from attendre_core.zoo.blocks import blocks_of, crosses_of
from attendre_core.zoo.full_attention import full_pass
from attendre_core.zoo.memories import is_far, memory_stack
from attendre_core.zoo.model import Model
from attendre_torch.states import detach
from attendre_torch.training_layers import run_layer, run_layer_again
from attendre_torch.weights import Weights

__all__ = ["Segment", "TrainableModel"]

#: Output (batch, n, C), its places in the input, and which of them are valid, (batch, n).
Piece = tuple[Tensor, Tensor, Tensor]


class Segment(NamedTuple):
    """What `TrainableModel.segments` yields: outputs whose graph starts with the segment.

    Attributes
    ----------
    output
        (batch, n, vocabulary): next-token logits; for an encoder, hidden states (batch, n, dim).
    place
        int64, (batch, n): the place of each output in the input.
    valid
        Boolean, (batch, n): which of them are valid.
    """

    output: Tensor
    place: Tensor
    valid: Tensor


class TrainableModel(nn.Module):  # type: ignore[misc]
    """A model of the zoo as a module.

    Parameters
    ----------
    model
        From ``attendre_core.load(..., backend="torch")`` or `from_transformers`. Its parameters
        are shared, not copied: training changes them.
    checkpoint
        Recompute each layer's step in the backward pass instead of storing its activations.

    Attributes
    ----------
    memory
        The memories, read chunk by chunk; None is full attention. Initially the model's own; may
        be set at any time.
    weights
        The parameters, named as in the architecture.
    """

    def __init__(self, model: Model, *, checkpoint: bool = False) -> None:
        super().__init__()
        if model.library != "torch":
            raise ConfigError(
                f"TrainableModel: the model is on {model.library}, expected PyTorch. Load it with "
                "backend='torch'."
            )
        self._model = model
        self.memory = model.memory
        self.checkpoint = checkpoint
        self.weights = Weights(model.params)

    def extra_repr(self) -> str:
        """Describe the architecture and the memory."""
        return f"{type(self._model.architecture).__name__}, memory={self.memory}"

    def model(self) -> Model:
        """Return a model for inference that shares the current parameters."""
        old = self._model
        return Model(
            old.architecture,
            _detached(self.weights.tree()),
            memory=self.memory,
            library="torch",
            dtype=checks.dtype_name(self._dtype),
            tokenizer=old.tokenizer,
            attention=old.attention,
            end=old.end,
        )

    # ---------------------------------------------------------------- training

    def forward(
        self,
        tokens: Tensor,
        valid: Tensor | None = None,
        *,
        decoder_tokens: Tensor | None = None,
        decoder_valid: Tensor | None = None,
        detach_every: int | None = None,
    ) -> Tensor:
        """Return next-token logits, (batch, length, vocabulary); for an encoder, hidden states.

        Parameters
        ----------
        tokens
            Integer, (batch, length).
        valid
            Boolean, (batch, length): False = padding, which changes nothing.
        decoder_tokens, decoder_valid
            For an encoder-decoder, the decoder's input, including its start token.
        detach_every
            Detach the states after every so many chunks; None never does. `segments` also frees
            the graph in between.
        """
        hidden, valid = self._hidden(tokens, valid, detach_every)
        architecture, params = self._model.architecture, self.weights.tree()
        if isinstance(architecture, EncoderDecoder):
            if decoder_tokens is None:
                raise ConfigError(
                    "TrainableModel: an encoder-decoder needs decoder_tokens, which begin with "
                    f"its start token {architecture.start}."
                )
            decoder, own = architecture.decoder, params["decoder"]
            hidden, _ = full_pass(
                decoder, own, decoder_tokens, _flags(decoder_tokens, decoder_valid),
                causal=True, library="torch",
                crosses=crosses_of(decoder, own, hidden, valid),
            )  # fmt: skip
        return self._out(params, hidden)

    def hidden(
        self, tokens: Tensor, valid: Tensor | None = None, *, detach_every: int | None = None
    ) -> Tensor:
        """Return the hidden states of the input, (batch, length, dim), in input order."""
        return self._hidden(tokens, valid, detach_every)[0]

    def segments(
        self, tokens: Tensor, valid: Tensor | None = None, *, detach_every: int = 1
    ) -> Iterator[Segment]:
        """Read chunk by chunk and yield the outputs of every ``detach_every`` chunks.

        Call ``backward`` on a loss of each segment before requesting the next: then only one
        segment is in memory, however long the input. Gradients do not flow between segments.
        With a Q memory, outputs come late: ``place`` says where they belong.
        """
        if self._model.architecture.kind == "encoder-decoder":
            raise ConfigError(
                "TrainableModel.segments: an encoder-decoder has no outputs before its input "
                "ends. Call the module."
            )
        for pieces in self._pieces(tokens, _flags(tokens, valid), detach_every):
            if pieces:
                x, place, real = join(pieces)
                yield Segment(self._out(self.weights.tree(), x), place.long(), real)

    # ---------------------------------------------------------------- inside

    @property
    def _dtype(self) -> torch.dtype:
        first: torch.dtype = next(self.weights.parameters()).dtype
        return first

    def _out(self, params: Params, hidden: Tensor) -> Tensor:
        architecture = self._model.architecture
        if architecture.kind == "encoder":
            return hidden
        logits: Tensor = architecture.logits(params, hidden)
        return logits

    def _reading_params(self) -> Params:
        params: Params = self.weights.tree()
        if isinstance(self._model.architecture, EncoderDecoder):
            params = params["encoder"]
        return params

    def _hidden(
        self, tokens: Tensor, valid: Tensor | None, detach_every: int | None
    ) -> tuple[Tensor, Tensor]:
        flags = _flags(tokens, valid)
        model = self._model
        if self.memory is not None:
            pieces = [p for group in self._pieces(tokens, flags, detach_every) for p in group]
            return in_order([join(pieces)], tokens.shape[1]), flags
        if detach_every is not None:
            raise ConfigError(
                "TrainableModel: detach_every cuts between chunks, but full attention has none. "
                "Set memory to a MemoryConfig first."
            )
        hidden, _ = full_pass(
            model.reading_part, self._reading_params(), tokens, flags,
            causal=model.causal, library="torch",
        )  # fmt: skip
        return torch.where(flags[:, :, None], hidden, torch.zeros_like(hidden)), flags

    def _pieces(
        self, tokens: Tensor, valid: Tensor, detach_every: int | None
    ) -> Iterator[list[Piece]]:
        """Read through the memories; yield hidden states before each detach and at the end."""
        memory, part = self.memory, self._model.reading_part
        if memory is None:
            raise ConfigError(
                "TrainableModel.segments: full attention has no chunks. Set memory to a "
                "MemoryConfig, e.g. at.preset('LFA-1e-3', kv_size=1024)."
            )
        if detach_every is not None:
            checks.whole_number(
                "TrainableModel", "detach_every", detach_every, least=1,
                hint="It counts chunks; None never cuts.",
            )  # fmt: skip
        params = self._reading_params()
        batch, length = tokens.shape
        stack = self._stack(length)
        place = torch.arange(length, dtype=torch.int32, device=tokens.device).expand(batch, -1)
        position = torch.cumsum(valid, dim=1, dtype=torch.int32) - 1
        position = torch.where(valid, position, torch.zeros_like(position))
        state = stack.init(
            batch=batch, heads=part.heads, kv_heads=part.kv_heads, head_dim=part.head_dim,
            carry_dim=part.dim, xp="torch", dtype=self._dtype, device=tokens.device,
            metadata=(place[:, :1],), chunk=memory.chunk,
        )  # fmt: skip
        pieces: list[Piece] = []

        def keep(out: StackOutput) -> None:
            pieces.append((part.final(params, out.x), out.metadata[0], out.valid))

        chunks = chunks_of((tokens, position, valid, place), memory.chunk, fill=False)
        for number, (ids, at, real, where) in enumerate(chunks):
            if detach_every is not None and number and number % detach_every == 0:
                yield pieces
                params, pieces, state = self._reading_params(), [], detach(state)
            state, out = stack.step(
                state, blocks_of(part, params), part.embed(params, ids, at), at, real,
                metadata=(where,), donate=not torch.is_grad_enabled(),
            )  # fmt: skip
            keep(out)
        if stack.delay:
            blocks = blocks_of(part, params)
            state, rest = stack.finish(state, blocks, memory.chunk, memory.finish)
            for out in rest:
                keep(out)
        yield pieces

    def _stack(self, length: int) -> Stack:
        model, memory = self._model, cast(MemoryConfig, self.memory)
        part = model.reading_part
        layers = memory_stack(
            part, memory, "torch", causal=model.causal, far=is_far(part, length)
        ).layers
        return Stack(layers, run_layer_again if self.checkpoint else run_layer)


def _flags(tokens: Tensor, valid: Tensor | None) -> Tensor:
    """Check tokens and return which of them are valid."""
    if tokens.ndim != 2 or tokens.is_floating_point():
        raise DTypeError(
            f"TrainableModel: tokens has shape {tuple(tokens.shape)} and dtype "
            f"{checks.dtype_name(tokens.dtype)}, expected whole numbers, (batch, length)."
        )
    if valid is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    checks.boolean("TrainableModel", "valid", valid)
    checks.shape(
        "TrainableModel", "valid", valid, "batch, length", tuple(tokens.shape),
        "Give one flag to each token.",
    )  # fmt: skip
    return valid


def _detached(tree: Any) -> Any:
    """Detach nested tensors; a tensor that occurs several times stays one."""
    seen: dict[int, Tensor] = {}

    def leaf(tensor: Tensor) -> Tensor:
        return seen.setdefault(id(tensor), tensor.detach())

    return tree_map(leaf, tree)
