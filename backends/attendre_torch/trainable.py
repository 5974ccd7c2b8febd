"""Models of the zoo as ``nn.Module``: parameters that optimisers see, training over chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.layer.chunks import in_order, join
from attendre_core.layer.stack import Stack
from attendre_core.presets import MemoryConfig
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures.base import EncoderDecoder, Params, Part
from attendre_core.zoo.blocks import crosses_of
from attendre_core.zoo.full_attention import full_pass
from attendre_core.zoo.memories import is_far, memory_stack
from attendre_core.zoo.model import Model
from attendre_torch.fsdp import like_forward
from attendre_torch.heads import HeadGroup
from attendre_torch.like_transformers import LikeTransformers
from attendre_torch.training_input import check_labels, flags, refuse
from attendre_torch.training_layers import TrainedLayer, run_layer, run_layer_again
from attendre_torch.training_output import (
    Segment,
    TrainingOutput,
    loss_of,
    next_tokens,
    shifted_right,
)
from attendre_torch.training_pass import Piece, TrainingPass
from attendre_torch.weights import Weights

__all__ = ["TrainableModel"]


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
        #: The processes that share the heads; None = this one holds all of them.
        self.head_group: HeadGroup | None = None

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

        Linear maps with an adapter are merged copies. Parameters that are spread over processes
        are gathered into whole copies, so all processes have to call this.
        """
        old = self._model
        return Model(
            old.architecture, _detached(self.weights.tensors()), memory=self.memory,
            library="torch", dtype=checks.dtype_name(self._dtype), tokenizer=old.tokenizer,
            attention=old.attention, end=old.end, head=old.head,
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

    @like_forward
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
        if self.reading_name is not None:
            raise ConfigError(
                "TrainableModel.segments: an encoder-decoder has no outputs before its input "
                "ends. Call the module."
            )
        reading = self._pass(input_ids, attention_mask, detach_every)
        for chunks, last in reading.groups(detach_every):
            segment = self._segment(reading, chunks, last)
            if segment is not None:
                yield segment

    @like_forward
    def _segment(self, reading: TrainingPass, chunks: list[Any], last: bool) -> Segment | None:
        pieces = self._read(reading, chunks, last)
        if not pieces:
            return None
        x, place, real = join(pieces)
        architecture = self._model.architecture
        if architecture.kind == "decoder":
            x = architecture.logits(self.weights.tree(), x)
        return Segment(x, place.long(), real)

    # ---------------------------------------------------------------- inside

    @property
    def _dtype(self) -> torch.dtype:
        first: torch.dtype = next(self.weights.parameters()).dtype
        return first

    @property
    def reading_name(self) -> str | None:
        """The part of the weights that reads the input, if the model has several."""
        return "encoder" if self._model.architecture.kind == "encoder-decoder" else None

    @property
    def reading_part(self) -> Part:
        """The part that reads the input, with the heads of this process."""
        part, group = self._model.reading_part, self.head_group
        if group is None:
            return part
        return replace(part, heads=part.heads // group.size, kv_heads=part.kv_heads // group.size)

    def _reading(self) -> tuple[Params, list[TrainedLayer]]:
        """Return the weights of the part that reads, and its layers, which look up their own."""
        params, name = self.weights.tree(), self.reading_name
        layers = self.weights.layers_of(name)
        blocks = [TrainedLayer(self.reading_part, one, self.head_group) for one in layers]
        return params if name is None else params[name], blocks

    def _hidden(
        self, tokens: Tensor, mask: Tensor | None, detach_every: int | None
    ) -> tuple[Tensor, Tensor]:
        valid = flags("input_ids", tokens, mask)
        if self.memory is not None:
            reading = self._pass(tokens, mask, detach_every)
            groups = reading.groups(detach_every)
            pieces = [piece for group in groups for piece in self._read(reading, *group)]
            return in_order([join(pieces)], tokens.shape[1]), valid
        if detach_every is not None:
            raise ConfigError(
                "TrainableModel: detach_every cuts between chunks, but full attention has none. "
                "Set memory first."
            )
        params, layers = self._reading()

        def run(function: Any, layer: TrainedLayer, *arrays: Any) -> Any:
            return layer.run(lambda *inner: function(layer.params, *inner), *arrays)

        hidden, _ = full_pass(
            self.reading_part, {**params, "layers": layers}, tokens, valid,
            causal=self._model.causal, library="torch", run_layer=run,
        )  # fmt: skip
        return torch.where(valid[:, :, None], hidden, torch.zeros_like(hidden)), valid

    def _pass(self, tokens: Tensor, mask: Tensor | None, detach_every: int | None) -> TrainingPass:
        """Begin to read an input through the memories."""
        if self.memory is None:
            raise ConfigError(
                "TrainableModel.segments: full attention has no chunks. Set memory first, e.g. to "
                "'attendre-causal:1024'."
            )
        if detach_every is not None:
            checks.whole_number(
                "TrainableModel", "detach_every", detach_every, least=1,
                hint="It counts chunks; None never cuts.",
            )  # fmt: skip
        valid = flags("input_ids", tokens, mask)
        return TrainingPass(self.reading_part, self.memory, tokens, valid)

    def _read(self, reading: TrainingPass, chunks: list[Any], last: bool) -> list[Piece]:
        params, blocks = self._reading()
        stack = self._stack(reading.length)
        return reading.read(stack, params, blocks, chunks, last, self._dtype)

    def _stack(self, length: int) -> Stack:
        model, memory = self._model, cast(MemoryConfig, self.memory)
        part = self.reading_part
        far = is_far(part, length)
        layers = memory_stack(part, memory, "torch", causal=model.causal, far=far).layers
        return Stack(layers, run_layer_again if self.checkpoint else run_layer)


def _detached(tree: Any) -> Any:
    """Detach nested tensors; one that appears in several places stays one.

    What is spread over processes is gathered.
    """
    seen: dict[int, Tensor] = {}

    def leaf(tensor: Tensor) -> Tensor:
        if id(tensor) not in seen:
            own = tensor.detach()
            seen[id(tensor)] = own.full_tensor() if hasattr(own, "full_tensor") else own
        return seen[id(tensor)]

    return tree_map(leaf, tree)
