"""The past-only task: values come right after their keys, so looking back is enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attendre_core.evaluation.tasks.document import Tokens
from attendre_core.evaluation.tasks.synthetic import SyntheticTask

__all__ = ["PastOnly"]


@dataclass(frozen=True)
class PastOnly(SyntheticTask):
    """Records are ``KEY VALUE noise*``.

    Examples
    --------
    >>> import numpy as np
    >>> document = PastOnly().document(np.random.default_rng(0), 128)
    >>> from attendre_core.evaluation.tasks import word
    >>> [word(t) for t in document.tokens[document.values[0] - 1 :][:2]]
    ['key2', 'value28']
    """

    name: ClassVar[str] = "past-only"

    def places(self, rng: np.random.Generator, records: int) -> tuple[Tokens, Tokens]:
        """Put the key first and the value right after it."""
        return np.ones(records, dtype=np.int32), np.zeros(records, dtype=np.int32)
