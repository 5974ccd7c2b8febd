"""Systems that read a store: RETRO, LongMem, LUMEN, prototypes and TRAMS, some thirty lines each.

A store holds keys and values in chunks, found by search keys of their own, and never evicts::

    python docs/examples/stores.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attendre_core as at
from attendre_core.backend import Array, namespace_of
from attendre_core.evaluation import load_tiny
from attendre_core.zoo.full_attention import layer_program
from attendre_core.zoo.memories import encoding_of

__all__ = [
    "chunked_cross_attention",
    "kmeans",
    "long_mem",
    "lumen_encode",
    "lumen_store",
    "mass_found",
    "prototypes",
    "trams",
]


def chunked_cross_attention(
    store: at.Store, query: Array, embedding: Array, chunk: int, neighbours: int = 2
) -> Array:
    """RETRO: what follows the end of a chunk attends to the neighbours of that chunk.

    Parameters
    ----------
    query
        (batch, length, heads, head_dim), with a length that ``chunk`` divides.
    embedding
        (batch, length / chunk, search_dim): of each chunk, from a frozen model.

    Returns
    -------
    array
        (batch, length, heads, head_dim); zeros for the positions before the end of chunk 0.
    """
    xp = namespace_of(query)
    batch, length, heads, dim = query.shape
    chunks = length // chunk
    found = store.take(store.search(embedding, neighbours).index)
    rows = (batch * chunks, neighbours * store.by)
    key, value = (xp.reshape(found[n], (*rows, *found[n].shape[4:])) for n in ("key", "value"))
    valid = xp.reshape(found["valid"], rows)
    # A token attends once its chunk is complete: shift by chunk - 1, and back.
    blank = xp.zeros_like(query[:, : chunk - 1, ...])
    late = xp.concat([query[:, chunk - 1 :, ...], blank], axis=1)
    late = xp.reshape(late, (batch * chunks, chunk, heads, dim))
    output = at.cross_attention(late, key, value, valid)
    output = xp.reshape(output, (batch, length, *output.shape[2:]))
    return xp.concat([blank, output[:, : length - chunk + 1, ...]], axis=1)


def long_mem(
    store: at.Store, state: at.KeyValueState, memory: at.KeyValueMemory, query: Array,
    gate: Array, chunks: int, **options: Any,
) -> Array:  # fmt: skip
    """LongMem: local attention and attention to a frozen bank, mixed by a gate for each head.

    The bank is searched with each query head's own query, chunk by chunk of mean keys; all heads
    of a row attend to what any of its queries found.

    Parameters
    ----------
    gate
        (heads,): a sigmoid of it is the share of the local attention.
    chunks
        How many chunks each query retrieves.
    """
    xp = namespace_of(query)
    _, local = memory.attend(state, query, **options)
    flat = xp.reshape(query, (query.shape[0], query.shape[1], -1))
    bank = store.beside(flat, chunks)
    far = at.cross_attention(query, bank.key, bank.value, bank.valid)
    share = (1.0 / (1.0 + xp.exp(-gate)))[:, None]
    return share * local + (1.0 - share) * far


def lumen_store(model: at.Model, passages: list[list[int]], live: int) -> at.Store:
    """LUMEN: run all but the last ``live`` encoder layers once for each passage, and store that."""
    length = max(map(len, passages))
    hidden = [np.asarray(_layers(model, [row], 0, -live or None)[0]) for row in passages]
    padded = np.zeros((len(passages), length, hidden[0].shape[-1]), dtype=np.float32)
    entries, counts = [], [len(row) for row in passages]
    for number, (row, count) in enumerate(zip(hidden, counts, strict=True)):
        padded[number, :count] = row
        entries.append(row.mean(axis=0))
    flat = padded.reshape(-1, 1, padded.shape[-1])
    used = (np.arange(length) < np.asarray(counts)[:, None]).reshape(-1)
    return at.Store.build(np.stack(entries), flat, flat, aux={"used": used}, by=length)


def lumen_encode(
    model: at.Model, store: at.Store, question: list[int], live: int, passages: int = 1
) -> Array:
    """Run the live layers over the question and the stored states of the best passages."""
    asked = np.asarray(_layers(model, [question], 0, -live or None)[0])
    found = store.take(store.search(asked.mean(axis=0), passages).index)
    rows = [found["key"][n, found["aux.used"][n], 0] for n in range(passages)]
    x = np.concatenate([asked, *rows])[None]
    return model.reading_part.final(model.reading_params, _run(model, x, -live)) if live else x


def _layers(model: at.Model, rows: list[list[int]], first: int, last: int | None) -> Array:
    place = np.arange(len(rows[0]), dtype=np.int32)[None]
    tokens = np.asarray(rows, dtype=np.int32)
    return _run(model, model.reading_part.embed(model.reading_params, tokens, place), first, last)


def _run(model: at.Model, x: Array, first: int, last: int | None = None) -> Array:
    """Send hidden states, (1, length, dim), through some layers of the encoder."""
    part, params = model.reading_part, model.reading_params["layers"]
    place = np.arange(x.shape[1], dtype=np.int32)[None]
    numbers = list(range(part.layers))[first:last]
    for n in numbers:
        run = layer_program(model.library, part, encoding_of(part, n), causal=False)
        x, *_ = run(params[n], x, place, place >= 0, None)
    return x


def kmeans(points: np.ndarray, count: int, rounds: int = 10, seed: int = 0) -> np.ndarray:
    """Return the cluster of each point, (points,), by Lloyd's rounds from random points."""
    rng = np.random.default_rng(seed)
    centres = points[rng.permutation(len(points))[:count]].astype(np.float64)
    for _ in range(rounds):
        distance = (centres**2).sum(axis=1) - 2 * points @ centres.T
        cluster = distance.argmin(axis=1)
        for n in range(count):
            if (cluster == n).any():
                centres[n] = points[cluster == n].mean(axis=0)
    return np.asarray(cluster)


def prototypes(key: np.ndarray, value: np.ndarray, count: int, seed: int = 0) -> at.Store:
    """Prototype memory: mean keys and values of clusters of what other examples left behind.

    Parameters
    ----------
    key, value
        (entries, kv_heads, dim): of all examples.
    """
    cluster = kmeans(key.reshape(len(key), -1), count, seed=seed)
    used = np.unique(cluster)
    means = [np.stack([a[cluster == n].mean(axis=0) for n in used]) for a in (key, value)]
    return at.Store.build(means[0].reshape(len(used), -1), *means)


def trams(
    pool: at.KeyValueMemory, state: at.KeyValueState, segment: at.KeyValueState, query: Array,
    projection: Array, selected: int,
) -> Array:  # fmt: skip
    """TRAMS: of a pool of M entries, each head attends to the m best by their keys alone.

    With queries that are hidden states times ``projection``, a logit is the product of a hidden
    state with k' = key @ projection.T. Hidden states are alike in direction, so the entries with
    the largest cos(k', 1) |k'| are selected, once for all queries of a segment.

    Parameters
    ----------
    state, segment
        Of the pool, and of a memory that holds the segment itself, which is seen causally.
    query
        (batch, length, heads, head_dim), with as many K/V heads.
    projection
        (heads, hidden, head_dim): the query projection of each head.
    selected
        m, at most as many as the pool has slots.
    """
    xp, entries = namespace_of(query), pool.entries(state)
    hidden = xp.matmul(xp.permute_dims(entries.key, (0, 2, 1, 3)), xp.matrix_transpose(projection))
    score = xp.sum(hidden, axis=-1) / hidden.shape[-1] ** 0.5  # the cosine times the length
    score = xp.where(entries.valid[:, None, :], score, -float("inf"))
    index = xp.flip(xp.argsort(score, axis=-1), axis=-1)[..., :selected]
    index = xp.permute_dims(index, (0, 2, 1))[..., None]
    key, value = (
        xp.take_along_axis(x, xp.broadcast_to(index, (*index.shape[:3], x.shape[-1])), axis=1)
        for x in (entries.key, entries.value)
    )
    count = xp.sum(xp.astype(entries.valid, xp.int32), axis=1, keepdims=True)
    real = xp.cumulative_sum(xp.ones_like(index[:, :, 0, 0]), axis=1) <= count
    own = at.KeyValueMemory(segment.key.shape[2])
    chosen = at.Beside(key, value, real)
    return own.attend(segment, query, causal=True, beside=chosen)[1]


def mass_found(
    query: np.ndarray, key: np.ndarray, by: int, top_k: int, seed: int = 0
) -> tuple[float, float]:
    """Return the share of full attention's weight that retrieved chunks hold, and random ones.

    Parameters
    ----------
    query, key
        (length, heads, head_dim), of one layer; positions do not take part.
    """
    flat = key.reshape(len(key), -1)
    store = at.Store.build(flat, key, key, by=by)
    found = store.search(query.reshape(len(query), -1), top_k).index
    rng = np.random.default_rng(seed)
    chance = np.stack([rng.permutation(store.chunks)[:top_k] for _ in query])
    logits = np.einsum("ihd,jhd->ihj", query, key) * key.shape[-1] ** -0.5
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    chunk = np.arange(len(key)) // by

    def held(index: np.ndarray) -> float:
        inside = (chunk[None, :, None] == index[:, None, :]).any(axis=-1)
        return float((weights * inside[:, None, :]).sum(axis=-1).mean())

    return held(found), held(chance)


def main() -> None:
    """Print how much of the attention of a tiny model retrieval finds."""
    model = load_tiny("prefix-lm")
    rows = np.random.default_rng(0).integers(1, 60, (4, 512)).astype(np.int32)
    part, params = model.reading_part, model.reading_params
    for row in rows:
        place = np.arange(len(row), dtype=np.int32)[None]
        x = part.embed(params, row[None], place)
        query, key, _ = (a[0] for a in part.project(params["layers"][0], x, place))
        key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
        print("retrieved {:.3f}, by chance {:.3f}".format(*mass_found(query, key, 4, 16)))


if __name__ == "__main__":
    main()
