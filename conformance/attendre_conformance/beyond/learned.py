"""Policies with parameters in plain loops, written from their publications."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any

import numpy as np

import attendre_core as at

#: Query heads, K/V heads, width of a head, rank of interactions.
HEADS, KV, DIM, RANK = 4, 2, 3, 2


#: One chunk after another: entries and queries of these positions.
CHUNKS = tuple(range(start, start + 4) for start in (0, 4, 8, 12))


def normal(seed: int, *shape: int) -> np.ndarray:
    """Draw normal numbers."""
    return np.random.default_rng(seed).normal(size=shape)


KEY, VALUE, QUERY = normal(1, 16, KV, DIM), normal(2, 16, KV, DIM), normal(3, 16, HEADS, DIM)


SPAN = {"weight": normal(4, KV, DIM), "bias": np.asarray(-0.5)}


PRUNE = {
    "query": normal(5, HEADS, DIM, RANK),
    "key": normal(6, KV, DIM, RANK),
    "bias": np.asarray(0.75),
}


EXPIRE = at.ExpireSpan(longest=9, ramp=3)


@dataclass
class Entry:
    """One stored entry of the oracle; ``number`` is its span, or what queries let pass."""

    position: int
    number: float


def attended(entries: list[Entry], position: int, mask: Callable[[Entry], float]) -> np.ndarray:
    """Weights by their softmax, multiplied by the mask and normalised again."""
    output = np.zeros((HEADS, DIM))
    for head in range(HEADS):
        g = head // (HEADS // KV)
        logits = [float(QUERY[position, head] @ KEY[e.position, g]) / sqrt(DIM) for e in entries]
        softmax = [exp(x - max(logits)) for x in logits]
        weight = [w / sum(softmax) * mask(e) for w, e in zip(softmax, entries, strict=True)]
        if sum(weight) > 0:
            for w, e in zip(weight, entries, strict=True):
                output[head] += w / sum(weight) * VALUE[e.position, g]
    return output


def expiring(size: int, causal: bool = False) -> tuple[np.ndarray, list[list[int]]]:
    """Expire-Span, word for word: outputs, and the positions kept after every chunk."""
    entries: list[Entry] = []
    outputs, kept = [], []
    for chunk in CHUNKS:
        for t in chunk:
            product = float(np.sum(SPAN["weight"] * KEY[t])) + float(SPAN["bias"])
            entries.append(Entry(t, EXPIRE.longest / (1.0 + exp(-product))))
        now = chunk[-1]
        while len(entries) > size:
            entries.remove(min(entries, key=lambda e: (e.number - (now - e.position), e.position)))
        for t in chunk:

            def mask(e: Entry, t: int = t) -> float:
                return min(max(1.0 + (e.number - (t - e.position)) / EXPIRE.ramp, 0.0), 1.0)

            seen = [e for e in entries if not causal or e.position <= t]
            outputs.append(attended(seen, t, mask) if seen else np.zeros((HEADS, DIM)))
        kept.append(sorted(e.position for e in entries))
    return np.stack(outputs), kept


def entmax_of_two(x: float, alpha: float) -> float:
    """Find by bisection the p that maximises p x + the Tsallis entropy of (p, 1 - p)."""
    if alpha == 1.0:
        return 1.0 / (1.0 + exp(-x))
    low, high = 0.0, 1.0
    for _ in range(80):
        p = 0.5 * (low + high)
        slope = x - (p ** (alpha - 1) - (1 - p) ** (alpha - 1)) / (alpha - 1)
        low, high = (p, high) if slope > 0 else (low, p)
    return 0.0 if high < 1e-12 else 1.0 if low > 1 - 1e-12 else low


def pruning(size: int, alpha: float) -> tuple[np.ndarray, list[list[int]]]:
    """Dynamic context pruning, word for word."""
    entries: list[Entry] = []
    outputs, kept = [], []
    for chunk in CHUNKS:
        entries += [Entry(t, 1.0) for t in chunk]
        while len(entries) > size:
            entries.remove(min(entries, key=lambda e: (e.number, e.position)))
        for t in chunk:
            q = sum(QUERY[t, h] @ PRUNE["query"][h] for h in range(HEADS))
            for e in entries:
                if e.position < t:
                    k = sum(KEY[e.position, g] @ PRUNE["key"][g] for g in range(KV))
                    x = float(q @ k) / sqrt(RANK) + float(PRUNE["bias"])
                    e.number *= entmax_of_two(x, alpha)
            outputs.append(attended(entries, t, lambda e: e.number))
        kept.append(sorted(e.position for e in entries))
    return np.stack(outputs), kept


def run(
    xp: Any,
    policy: at.Policy,
    params: dict[str, Any],
    size: int,
    *,
    chunks: Any = CHUNKS,
    **options: Any,
) -> tuple[np.ndarray, list[list[int]], Any]:
    """Read the stream with a memory: outputs, kept positions, and the last state."""
    memory = at.KeyValueMemory(size, policy)

    def array(x: Any) -> Any:
        return xp.from_numpy(np.asarray(x, dtype=np.float32))

    params = {name: array(value) for name, value in params.items()}
    state, outputs, kept = None, [], []
    for chunk in chunks:
        part = slice(chunk[0], chunk[-1] + 1)
        key, value, query = (array(x[None, part]) for x in (KEY, VALUE, QUERY))
        at_key = xp.from_numpy(np.asarray([list(chunk)], dtype=np.int32))
        state = memory.init(like=key) if state is None else state
        state, _ = memory.insert(state, key, value, at_key, policy_params=params)
        state, output = memory.attend(state, query, at_key, policy_params=params, **options)
        outputs.append(xp.to_numpy(output)[0])
        position, valid = xp.to_numpy(state.position)[0], xp.to_numpy(state.valid)[0]
        kept.append(sorted(position[valid].tolist()))
    assert state is not None
    plain = {name: xp.to_numpy(getattr(state, name)) for name in ("position", "score")}
    return np.concatenate(outputs), kept, state._replace(**plain)
