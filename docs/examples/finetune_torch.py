"""Teach a model that was trained on short documents to read long ones through a small memory.

A document asks first and tells later::

    BOS noise QUESTION(k) noise CTX (RECORD(k', v') noise noise)* ANS      -> the v of record k

One record answers the question; it stands somewhere in the middle half. A small Llama learns the
task on documents of up to 48 tokens by full attention. Then it reads documents of 256 tokens
through a memory of 32 entries, from which most of a document must be evicted, and is trained
there: truncated back-propagation over chunks, a backward pass after every four of them.

Run it with ``python finetune_torch.py``; it takes about two minutes on one core.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import attendre_core as at
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures.llama import Llama
from attendre_torch import TrainableModel

KEYS, VALUES, NOISE = 8, 8, 8
BOS, CTX, ANS = 0, 1, 2
QUESTION = 3
RECORD = QUESTION + KEYS
VALUE = RECORD + KEYS * VALUES
FILLER = VALUE + VALUES
VOCABULARY = FILLER + NOISE
NOTHING = -100  # no answer is expected here


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
    detach_every: int = 4
    dim: int = 64
    asked: int = 300  # documents in a test
    memory: at.MemoryConfig = MEMORY


def documents(
    count: int, length: int, rng: np.random.Generator, every: int
) -> tuple[Tensor, Tensor]:
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
    return torch.from_numpy(ids), torch.from_numpy(answers)


def new_model(dim: int) -> TrainableModel:
    """Make a Llama of two layers with random parameters."""
    architecture = Llama(
        layers=2, dim=dim, heads=4, kv_heads=4, head_dim=dim // 4, vocabulary=VOCABULARY,
        context=4096, hidden=2 * dim, rope=at.RoPE(base=10000.0),
    )  # fmt: skip
    drawn = torch.Generator().manual_seed(0)

    def filled(tensor: Any) -> Tensor:
        if len(tensor.shape) == 1:
            return torch.ones(tensor.shape)
        return torch.randn(tensor.shape, generator=drawn) * tensor.shape[-1] ** -0.5

    params = tree_map(filled, architecture.parameters())
    return TrainableModel(at.Model(architecture, params, library="torch"))


def train_short(model: TrainableModel, settings: Settings) -> list[float]:
    """Learn the task on short documents by full attention."""
    rng, losses = np.random.default_rng(0), []
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    faster = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, settings.short_steps)
    for step in range(settings.short_steps):
        # Shorter ones first.
        share = min(1.0, 1 / 3 + step / settings.short_steps)
        length = max(16, int(settings.short_length * share))
        ids, answers = documents(2048 // length, length, rng, every=length)
        loss = cross_entropy(model(ids).logits[:, -1], answers[:, -1])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        faster.step()
        losses.append(float(loss.detach()))
    return losses


def train_through_memory(model: TrainableModel, settings: Settings) -> list[float]:
    """Go on with long documents, read chunk by chunk through the memory.

    Of a long document, a third or a half is read, too, so that short ones are not forgotten.
    """
    model.memory = settings.memory
    rng, losses = np.random.default_rng(1), []
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    slower = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, settings.long_steps)
    for _ in range(settings.long_steps):
        length = settings.long_length // int(rng.integers(1, 4))
        length -= length % settings.memory.chunk
        ids, answers = documents(settings.long_batch, length, rng, settings.memory.chunk)
        expected, total = (answers != NOTHING).sum(), 0.0
        optimiser.zero_grad()
        for segment in model.segments(ids, detach_every=settings.detach_every):
            wanted = answers.gather(1, segment.place)
            logits = segment.output.flatten(0, 1)
            loss = cross_entropy(logits, wanted.flatten(), ignore_index=NOTHING, reduction="sum")
            (loss / expected).backward()  # frees the graph of this segment
            total += float(loss.detach() / expected)
        optimiser.step()
        slower.step()
        losses.append(total)
    return losses


@torch.no_grad()
def accuracy(
    model: TrainableModel, memory: at.MemoryConfig | None, length: int, settings: Settings
) -> float:
    """Return the share of right answers at the end of documents never seen in training."""
    ids, answers = documents(settings.asked, length, np.random.default_rng(2), every=length)
    model.memory = memory
    right = model(ids).logits[:, -1].argmax(-1) == answers[:, -1]
    return float(right.float().mean())


def main(settings: Settings | None = None) -> dict[str, float]:
    """Train, and print the accuracy before and after."""
    settings = Settings() if settings is None else settings
    start = time.perf_counter()
    model = new_model(settings.dim)
    train_short(model, settings)
    lengths = (settings.short_length, settings.long_length // 2, settings.long_length)

    def tested(when: str) -> dict[str, float]:
        found = {f"{when} {n}": accuracy(model, settings.memory, n, settings) for n in lengths}
        for name, share in found.items():
            print(f"{name:>12} tokens: {share:4.0%}   ({time.perf_counter() - start:.0f} s)")
        return found

    before = tested("before")
    train_through_memory(model, settings)
    return before | tested("after")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
