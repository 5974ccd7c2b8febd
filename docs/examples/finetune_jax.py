"""Teach a model that was trained on short documents to read long ones through a small memory.

A document asks first and tells later::

    BOS noise QUESTION(k) noise CTX (RECORD(k', v') noise noise)* ANS      -> the v of record k

One record answers the question; it stands somewhere in the middle half. A small Llama learns the
task on documents of up to 48 tokens by full attention. Then it reads documents of 256 tokens
through a memory of 32 entries, from which most of a document must be evicted, and is trained
there: truncated back-propagation over chunks, gradients after every four of them.

Run it with ``python finetune_jax.py``; it takes about two minutes on one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attendre_core as at
from attendre_core.zoo.architectures.llama import Llama
from attendre_jax import ModelFunctions, random_parameters

KEYS, VALUES, NOISE = 8, 8, 8
BOS, CTX, ANS = 0, 1, 2
QUESTION = 3
RECORD = QUESTION + KEYS
VALUE = RECORD + KEYS * VALUES
FILLER = VALUE + VALUES
VOCABULARY = FILLER + NOISE
NOTHING = -1  # no answer is expected here

MEMORY = at.MemoryConfig(
    policy=at.LRA("sum", at.InitialScore(sigmas=0.0), score="softmax"),
    kv_size=32,
    chunk=16,
    present="visible",
)


@dataclass(frozen=True)
class Settings:
    """How long to train, and on what."""

    short_steps: int = 800
    short_length: int = 48
    long_steps: int = 300
    long_length: int = 256
    long_batch: int = 16
    truncate: int = 4  # chunks
    dim: int = 64
    asked: int = 300  # documents in a test
    memory: at.MemoryConfig = MEMORY

    @property
    def piece(self) -> int:
        """Tokens over which gradients reach back."""
        return self.truncate * self.memory.chunk


def documents(count: int, length: int, rng: np.random.Generator, every: int) -> tuple[Any, Any]:
    """Return token ids and expected answers, (count, length).

    ANS stands at the end of every ``every`` tokens; an answer is expected once the record came.
    """
    rows = np.arange(count)
    ids = rng.integers(FILLER, VOCABULARY, size=(count, length))
    key, value = rng.integers(0, KEYS, size=count), rng.integers(0, VALUES, size=count)
    ids[:, 0], ids[:, 6] = BOS, CTX
    ids[rows, rng.integers(2, 5, size=count)] = QUESTION + key
    places = np.arange(7, length - 2, 3)
    places = places[(places + 1) % every != 0]
    others = rng.integers(0, KEYS - 1, size=(count, len(places)))
    others += others >= key[:, None]
    ids[:, places] = RECORD + others * VALUES + rng.integers(0, VALUES, size=others.shape)
    middle = places[len(places) // 4 : max(3 * len(places) // 4, 1)]
    told = rng.choice(middle, size=count)
    ids[rows, told] = RECORD + key * VALUES + value
    ends = np.arange(every - 1, length, every)
    ids[:, ends] = ANS
    answers = np.full((count, length), NOTHING)
    answers[:, ends] = np.where(told[:, None] < ends, VALUE + value[:, None], NOTHING)
    return ids.astype(np.int32), answers.astype(np.int32)


def new_architecture(dim: int) -> Llama:
    """Describe a Llama of two layers."""
    return Llama(
        layers=2, dim=dim, heads=4, kv_heads=4, head_dim=dim // 4, vocabulary=VOCABULARY,
        context=4096, hidden=2 * dim, rope=at.RoPE(base=10000.0),
    )  # fmt: skip


def summed_loss(logits: Any, answers: Any) -> Any:
    """Add up the cross entropies where an answer is expected."""
    chances = jax.nn.log_softmax(logits)
    right = jnp.take_along_axis(chances, jnp.maximum(answers, 0)[..., None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(answers == NOTHING, 0.0, right))


@jax.jit
def adamw(params: Any, grads: Any, moments: Any, step: Any, rate: Any) -> tuple[Any, Any]:
    """Take one step of AdamW; any optimiser on pytrees, such as optax's, will do instead."""
    means, squares = moments
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, grads)
    squares = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, squares, grads)

    def moved(p: Any, m: Any, s: Any) -> Any:
        up, down = m / (1 - 0.9**step), jnp.sqrt(s / (1 - 0.999**step)) + 1e-8
        return p * (1 - 0.01 * rate) - rate * up / down

    return jax.tree.map(moved, params, means, squares), (means, squares)


def no_moments(params: Any) -> tuple[Any, Any]:
    """Return what AdamW remembers before its first step."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return zeros, zeros


def train_short(architecture: Llama, params: Any, settings: Settings) -> tuple[Any, list[float]]:
    """Learn the task on short documents by full attention."""
    functions = ModelFunctions(architecture, remat=False)

    @jax.jit
    @jax.value_and_grad
    def slope(params: Any, ids: Any, answers: Any) -> Any:
        logits = functions.logits(params, ids)[:, -1]
        return summed_loss(logits, answers[:, -1]) / ids.shape[0]

    rng, losses, moments = np.random.default_rng(0), [], no_moments(params)
    for step in range(settings.short_steps):
        done = step / settings.short_steps
        # Shorter ones first, in few lengths, because each is compiled.
        length = max(16, settings.short_length // 3 * min(1 + int(4.5 * done), 3))
        ids, answers = documents(2048 // length, length, rng, every=length)
        loss, grads = slope(params, ids, answers)
        rate = 3e-3 * min(done / 0.3, (1 - done) / 0.7)
        params, moments = adamw(params, grads, moments, step + 1.0, rate)
        losses.append(float(loss))
    return params, losses


def pieces_of(array: Any, settings: Settings, fill: int) -> list[Any]:
    """Cut (count, length) into pieces of one length, the last one filled up."""
    missing = -array.shape[1] % settings.piece
    filled = np.pad(array, ((0, 0), (0, missing)), constant_values=fill)
    return list(np.split(filled, filled.shape[1] // settings.piece, axis=1))


def train_through_memory(
    architecture: Llama, params: Any, settings: Settings
) -> tuple[Any, list[float]]:
    """Go on with long documents, read chunk by chunk through the memory.

    Of a long document, a third or a half is read, too, so that short ones are not forgotten. One
    compiled function reads a piece of any of them, and hands its state on to the next.
    """
    functions = ModelFunctions(architecture, settings.memory)

    def loss(params: Any, state: Any, ids: Any, answers: Any, expected: Any) -> Any:
        state, hidden = functions.read(params, state, jnp.maximum(ids, 0), ids >= 0)
        logits = architecture.logits(params, hidden.x)
        return summed_loss(logits, answers) / expected, state

    slope = jax.jit(jax.value_and_grad(loss, has_aux=True))
    rng, losses, moments = np.random.default_rng(1), [], no_moments(params)
    empty = functions.start(params, settings.long_batch)
    for step in range(settings.long_steps):
        length = settings.long_length // int(rng.integers(1, 4))
        length -= length % settings.memory.chunk
        ids, answers = documents(settings.long_batch, length, rng, settings.memory.chunk)
        expected, total, state = float((answers != NOTHING).sum()), 0.0, empty
        grads = jax.tree.map(jnp.zeros_like, params)
        for own, wanted in zip(
            pieces_of(ids, settings, -1), pieces_of(answers, settings, NOTHING), strict=True
        ):
            (value, state), more = slope(params, state, own, wanted, expected)
            grads = jax.tree.map(jnp.add, grads, more)
            total += float(value)
        rate = 2e-3 * (1 - 0.95 * step / settings.long_steps)
        params, moments = adamw(params, grads, moments, step + 1.0, rate)
        losses.append(total)
    return params, losses


def tester(architecture: Llama, settings: Settings) -> Callable[[Any, int], float]:
    """Return a function that asks at the end of documents never seen in training."""
    functions = ModelFunctions(architecture, settings.memory)
    read = jax.jit(lambda params, state, ids: functions.read(params, state, ids, ids >= 0))

    def accuracy(params: Any, length: int) -> float:
        """Return the share of right answers."""
        ids, answers = documents(settings.asked, length, np.random.default_rng(2), every=length)
        state = functions.start(params, settings.asked)
        for piece in pieces_of(ids, settings, -1):
            state, hidden = read(params, state, piece)
        last = hidden.x[:, (length - 1) % settings.piece]
        chosen = np.asarray(architecture.logits(params, last[:, None, :])[:, 0].argmax(axis=-1))
        return float(np.mean(chosen == answers[:, -1]))

    return accuracy


def main(settings: Settings | None = None) -> dict[str, float]:
    """Train, and print the accuracy before and after."""
    settings = Settings() if settings is None else settings
    start = time.perf_counter()
    architecture = new_architecture(settings.dim)
    params = random_parameters(architecture, jax.random.key(0))
    accuracy = tester(architecture, settings)
    lengths = (settings.short_length, settings.long_length // 2, settings.long_length)

    def tested(when: str, params: Any) -> dict[str, float]:
        found = {f"{when} {n}": accuracy(params, n) for n in lengths}
        for name, share in found.items():
            print(f"{name:>12} tokens: {share:4.0%}   ({time.perf_counter() - start:.0f} s)")
        return found

    params, _ = train_short(architecture, params, settings)
    before = tested("before", params)
    params, _ = train_through_memory(architecture, params, settings)
    return before | tested("after", params)


if __name__ == "__main__":
    main()
