"""Which head a checkpoint has: its classes name it, its configuration the labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attendre_core.backend import Array
from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.zoo.architectures.base import Architecture
from attendre_core.zoo.architectures.heads import HEAD, Head, Kind, pooled
from attendre_core.zoo.blocks import compiled
from attendre_core.zoo.config import RawConfig

if TYPE_CHECKING:
    from attendre_core.zoo.loading.checkpoint import Checkpoint

__all__ = ["HEAD", "Head", "head_of", "head_programs", "pooled"]

#: How the names of classes end, which ``config.json`` lists as ``architectures``.
_KINDS: dict[str, Kind] = {
    "TokenClassification": "token",
    "SequenceClassification": "sequence",
    "QuestionAnswering": "span",
}
_MOST_LABELS = 2**16
_LONGEST_LABEL = 1000


def head_of(checkpoint: Checkpoint, architecture: Architecture) -> Head | None:
    """Find the head of a checkpoint; None if it has none, or one that the zoo does not know."""
    config = checkpoint.config
    kind = _kind(config)
    if kind is None:
        return None
    draft = architecture.head(config, kind, ("start", "end"))
    if draft is None:
        return None
    if kind == "span":
        return draft
    rows = _rows(checkpoint, architecture, f"{draft.out}.weight")
    labels = _labels(config, rows)
    if rows is not None and len(labels) != rows:
        raise CheckpointError(
            f"{config.where}: id2label names {len(labels)} labels, but {draft.out}.weight has "
            f"{rows} rows, one for each label. Check that config.json belongs to this checkpoint."
        )
    return architecture.head(config, kind, labels)


def _kind(config: RawConfig) -> Kind | None:
    names = config.values.get("architectures")
    if not names:
        return None
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(
            f"{config.where}: architectures is {str(names)[:80]!r}, expected a list of names of "
            "classes."
        )
    found = re.search(rf"For({'|'.join(_KINDS)})$", names[0])
    return None if found is None else _KINDS[found[1]]


def _rows(checkpoint: Checkpoint, architecture: Architecture, name: str) -> int | None:
    """Return the number of rows of a tensor; None if there is no such tensor."""
    for candidate in (name, *(prefix + name for prefix in architecture.prefixes)):
        shape = checkpoint.shape(candidate)
        if shape:
            return shape[0]
    return None


def _labels(config: RawConfig, rows: int | None) -> tuple[str, ...]:
    """Return the labels by number; without names they are LABEL_0, LABEL_1 and so on."""
    named = config.values.get("id2label")
    if named is None:
        usual = 2 if rows is None else rows
        count = config.size("num_labels", min(max(usual, 1), _MOST_LABELS), most=_MOST_LABELS)
        return tuple(f"LABEL_{i}" for i in range(count))
    good = isinstance(named, Mapping) and 0 < len(named) <= _MOST_LABELS
    by_number = {str(number): label for number, label in named.items()} if good else {}
    labels = [by_number.get(str(i)) for i in range(len(by_number))]
    if not labels or not all(
        type(label) in (str, int) and len(str(label)[: _LONGEST_LABEL + 1]) <= _LONGEST_LABEL
        for label in labels
    ):
        raise CheckpointError(
            f"{config.where}: id2label is {str(named)[:80]}, expected a label of at most "
            f"{_LONGEST_LABEL} characters for each number from 0, of at most {_MOST_LABELS}."
        )
    return tuple(map(str, labels))


@lru_cache(maxsize=32)
def head_programs(library: str, head: Head) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """Return ``logits(params, x)`` and ``poolable(params, x)``, compiled if that pays."""
    return compiled(library, head.logits), compiled(library, head.poolable)


def required(head: Head | None, where: str) -> Head:
    """Return a head that is there, or say how to get one."""
    if head is None:
        raise ConfigError(
            f"{where}: this checkpoint has no head that gives labels. Load one whose config.json "
            "names a class for token classification, sequence classification or question "
            "answering, and whose weights hold its tensors."
        )
    return head


def own_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a model without those of its head."""
    return {name: part for name, part in params.items() if name != HEAD}
