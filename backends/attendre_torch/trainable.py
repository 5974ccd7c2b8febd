"""Models of the zoo as ``nn.Module``: parameters that optimisers see, training over chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.layer.chunks import chunks_of, in_order, join
from attendre_core.layer.stack import Stack, StackOutput
from attendre_core.presets import MemoryConfig
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures.base import EncoderDecoder, Params
from attendre_core.zoo.blocks import blocks_of, crosses_of
from attendre_core.zoo.full_attention import full_pass
from attendre_core.zoo.memories import is_far, memory_stack
from attendre_core.zoo.model import Model
from attendre_torch.like_transformers import LikeTransformers
from attendre_torch.states import detach
from attendre_torch.training_input import check_labels, compacted, flags, refuse
from attendre_torch.training_layers import run_layer, run_layer_again
from attendre_torch.training_output import (
    Segment,
    TrainingOutput,
    loss_of,
    next_tokens,
    shifted_right,
)
from attendre_torch.weights import Weights

__all__ = ["TrainableModel"]

#: Output (batch, n, C), its places in the input, and which of them are real, (batch, n).
Piece = tuple[Tensor, Tensor, Tensor]


class TrainableModel(LikeTransformers, nn.Module):  # type: ignore[misc]
    """A model of the zoo as a module, to be trained by hand or by ``transformers.Trainer``.

    Parameters
    ----------
    model
        From ``attendre_core.load(..., backend="torch")`` or `from_transformers`. Its parameters
        are shared, not copied: training changes them.
    checkpoint
        Recompute each layer's step in the backward pass instead of keeping its activations.

    Attributes
    ----------
    memory
        What it reads through, chunk by chunk; None is full attention. It is the model's at
        first, and may be set at any time, also to a name such as ``"attendre-causal:1024"``.
    weights
        The parameters under the names that the architecture gives them. Linear maps are
        ``nn.Linear``, such as ``weights.layers.0.q``, to which peft can attach adapters.
    """

    def __init__(self, model: Model, *, checkpoint: bool = False) -> None:
        super().__init__()
        if not isinstance(model, Model):
            raise ConfigError(
                f"TrainableModel: model is a {type(model).__name__}, expected a Model. A model of "
                "transformers goes through from_transformers first; one with adapters trains as "
                "it is inside of bounded(model, memory)."
            )
        if model.library != "torch":
            raise ConfigError(
                f"TrainableModel: the model is on {model.library}, expected PyTorch. Load it with "
                "backend='torch'."
            )
        self._model, self._memory = model, model.memory
        self.checkpoint = checkpoint
        self.weights = Weights(model.params)

    @property
    def memory(self) -> MemoryConfig | None:
        """What it reads through; may be set to anything that `load` takes."""
        return self._memory

    @memory.setter
    def memory(self, memory: MemoryConfig | str | int | None) -> None:
        self._memory = self._model.with_memory(memory).memory

    def extra_repr(self) -> str:
        """Say what it is and what it remembers."""
        return f"{type(self._model.architecture).__name__}, memory={self.memory}"

    def model(self) -> Model:
        """Return the model for inference: the parameters as they are now, shared.

        Linear maps with an adapter are merged copies.
        """
        old = self._model
        return Model(
            old.architecture, _detached(self.weights.tensors()), memory=self.memory,
            library="torch", dtype=checks.dtype_name(self._dtype), tokenizer=old.tokenizer,
            attention=old.attention, end=old.end,
        )  # fmt: skip

    # ---------------------------------------------------------------- training

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        detach_every: int | None = None,
        **others: Any,
    ) -> TrainingOutput:
        """Return logits, and the loss of ``labels``, as models of transformers do.

        Parameters
        ----------
        input_ids
            Integer, (batch, length).
        attention_mask
            (batch, length): 0 or False = padding, on either side, which changes nothing.
        labels
            Integer, (batch, length): of a decoder, mostly a copy of ``input_ids``; it is shifted
            here, so that each position predicts the next one. Of an encoder-decoder, what the
            decoder should write. -100 does not count.
        decoder_input_ids, decoder_attention_mask
            For an encoder-decoder, what the decoder reads, its start token included; by default
            ``labels`` after the start token.
        num_items_in_batch
            The sum of the loss is divided by this number; None takes the mean.
        detach_every
            Cut the graph after so many chunks; None never does. `segments` also frees the graph
            in between.
        **others
            Further arguments of transformers' models, as long as they are None or False.
        """
        refuse(others)
        architecture, params = self._model.architecture, self.weights.tree()
        if architecture.kind == "encoder" and labels is not None:
            raise ConfigError(
                "TrainableModel: an encoder has no loss of its own. Call it without labels, and "
                "compute a loss from last_hidden_state."
            )
        hidden, valid = self._hidden(input_ids, attention_mask, detach_every)
        if architecture.kind == "encoder":
            return TrainingOutput(last_hidden_state=hidden)
        wanted = labels
        if isinstance(architecture, EncoderDecoder):
            if decoder_input_ids is None and labels is not None:
                decoder_input_ids = shifted_right(labels, architecture.start)
            if decoder_input_ids is None:
                raise ConfigError(
                    "TrainableModel: an encoder-decoder needs labels, or decoder_input_ids, which "
                    f"begin with its start token {architecture.start}."
                )
            decoder, own = architecture.decoder, params["decoder"]
            hidden, _ = full_pass(
                decoder, own, decoder_input_ids,
                flags("decoder_input_ids", decoder_input_ids, decoder_attention_mask),
                causal=True, library="torch",
                crosses=crosses_of(decoder, own, hidden, valid),
            )  # fmt: skip
        elif labels is not None:
            check_labels(labels, tuple(input_ids.shape))
            wanted = next_tokens(labels, valid)
        logits = architecture.logits(params, hidden)
        if wanted is None:
            return TrainingOutput(logits=logits)
        return TrainingOutput(loss=loss_of(logits, wanted, num_items_in_batch), logits=logits)

    def hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        detach_every: int | None = None,
    ) -> Tensor:
        """Return the hidden states of the input, (batch, length, dim), in input order."""
        return self._hidden(input_ids, attention_mask, detach_every)[0]

    def segments(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, detach_every: int = 1
    ) -> Iterator[Segment]:
        """Read chunk by chunk and hand out what came out after every ``detach_every`` chunks.

        Call ``backward`` on a loss of each segment before asking for the next: then only one
        segment is held, however long the input. Gradients do not flow from one into another.
        With a Q memory outputs come late: ``place`` says where they belong.
        """
        if self._model.architecture.kind == "encoder-decoder":
            raise ConfigError(
                "TrainableModel.segments: an encoder-decoder has no outputs before its input "
                "ends. Call the module."
            )
        architecture = self._model.architecture
        for pieces in self._pieces(input_ids, attention_mask, detach_every):
            if pieces:
                x, place, real = join(pieces)
                if architecture.kind == "decoder":
                    x = architecture.logits(self.weights.tree(), x)
                yield Segment(x, place.long(), real)

    # ---------------------------------------------------------------- inside

    @property
    def _dtype(self) -> torch.dtype:
        first: torch.dtype = next(self.weights.parameters()).dtype
        return first

    def _reading_params(self) -> Params:
        params: Params = self.weights.tree()
        return params["encoder"] if self._model.architecture.kind == "encoder-decoder" else params

    def _hidden(
        self, tokens: Tensor, mask: Tensor | None, detach_every: int | None
    ) -> tuple[Tensor, Tensor]:
        valid = flags("input_ids", tokens, mask)
        model = self._model
        if self.memory is not None:
            pieces = [p for group in self._pieces(tokens, mask, detach_every) for p in group]
            return in_order([join(pieces)], tokens.shape[1]), valid
        if detach_every is not None:
            raise ConfigError(
                "TrainableModel: detach_every cuts between chunks, but full attention has none. "
                "Set memory first."
            )
        hidden, _ = full_pass(
            model.reading_part, self._reading_params(), tokens, valid,
            causal=model.causal, library="torch",
        )  # fmt: skip
        return torch.where(valid[:, :, None], hidden, torch.zeros_like(hidden)), valid

    def _pieces(
        self, tokens: Tensor, mask: Tensor | None, detach_every: int | None
    ) -> Iterator[list[Piece]]:
        """Read through the memories; hand out hidden states before each cut and at the end."""
        memory, part = self.memory, self._model.reading_part
        if memory is None:
            raise ConfigError(
                "TrainableModel.segments: full attention has no chunks. Set memory first, e.g. to "
                "'attendre-causal:1024'."
            )
        if detach_every is not None:
            checks.whole_number(
                "TrainableModel", "detach_every", detach_every, least=1,
                hint="It counts chunks; None never cuts.",
            )  # fmt: skip
        params = self._reading_params()
        tokens, valid, place = compacted(tokens, flags("input_ids", tokens, mask))
        stack = self._stack(tokens.shape[1])
        position = torch.cumsum(valid, dim=1, dtype=torch.int32) - 1
        position = torch.where(valid, position, torch.zeros_like(position))
        state = stack.init(
            batch=tokens.shape[0], heads=part.heads, kv_heads=part.kv_heads, head_dim=part.head_dim,
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
        far = is_far(part, length)
        layers = memory_stack(part, memory, "torch", causal=model.causal, far=far).layers
        return Stack(layers, run_layer_again if self.checkpoint else run_layer)


def _detached(tree: Any) -> Any:
    """Detach nested tensors; one that appears in several places stays one."""
    seen: dict[int, Tensor] = {}

    def leaf(tensor: Tensor) -> Tensor:
        return seen.setdefault(id(tensor), tensor.detach())

    return tree_map(leaf, tree)
