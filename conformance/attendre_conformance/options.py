"""Options of the current run, and the settings they give to every law.

The plugin fills in the numbers; the test modules read them when they are imported. No hypothesis
profile is touched: other tests of the same session keep their own settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

PROFILES = ("contract", "eager", "laws", "transforms")
DEFAULT_EXAMPLES = 200
#: Rows of the batches that the strategies draw: each row is a random stream of its own.
ROWS = 4

examples: int = DEFAULT_EXAMPLES
shrink: bool = True

Test = TypeVar("Test", bound=Callable[..., Any])


def law(share: float = 1.0) -> Callable[[Test], Test]:
    """Run a property on ``share`` times the number of streams that the user asked for.

    Every example is a batch of `ROWS` streams, each with its own contents and padding.
    """
    from hypothesis import HealthCheck, Phase, settings

    phases = [Phase.explicit, Phase.generate] + ([Phase.shrink] if shrink else [])
    return settings(
        max_examples=max(1, math.ceil(examples * share / ROWS)),
        deadline=None,
        derandomize=False,
        print_blob=True,
        database=None,
        phases=phases,
        # The first example of a compiled backend compiles, and streams are not small.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
