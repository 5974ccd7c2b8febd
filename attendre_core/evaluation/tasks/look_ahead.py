"""The look-ahead task: values come before their keys, so a model has to look ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attendre_core.evaluation.tasks.document import Tokens
from attendre_core.evaluation.tasks.synthetic import SyntheticTask

__all__ = ["LookAhead"]


@dataclass(frozen=True)
class LookAhead(SyntheticTask):
    """Records are ``noise* VALUE noise* KEY``: the key comes 5 to 10 tokens after its value.

    With chunks of 16 tokens, both are in one chunk about half of the time.

    Examples
    --------
    >>> import numpy as np
    >>> document = LookAhead("single").document(np.random.default_rng(0), 128)
    >>> document.tokens.size, int((document.tokens == document.answer).sum())
    (128, 1)
    """

    name: ClassVar[str] = "look-ahead"

    def places(self, rng: np.random.Generator, records: int) -> tuple[Tokens, Tokens]:
        """Put the key last and the value 5 to 10 tokens before it."""
        value = rng.integers(1, 7, records, dtype=np.int32)
        return value, np.full(records, 11, dtype=np.int32)
