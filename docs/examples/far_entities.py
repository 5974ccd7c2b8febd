"""Tag entities that a cut tears apart, or whose kind is said far away: cut, overlap, or wait.

A log names things and says of what kind they are, once, earlier or later::

    ... hostAtlas ... 50 to 400 words ... Atlas north gate Unit ...     -> host, "Atlas ... Unit"

An entity is a name with all that follows up to ``Unit``, at most five words on. So its beginning
depends on what comes later, and its end on what came before; names and ``Unit`` also stand alone
and are no entities. Its kind is that of the word ``hostAtlas``, ``personAtlas`` or ``productAtlas``,
which is somewhere else in the document.

`train` teaches a small ModernBERT, with the classes of transformers, on documents of up to 256
words, within three minutes on two cores. Then documents of 1,024 words are read: in pieces of 256 as
they are or overlapping by half, through memories, and with full attention.

Run it with ``python far_entities.py --out tagger`` (a checkpoint with its tokenizer, for
``attendre tag`` too); ``--record FILE`` writes what was found in each document.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import attendre_core as at
from attendre_core.evaluation import intervals
from attendre_core.evaluation.piecewise import cuts_of

NAMES = ("Atlas", "Borea", "Cobalt", "Delta", "Ember", "Fjord", "Garnet", "Halo")
KINDS = ("host", "person", "product")
END = "Unit"
WORDS = (
    "opened closed moved checked north south gate door line level early late again twice slowly "
    "report signal request answer queue worker cache index table record page node port link lock "
    "timer retry batch stage phase round sent seen kept lost found ready idle busy empty full"
).split()
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
VOCABULARY = (*SPECIAL, *NAMES, END, *(k + n for k in KINDS for n in NAMES), *WORDS)
ID = {word: number for number, word in enumerate(VOCABULARY)}
LABELS = ("O", *(f"{prefix}-{kind}" for kind in KINDS for prefix in "BI"))
TRAINED = 256
LONG, NEAR, FAR = 1024, 50, 400
#: Systems, and in which pieces they read or with which memory.
SYSTEMS: dict[str, str | None] = {
    "pieces of 256": "pieces",
    "pieces of 256, overlapping by half": "windows",
    "MT:256": "MT+wait=128+chunk=32:256",
    "AS:256": "AS+wait=128+chunk=32:256",
    "attendre:256": "attendre+wait=128+chunk=32:256",
    "attendre:256, no waiting": "attendre+wait=0+chunk=32:256",
    "KeyDiff:256": "KeyDiff+wait=128+chunk=32:256",
    "attendre:512": "attendre+wait=256+chunk=32:512",
    "MT:512": "MT+wait=256+chunk=32:512",
    "pieces of 512, overlapping by half": "windows",
    "full attention": None,
}


class Entity(NamedTuple):
    """Words ``start:stop`` of a document, and how far away its kind is said (< 0: earlier)."""

    start: int
    stop: int
    kind: int
    distance: int


class Document(NamedTuple):
    """Token ids without special ones, and the entities."""

    ids: list[int]
    entities: list[Entity]


def document(rng: np.random.Generator, length: int, nearest: int, farthest: int) -> Document:
    """Sample a document; kinds are said ``nearest`` to ``farthest`` words away."""
    words = rng.choice(WORDS, size=length).tolist()
    free = np.ones(length, dtype=bool)
    entities: list[Entity] = []

    def take(start: int, stop: int) -> bool:
        inside = 0 <= start and stop <= length and bool(free[start:stop].all())
        if inside:
            free[start:stop] = False
        return inside

    for name in rng.permutation(NAMES).tolist()[: max(1, min(len(NAMES), length // 24))]:
        kind, cue = int(rng.integers(len(KINDS))), int(rng.integers(length))
        if not take(cue, cue + 1):
            continue
        words[cue] = KINDS[kind] + name
        for _ in range(2):
            size = int(rng.integers(3, 7))
            away = int(rng.integers(nearest, farthest + 1)) * (1 if rng.random() < 0.5 else -1)
            start = cue - away
            if take(start, start + size):
                words[start], words[start + size - 1] = name, END
                entities.append(Entity(start, start + size, kind, away))
        lone, end = int(rng.integers(length)), int(rng.integers(length))
        if take(lone, lone + 9):
            words[lone] = name
        if take(end - 8, end + 1):
            words[end] = END
    return Document([ID[word] for word in words], sorted(entities))


def labels_of(sample: Document) -> list[int]:
    """Return the number of the label of each token."""
    labels = [0] * len(sample.ids)
    for start, stop, kind, _ in sample.entities:
        labels[start:stop] = [1 + 2 * kind, *([2 + 2 * kind] * (stop - start - 1))]
    return labels


def spans_of(labels: Sequence[int]) -> set[tuple[int, int, int]]:
    """Return what labels mean: (start, stop, kind); an I without a B before it means nothing."""
    spans, start = set(), -1
    for place, label in enumerate([*labels, 0]):
        if start >= 0 and not (label and label % 2 == 0 and label == labels[start] + 1):
            spans.add((start, place, (labels[start] - 1) // 2))
            start = -1
        if label % 2 == 1:
            start = place
    return spans


def train(folder: Path, *, steps: int = 1200, tokens: int = 2048, seed: int = 0) -> float:
    """Train a tagger, write its checkpoint; return the seconds that it took."""
    import torch
    import transformers

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    config = transformers.ModernBertConfig(
        vocab_size=len(VOCABULARY), hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=4, global_attn_every_n_layers=3, local_attention=16,
        max_position_embeddings=TRAINED, num_labels=len(LABELS), id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
        pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
        attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.ModernBertForTokenClassification(config)
    with torch.no_grad():
        # As if "hostAtlas" were two pieces: its embedding begins as the sum of theirs.
        table = model.model.embeddings.tok_embeddings.weight.normal_(0.0, 0.5)
        for kind in KINDS:
            of_kind = torch.randn(table.shape[1]) * 0.5
            for name in NAMES:
                table[ID[kind + name]] = table[ID[name]] + of_kind
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    began = time.perf_counter()
    for step in range(steps):
        grown = min(2 * step / steps, 1.0)  # documents get longer for half of the training
        length = int(rng.integers(2, 3 + int(14 * grown))) * 16 - 2
        some = [document(rng, length, 4, length) for _ in range(tokens // (length + 2))]
        ids = torch.tensor([[ID["[CLS]"], *one.ids, ID["[SEP]"]] for one in some])
        labels = torch.tensor([[-100, *labels_of(one), -100] for one in some])
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return time.perf_counter() - began


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer: one token per word."""
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    told = {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told) + "\n", encoding="utf-8")


def head_of(folder: Path) -> dict[str, Any]:
    """Return the arrays of the head by name."""
    from safetensors.numpy import load_file

    arrays = load_file(folder / "model.safetensors")
    return {k: x for k, x in arrays.items() if k.startswith(("head.", "classifier."))}
