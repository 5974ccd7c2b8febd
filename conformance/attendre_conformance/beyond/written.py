"""Writers of slots in plain loops, written from their publications."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, sqrt, tanh
from typing import Any

import numpy as np

import attendre_core as at

DIM, SIZE = 4, 3


def normal(seed: int, *shape: int) -> np.ndarray:
    """Draw normal numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def softmax(logits: list[float]) -> list[float]:
    """Normalise exponentials."""
    raised = [exp(x - max(logits)) for x in logits]
    return [x / sum(raised) for x in raised]


def times(vector: Any, matrix: Any) -> np.ndarray:
    """Multiply a row by a matrix, in loops."""
    rows, columns = matrix.shape
    return np.asarray(
        [sum(float(vector[i]) * float(matrix[i, j]) for i in range(rows)) for j in range(columns)]
    )


def read(query: Any, keys: list[Any], values: list[Any], heads: int) -> np.ndarray:
    """Attend with one query and several heads."""
    width, parts = len(query) // heads, []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        weight = softmax([float(query[own] @ key[own]) / sqrt(width) for key in keys])
        parts.append(sum(w * value[own] for w, value in zip(weight, values, strict=True)))
    return np.concatenate(parts)


def memformer(p: Any, slots: Any, x: Any, y: Any) -> Any:
    """Each slot attends to itself and the tokens, then forgets."""
    result = []
    for i, slot in enumerate(slots):
        query = times(slot, p["to_query"])
        keys = [times(t, p["to_key"]) for t in (slot, *x)]
        weight = softmax([float(query @ key) / sqrt(DIM) / 0.25 for key in keys])
        values = [slot, *(times(t, p["to_value"]) for t in x)]
        new = sum(w * v for w, v in zip(weight, values, strict=True)) + p["forget"][i]
        result.append(new / sqrt(sum(float(number) ** 2 for number in new)))
    return np.stack(result)


def token_turing(p: Any, slots: Any, x: Any, y: Any) -> Any:
    """Slots summarise slots, outputs and inputs."""
    tokens = [(slot, slot + p["place"][i]) for i, slot in enumerate(slots)]
    tokens += [(t, t + p["output_place"]) for t in ([] if y is None else y)]
    tokens += [(t, t + p["input_place"]) for t in x]
    result = []
    for query in p["query"]:
        weight = softmax([float(query @ placed) / sqrt(DIM) for _, placed in tokens])
        result.append(sum(w * t for w, (t, _) in zip(weight, tokens, strict=True)))
    return np.stack(result)


def mart(p: Any, slots: Any, x: Any, y: Any) -> Any:
    """Slots read the tokens, and a gate updates them."""
    result = []
    keys, values = ([times(t, p[name]) for t in x] for name in ("to_key", "to_value"))
    for i, slot in enumerate(slots):
        s = read(times(slot + p["place"][i], p["to_query"]), keys, values, heads=2)
        c = times(slot, p["to_candidate"]) + times(s, p["to_candidate_read"]) + p["candidate_bias"]
        z = times(slot, p["to_gate"]) + times(s, p["to_gate_read"]) + p["gate_bias"]
        result.append(
            [
                (1 - 1 / (1 + exp(-z[j]))) * tanh(c[j]) + slot[j] / (1 + exp(-z[j]))
                for j in range(DIM)
            ]
        )
    return np.asarray(result)


def icae(p: Any, slots: Any, x: Any, y: Any) -> Any:
    """Memory tokens behind the span read it."""
    result, memory = [], p["memory"]
    for i in range(SIZE):
        seen = [*x, *memory[: i + 1]]
        keys, values = ([times(t, p[name]) for t in seen] for name in ("to_key", "to_value"))
        found = read(times(memory[i], p["to_query"]), keys, values, heads=2)
        result.append(memory[i] + times(found, p["to_output"]))
    return np.stack(result)


WRITERS: dict[str, tuple[at.Writer, Callable[..., Any]]] = {
    "memformer": (at.Memformer(SIZE), memformer),
    "token-turing": (at.TokenTuring(SIZE), token_turing),
    "mart": (at.MART(SIZE, heads=2), mart),
    "icae": (at.ICAE(SIZE, heads=2), icae),
}


def parameters(writer: at.Writer) -> dict[str, np.ndarray]:
    """Draw all parameters, biases included."""
    shapes = writer.parameters(DIM)
    return {name: normal(10 + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


def moved(xp: Any, arrays: Any) -> Any:
    """Hand arrays over to a library."""
    if isinstance(arrays, dict):
        return {name: moved(xp, array) for name, array in arrays.items()}
    return None if arrays is None else xp.from_numpy(np.array(arrays))
