"""Compare position schemes: the time each adds to attention over a full memory.

Usage: python -m attendre_core.speed.schemes [--backend numpy torch jax] [--repeats 15] [--json]

Every figure is the median of the ratios of neighbouring runs, with quartiles. B=1, H=8, D=64,
S=128, M=2048, float32; JAX is jitted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from attendre_core.backend import Backend, backend
from attendre_core.errors import ConfigError
from attendre_core.memory import KeyValueMemory
from attendre_core.positions import ALiBi, Encoding, InCache, LMInfinite, NoPosition, RoPE
from attendre_core.speed.steps import CHUNK, DIM, HEADS, random_array
from attendre_core.speed.timing import Ratio, ratio, threads

__all__ = ["measure"]

SIZE = 2048
#: A name, a scheme, and the scheme to compare it with. The cost of LM-Infinite depends on how many
#: keys are beyond n_local.
_PAIRS: tuple[tuple[str, Encoding, Encoding], ...] = (
    ("RoPE ÷ no positions", RoPE(), NoPosition()),
    ("in-cache RoPE ÷ RoPE", InCache(RoPE()), RoPE()),
    ("ALiBi ÷ no positions", ALiBi(), NoPosition()),
    ("LM-Infinite, all near ÷ RoPE", LMInfinite(2 * SIZE), RoPE()),
    ("LM-Infinite, half far ÷ RoPE", LMInfinite(SIZE // 2), RoPE()),
    ("LM-Infinite, all far ÷ RoPE", LMInfinite(64), RoPE()),
)


def attending(library: Backend, encoding: Encoding) -> Callable[[], Any]:
    """Return a function that lets one chunk of queries attend to a full memory."""
    memory = KeyValueMemory(SIZE)
    # Entries arrive in random order, so slots are not sorted by position.
    order = np.random.default_rng(0).permutation(SIZE).astype(np.int32)[None]
    entries = random_array(library, 0, 1, SIZE, HEADS, DIM)
    state = memory.init(batch=1, heads=HEADS, head_dim=DIM, xp=library)
    state, _ = memory.insert(state, entries, entries, library.from_numpy(order))
    query = random_array(library, 1, 1, CHUNK, HEADS, DIM)
    end = library.from_numpy(np.arange(SIZE, SIZE + CHUNK, dtype=np.int32)[None])

    def attend(state: Any, query: Any, position: Any) -> Any:
        return memory.attend(state, query, position, encoding=encoding)[1]

    return partial(library.compile(attend) if library.name == "jax" else attend, state, query, end)


def measure(library: Backend, repeats: int) -> Iterator[tuple[str, Ratio]]:
    """Measure every scheme with one library; yields a name and a ratio.

    Examples
    --------
    >>> name, measured = next(measure(backend("numpy"), repeats=1))
    >>> name
    'RoPE ÷ no positions'
    """
    for name, one, other in _PAIRS:
        runs = (attending(library, one), attending(library, other))
        yield name, ratio(*runs, repeats=repeats)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--backend", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with threads(1):
        for name in arguments.backend:
            try:
                library = backend(name)
            except ConfigError as error:
                print(f"skipped {name}: {error}", file=sys.stderr)
                continue
            results[name] = {}
            for row, measured in measure(library, arguments.repeats):
                results[name][row] = asdict(measured)
                if not arguments.json:
                    spread = f"({measured.low:.2f} to {measured.high:.2f})"
                    print(f"{name:6} {row:30} {measured.median:6.2f} {spread}", flush=True)
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
