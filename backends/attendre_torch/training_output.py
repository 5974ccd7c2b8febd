"""What a model in training returns, and its loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils import _pytree

__all__ = ["Segment", "TrainingOutput", "loss_of", "next_tokens", "shifted_right"]

#: Labels that do not count.
IGNORED = -100


class Segment(NamedTuple):
    """What `TrainableModel.segments` yields: outputs with a graph that starts at the segment.

    Attributes
    ----------
    output
        (batch, n, vocabulary): next-token logits; of an encoder (batch, n, dim).
    place
        int64, (batch, n): the place of each output in the input.
    valid
        Boolean, (batch, n): which of them are real.
    """

    output: Tensor
    place: Tensor
    valid: Tensor


class TrainingOutput(dict[str, Tensor]):
    """What `TrainableModel` returns, in the form of transformers' ``ModelOutput``.

    ``output.logits``, ``output["logits"]`` and ``output[1]`` are the same; what was not computed
    is None as an attribute and missing otherwise.

    Attributes
    ----------
    loss
        A scalar, if ``labels`` were passed.
    logits
        (batch, length, vocabulary), except for an encoder.
    last_hidden_state
        (batch, length, dim), for an encoder.

    Examples
    --------
    >>> output = TrainingOutput(loss=torch.tensor(2.0), logits=torch.zeros(1, 3, 5))
    >>> output.loss is output[0] is output["loss"], output.last_hidden_state
    (True, None)
    """

    def __getattr__(self, name: str) -> Any:
        if name in ("loss", "logits", "last_hidden_state"):
            return self.get(name)
        raise AttributeError(f"{type(self).__name__} has no {name!r}, only {', '.join(self)}.")

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Tensor, ...]:
        """Return what was computed, in order."""
        return tuple(self.values())


def _flatten(output: TrainingOutput) -> tuple[list[Tensor], list[str]]:
    return list(output.values()), list(output)


def _unflatten(values: Iterable[Tensor], names: list[str]) -> TrainingOutput:
    return TrainingOutput(zip(names, values, strict=True))


# Sharded training looks for tensors in outputs; PyTorch has no public name for this yet.
_pytree.register_pytree_node(
    TrainingOutput, _flatten, _unflatten,
    serialized_type_name=f"{TrainingOutput.__module__}.{TrainingOutput.__qualname__}",
)  # fmt: skip


def loss_of(logits: Tensor, wanted: Tensor, count: Tensor | int | None) -> Tensor:
    """Return the mean cross-entropy, in at least float32, where ``wanted`` is not -100.

    Parameters
    ----------
    logits
        (batch, length, vocabulary).
    wanted
        Integer, (batch, length): the token that each position should predict.
    count
        Divide the sum by this, not by the number of labels: the number in a whole step of
        optimisation, of which this batch is a part.
    """
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    how = "mean" if count is None else "sum"
    loss: Tensor = cross_entropy(exact, wanted.flatten(), ignore_index=IGNORED, reduction=how)
    if count is None:
        return loss
    return loss / (count.to(loss.device) if isinstance(count, Tensor) else count)


def next_tokens(labels: Tensor, valid: Tensor) -> Tensor:
    """Return the label of each position's next one; -100 where padding would have to predict."""
    shifted = torch.full_like(labels, IGNORED)
    shifted[:, :-1] = labels[:, 1:]
    return torch.where(valid, shifted, IGNORED)


def shifted_right(labels: Tensor, start: int) -> Tensor:
    """Return what a decoder reads while it writes ``labels``: a start token, then all but one."""
    read = torch.full_like(labels, start)
    read[:, 1:] = labels[:, :-1]
    return torch.where(read == IGNORED, start, read)
