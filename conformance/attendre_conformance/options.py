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

#: Backends on which streams run compiled: eager steps would compile each operation by itself.
COMPILED_STREAMS = frozenset({"jax"})
#: Streams of one batch, unless the user says otherwise. Where every spec and shape has to be
#: compiled there are more of them, and fewer batches: 25 of 8 instead of 50 of 4.
ROWS, COMPILED_ROWS = 4, 8

examples: int = DEFAULT_EXAMPLES
rows: int = ROWS
shrink: bool = True
#: The one policy to test (`policies.subjects.Subject`); None tests those of the core.
policy: Any = None

Test = TypeVar("Test", bound=Callable[..., Any])


def law() -> Callable[[Test], Test]:
    """Run a property on as many random streams as the user asked for.

    Every example is a batch of `rows` streams, each with its own contents and padding, under a
    spec, a shape and a plan of its own. The first example that hypothesis tries is always the
    simplest one, all zeros; it is not counted.
    """
    from hypothesis import HealthCheck, Phase, settings

    phases = [Phase.explicit, Phase.generate] + ([Phase.shrink] if shrink else [])
    chosen = settings(
        max_examples=1 + math.ceil(examples / rows),
        deadline=None,
        derandomize=False,
        print_blob=True,
        database=None,
        phases=phases,
        # The first example of a compiled backend compiles, and streams are not small.
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )

    def decorate(test: Test) -> Test:
        test = chosen(test)
        test.attendre_law = True  # type: ignore[attr-defined]
        return test

    return decorate
