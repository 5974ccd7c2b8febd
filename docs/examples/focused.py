"""Train keys that tell documents apart: Focused Transformer (Tworkowski et al., 2023).

A memory of many documents distracts: queries find what looks alike in documents that have nothing
to do with theirs. Focused Transformer trains with the keys of other documents as negatives: in a
batch, the queries of a document attend to its own earlier context *and* to those of others, in one
softmax, as `at.Beside`::

    beside   | own context | of the next row | of the one after |   no positions
    memory   | this context, causal |                               one softmax over both

Here a context tells some facts and the next one asks for one of them. All documents share their
vocabulary; each has a topic, which is added to its embeddings, and a network that only ever sees
one document need not care. Run it with ``python focused.py --backend torch`` (or ``jax``).
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from learned_memories import FILLER, VALUES, VOCABULARY, documents, gradient_of

import attendre_core as at
from attendre_core import ops
from attendre_core.backend import Array, backend, namespace_of
from attendre_core.evaluation import intervals
from attendre_core.evaluation.tiny.optimizer import adamw, no_moments

__all__ = ["ask", "contexts_of", "cross_batch", "main"]

LENGTH, DIM, HEADS, TOPICS, ROWS = 16, 32, 2, 16, 32
#: What a memory holds when the network is tested, and how many entries a query retrieves.
DOCUMENTS, TOP_K = 8, 8


def cross_batch(key: Array, value: Array, documents: int) -> at.Beside:
    """Return the earlier contexts of each row and of the rows after it, to be attended to.

    Parameters
    ----------
    key, value
        (batch, length, kv_heads, dim): of the earlier context of each row.
    documents
        d: the contexts that each row sees: its own and d - 1 negatives.
    """
    xp = namespace_of(key)

    def every(x: Array) -> Array:
        return xp.concat([xp.roll(x, -n, axis=0) for n in range(documents)], axis=1)

    return at.Beside(every(key), every(value))


def contexts_of(count: int, rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
    """Return a context with facts, one with a question, topics, and the answers."""
    told, answer = documents(count, LENGTH, rng)
    asks = rng.integers(FILLER, VOCABULARY, size=(count, LENGTH // 2)).astype(np.int32)
    asks[:, -1] = told[:, -1]
    told[:, -1] = rng.integers(FILLER, VOCABULARY, size=count)
    topics = rng.permuted(np.tile(np.arange(TOPICS), (count // TOPICS + 1, 1)), axis=1)
    return told, asks, topics.reshape(-1)[:count].astype(np.int32), answer


def projected(params: dict[str, Array], ids: Array, topic: Array) -> list[Array]:
    """Return queries, keys and values, (rows, length, heads, head_dim)."""
    xp = namespace_of(params["embed"])
    x = ops.take_rows(params["embed"], ids) + ops.take_rows(params["topic"], topic)[:, None, :]
    shape = (*ids.shape, HEADS, DIM // HEADS)
    return [xp.reshape(xp.matmul(x, params[name]), shape) for name in ("query", "key", "value")]


def ask(
    params: dict[str, Array], told: Array, asks: Array, topic: Array, seen: int, top_k: int | None
) -> Array:
    """Return the logits of the answers, with the contexts of ``seen`` documents to attend to.

    ``top_k`` None attends to all of them, as in training; else the contexts are in one memory, and
    each query retrieves the K best entries.
    """
    _, key, value = projected(params, told, topic)
    query, own_key, own_value = projected(params, asks, topic)
    beside = cross_batch(key, value, seen)
    count = asks.shape[1] if top_k is None else asks.shape[1] + beside.key.shape[1]
    memory = at.KeyValueMemory(count)
    state = memory.init(like=own_key)
    if top_k is not None:
        state = memory.store(state, beside.key, beside.value)
    state = memory.store(state, own_key, own_value)
    given = beside if top_k is None else None
    _, output = memory.attend(state, query, top_k=top_k, causal=True, beside=given)
    xp = namespace_of(output)
    return xp.matmul(xp.reshape(output[:, -1, ...], (-1, DIM)), params["answer"])


def loss_of(params: dict[str, Array], *batch: Array, seen: int) -> Array:
    """Return the mean loss of a batch (facts, questions, topics, answers)."""
    *asked, answer = batch
    logits = ask(params, *asked, seen=seen, top_k=None)  # type: ignore[misc]
    xp = namespace_of(logits)
    top = xp.max(logits, axis=-1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(logits - top), axis=-1, keepdims=True)) + top
    right = xp.astype(xp.arange(VALUES, dtype=answer.dtype) == answer[:, None], logits.dtype)
    return xp.sum((total - logits) * right) / right.shape[0]


def new_parameters(seed: int = 0) -> dict[str, Any]:
    """Draw the arrays of the network."""
    rng = np.random.default_rng(seed)
    shapes = {"embed": (VOCABULARY, DIM), "topic": (TOPICS, DIM), "answer": (DIM, VALUES)}
    shapes |= dict.fromkeys(("query", "key", "value"), (DIM, DIM))
    draw = {name: rng.standard_normal(shape) * DIM**-0.5 for name, shape in shapes.items()}
    return {name: array.astype(np.float32) for name, array in draw.items()}


def train(name: str, seen: int, steps: int) -> dict[str, Array]:
    """Train with this many documents in the softmax of each query."""
    library, rng = backend(name), np.random.default_rng(1)
    params = {key: library.from_numpy(x) for key, x in new_parameters().items()}
    gradients, moments = gradient_of(name, partial(loss_of, seen=seen)), no_moments(params)
    for step in range(1, steps + 1):
        batch = (library.from_numpy(x) for x in contexts_of(ROWS, rng))
        now = 1e-2 * min(1.0, 4 * (1 - step / (steps + 1)))
        params, moments = adamw(params, gradients(params, *batch)[1], moments, step=step, rate=now,
                                decay=0.0)  # fmt: skip
    return params


def main(name: str = "torch", steps: int = 800, asked: int = 400) -> dict[str, Any]:
    """Train with and without negatives, print a table, and return which answers are right."""
    library, found, start = backend(name), {}, time.process_time()
    *batch, answer = contexts_of(asked, np.random.default_rng(3))
    for seen in (1, 4):
        plain = {key: library.to_numpy(x) for key, x in train(name, seen, steps).items()}
        for held in (1, DOCUMENTS):
            logits = ask(plain, *batch, seen=held, top_k=TOP_K)
            found[f"trained with {seen}, {held} in memory"] = logits.argmax(axis=-1) == answer
    print(f"{name}: {asked} questions, {time.process_time() - start:.0f} s of CPU time")
    for title, right in found.items():
        share = intervals.share(right)
        gap = intervals.difference(right, found[f"trained with 1{title[14:]}"])
        print(
            f"{title:>30}: {share.value:4.0%} ({share.low:.0%} to {share.high:.0%})   against "
            f"training with 1 {gap.value:+.0%} ({gap.low:+.0%} to {gap.high:+.0%})"
        )
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--out", help="append the result to this file, as a line of JSON")
    given = parser.parse_args()
    if given.backend == "torch":
        import torch

        torch.set_num_threads(1)  # arrays this small gain nothing from more
    begin = time.process_time()
    answered = main(given.backend)
    if given.out:
        right = {title: "".join(str(int(x)) for x in flags) for title, flags in answered.items()}
        line = {"backend": given.backend, "seconds": round(time.process_time() - begin, 1)}
        with Path(given.out).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "right": right}) + "\n")
