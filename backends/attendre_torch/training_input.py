"""Token ids and masks as users of transformers pass them, checked and without gaps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attendre_core import checks
from attendre_core.errors import ConfigError, DTypeError

__all__ = ["check_labels", "compacted", "flags", "refuse"]

#: Arguments that change nothing here: the output can always be used in both ways, and nothing is
#: cached in training.
_HARMLESS = ("return_dict", "use_cache")


def refuse(others: dict[str, Any]) -> None:
    """Refuse arguments of transformers' models that would have an effect there."""
    for name, value in others.items():
        if name not in _HARMLESS and value is not None and value is not False:
            raise ConfigError(
                f"TrainableModel: {name} was passed, expected input_ids, attention_mask, labels. "
                "Leave it out, or train the model of transformers itself, inside of bounded(...)."
            )


def flags(name: str, tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Check token ids and their mask, and return which of them are real."""
    if tokens.ndim != 2 or tokens.is_floating_point():
        raise DTypeError(
            f"TrainableModel: {name} has shape {tuple(tokens.shape)} and dtype "
            f"{checks.dtype_name(tokens.dtype)}, expected whole numbers, (batch, length)."
        )
    if mask is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    checks.shape(
        "TrainableModel", "attention_mask", mask, "batch, length", tuple(tokens.shape),
        "Give one flag to each token: 1 is real, 0 is padding.",
    )  # fmt: skip
    return mask != 0


def check_labels(labels: Tensor, expected: tuple[int, ...]) -> None:
    """Refuse labels of another shape than the tokens they belong to."""
    checks.shape(
        "TrainableModel", "labels", labels, "batch, length", expected,
        "Give one label to each token; -100 does not count. They are shifted here, not before.",
    )  # fmt: skip


def compacted(tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move padding to the end of each row, so that chunks do not depend on it.

    Returns
    -------
    tokens, valid
        As long as the longest row without its padding.
    place
        int32: where each token was.

    Examples
    --------
    >>> ids, mask = torch.tensor([[0, 0, 7, 8]]), torch.tensor([[0, 0, 1, 1]])
    >>> [part.tolist() for part in compacted(ids, mask != 0)]
    [[[7, 8]], [[True, True]], [[2, 3]]]
    """
    batch, length = tokens.shape
    place = torch.arange(length, dtype=torch.int32, device=tokens.device).expand(batch, -1)
    if bool(valid.all()):
        return tokens, valid, place
    order = torch.argsort(valid, dim=1, descending=True, stable=True)
    order = order[:, : max(int(valid.sum(dim=1).max()), 1)]
    return tokens.gather(1, order), valid.gather(1, order), place.gather(1, order)
