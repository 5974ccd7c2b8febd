"""Predicted: a predictor says how much each entry matters when it arrives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array
from attendre_core.policies.base import New, Policy, Stored

__all__ = ["Predicted"]


@dataclass(frozen=True)
class Predicted(Policy):
    """Keep the entries with the highest scores of a predictor; they never change afterwards.

    The rule of "Long-Range Language Modeling with Selective Cache" (Huang and Hollenstein, Findings
    of EMNLP 2023), whose predictor was trained on the eye movements of readers: it guesses how long
    people look at a token, and tokens that are looked at least are replaced.

    Parameters
    ----------
    predict
        ``predict(new, params)`` returns a score for each new entry, (batch, seq), or (batch,
        kv_heads, seq) with ``per_head=True``, from ``new.key``, ``new.value``, ``new.position`` and
        ``new.aux``; ``params`` are the ``policy_params``. A function of a module, written in array
        operations, so that memories compare and compile.

    Notes
    -----
    Laws: what is kept does not depend on the chunk length, nor on any query. Scores that are known
    outside need no function: `KeyValueMemory.insert` takes them as ``score``, a layer as
    `Chunk.score`.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> def length(new, params):
    ...     return params * new.aux["letters"]  # readers look longer at long words
    >>> memory = at.KeyValueMemory(size=2, policy=at.Predicted(length))
    >>> key = np.ones((1, 4, 1, 2), dtype=np.float32)
    >>> letters = {"letters": np.asarray([[3.0, 7.0, 1.0, 5.0]], dtype=np.float32)}
    >>> state = memory.init(like=key, aux=letters)
    >>> state, _ = memory.insert(state, key, key, aux=letters, policy_params=0.5)
    >>> sorted(state.position[0].tolist()), sorted(state.score[0].tolist())
    ([1, 3], [2.5, 3.5])
    """

    predict: Callable[[New, Any], Array]

    def enter(self, stored: Stored, new: New) -> Array:
        """Ask the predictor."""
        return self.predict(new, stored.params)
