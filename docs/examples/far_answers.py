"""Rerank documents whose answer is in two places: cut, overlap, or read through a memory.

A log says once of what kind each thing is, and once what happened to it::

    ... hostAtlas ... 50 to 400 words, before or after ... Atlas outage ...

A query is a kind and an event: ``host outage``. In each of ten documents an outage happened to one
thing, and in one document this thing is a host; in the others something else is a host. So
every document has a host and an outage, and what decides is whether they are of one name.

`train` teaches a small ModernBERT, with the classes of transformers, on documents of up to 256
tokens, within three minutes on two cores. First it learns to say of each event what kind it
happened to and whether it is the answer, with heads that are thrown away; then to judge. After
that, documents of 1,024 tokens, with the query, are ranked: cut off, in pieces as they are or
overlapping by half, through memories, and with full attention. The score of a document is that of
its best piece, as is usual, or the mean.

Run it with ``python far_answers.py --out reranker``; ``--record FILE`` writes the place of the
right document for each query.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from far_entities import FAR, KINDS, LONG, NAMES, NEAR, SPECIAL, TRAINED, WORDS, write_tokenizer

import attendre_core as at
from attendre_core.evaluation import intervals
from attendre_core.evaluation.piecewise import cuts_of
from attendre_core.evaluation.tasks.finding import gain, rank

EVENTS = ("outage", "repair", "upgrade", "delay", "backup", "audit", "leak", "alarm")
VOCABULARY = (*SPECIAL, *NAMES, *KINDS, *EVENTS, *(k + n for k in KINDS for n in NAMES), *WORDS)
ID = {word: number for number, word in enumerate(VOCABULARY)}
#: Documents per query; and the tokens of a pair that are not the document's: a query of two words
#: and three special ones.
RANKED, AROUND = 10, 5
BASE = "overlapping pieces of 256, best"
#: Systems: how pieces are cut, their tokens, and what counts of their scores; or a memory.
SYSTEMS: dict[str, tuple[str, int, Any] | str | None] = {
    "truncated to 256": ("first-piece", 256, np.max),
    "pieces of 256, best": ("pieces", 256, np.max),
    BASE: ("half-overlap", 256, np.max),
    "overlapping pieces of 256, mean": ("half-overlap", 256, np.mean),
    "MT:256": "MT+wait=128+chunk=128:256",
    "AS:256": "AS+wait=128+chunk=128:256",
    "attendre:256": "attendre+wait=128+chunk=128:256",
    "attendre:256, no waiting": "attendre+wait=0+chunk=128:256",
    "MT:512": "MT+wait=256+chunk=128:512",
    "attendre:512": "attendre+wait=256+chunk=128:512",
    "overlapping pieces of 512, best": ("half-overlap", 512, np.max),
    "full attention": None,
}


class Document(NamedTuple):
    """Words, the kinds of what events happened to by their places, and how far the answer is.

    ``distance`` is from the name with the event that is asked for to where its kind is said
    (< 0: before it).
    """

    words: list[str]
    kinds: dict[int, int]
    distance: int


class Query(NamedTuple):
    """A kind, an event, and documents of which the first is right."""

    kind: int
    event: int
    documents: list[Document]

    @property
    def text(self) -> str:
        """The words of the query."""
        return f"{KINDS[self.kind]} {EVENTS[self.event]}"


def document(
    rng: np.random.Generator,
    length: int,
    span: tuple[int, int],
    asked: tuple[int, int],
    right: bool,
) -> Document:
    """Sample a document; kinds are said ``span[0]`` to ``span[1]`` words from the events."""
    words = rng.choice(WORDS, size=length).tolist()
    free = np.ones(length, dtype=bool)
    kind, event = asked
    others = [number for number in range(len(KINDS)) if number != kind]
    events = [event, *rng.permutation([e for e in range(len(EVENTS)) if e != event]).tolist()]
    names = rng.permutation(NAMES).tolist()[: max(2, min(len(NAMES), length // 16))]
    first, second = (kind, int(rng.choice(others)))[:: 1 if right else -1]
    kinds, asked_for = {}, 0
    for number, name in enumerate(names):
        own = (first, second)[number] if number < 2 else int(rng.integers(len(KINDS)))
        while True:
            away = int(rng.integers(span[0], span[1] + 1)) * (1 if rng.random() < 0.5 else -1)
            start = int(rng.integers(length - 1))
            cue = start + away
            places = [start, start + 1, cue]
            if 0 <= cue < length and cue not in places[:2] and free[places].all():
                break
        free[places] = False
        words[start], words[start + 1] = name, EVENTS[events[number]]
        words[cue] = KINDS[own] + name
        kinds[start + 1] = own
        asked_for = away if number == 0 else asked_for
    return Document(words, kinds, asked_for)


def query(rng: np.random.Generator, length: int, span: tuple[int, int], count: int) -> Query:
    """Sample a query with so many documents, the first of which is right."""
    asked = int(rng.integers(len(KINDS))), int(rng.integers(len(EVENTS)))
    some = [document(rng, length, span, asked, number == 0) for number in range(count)]
    return Query(*asked, some)


def train(folder: Path, *, steps: int = 1100, tokens: int = 768, seed: int = 0) -> float:
    """Train a reranker, write its checkpoint; return the seconds that it took."""
    import torch
    import transformers

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    config = transformers.ModernBertConfig(
        vocab_size=len(VOCABULARY), hidden_size=64, intermediate_size=96, num_hidden_layers=5,
        num_attention_heads=4, global_attn_every_n_layers=2, local_attention=8,
        max_position_embeddings=TRAINED, num_labels=1, classifier_pooling="mean",
        initializer_range=0.125,
        pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
        attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.ModernBertForSequenceClassification(config)
    kind_of, answers = (torch.nn.Linear(config.hidden_size, size) for size in (len(KINDS), 1))
    with torch.no_grad():
        # As if "hostAtlas" were two pieces: its embedding begins as the sum of theirs.
        table = model.model.embeddings.tok_embeddings.weight.normal_(0.0, 0.5)
        for kind in KINDS:
            for name in NAMES:
                table[ID[kind + name]] = table[ID[name]] + table[ID[kind]]
    learned = [*model.parameters(), *kind_of.parameters(), *answers.parameters()]
    optimizer = torch.optim.AdamW(learned, lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    # Hints come first: without an answer to pool, the verdict would learn to say nothing.
    taught = steps // 3
    began = time.perf_counter()
    for step in range(steps):
        grown = min(max(2 * (step - taught) / (steps - taught) - 0.5, 0.0), 1.0)
        length = int(rng.integers(2, 4 + int(13 * grown))) * 16 - AROUND
        some = [query(rng, length, (2, length - 4), 2) for _ in range(tokens // (2 * length) + 1)]
        pairs = [(one, text) for one in some for text in one.documents]
        ids = torch.tensor([_ids(one, text) for one, text in pairs])
        found = model(input_ids=ids, output_hidden_states=True)
        right = torch.tensor([1.0, 0.0] * len(some))
        judge = torch.nn.functional.binary_cross_entropy_with_logits
        loss = judge(found.logits[:, 0], right)
        events = [
            (row, AROUND - 1 + place, kind, number == 0 and row % 2 == 0)
            for row, (_, text) in enumerate(pairs)
            for number, (place, kind) in enumerate(text.kinds.items())
        ]
        rows, places, kinds, answered = map(list, zip(*events, strict=True))
        states = found.hidden_states[config.num_hidden_layers - 1][rows, places]
        hints = torch.nn.functional.cross_entropy(kind_of(states), torch.tensor(kinds))
        hints = hints + judge(answers(states)[:, 0], torch.tensor(answered, dtype=torch.float32))
        optimizer.zero_grad()
        (hints + loss if step > taught else hints).backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}, hints {hints.item():.4f}", flush=True)
    model.save_pretrained(folder)
    write_tokenizer(folder, VOCABULARY)
    return time.perf_counter() - began


def _ids(asked: Query, text: Document) -> list[int]:
    words = ("[CLS]", *asked.text.split(), "[SEP]", *text.words, "[SEP]")
    return [ID[word] for word in words]


def scores(model: Any, asked: Query, system: str) -> list[float]:
    """Return the score that a system gives each document of a query."""
    wanted = SYSTEMS[system]
    rows = [one.words for one in asked.documents]
    if not isinstance(wanted, tuple):
        reading = model.with_memory(wanted)
        texts = [" ".join(row) for row in rows]
        return [float(x) for x in reading.rerank(asked.text, texts, batch_size=RANKED)]
    reads, size, of_pieces = wanted
    cuts = cuts_of(reads, len(rows[0]), size - AROUND)
    pieces = [" ".join(row[cut.start : cut.stop]) for row in rows for cut in cuts]
    found = np.asarray(model.rerank(asked.text, pieces, batch_size=RANKED), dtype=np.float64)
    return [float(x) for x in of_pieces(found.reshape(len(rows), len(cuts)), axis=1)]


def measure(folder: Path, count: int, seed: int = 1) -> dict[str, list[list[int]]]:
    """Rank with all systems; return the right document's place and distance for each query."""
    model = at.load(str(folder), backend="torch")
    rng = np.random.default_rng(seed)
    queries = [query(rng, LONG - AROUND, (NEAR, FAR), RANKED) for _ in range(count)]
    found: dict[str, list[list[int]]] = {}
    for name in SYSTEMS:
        found[name] = [
            [rank(np.asarray(scores(model, one, name)), 0), one.documents[0].distance]
            for one in queries
        ]
        value = np.mean([gain(place) for place, _ in found[name]])
        print(f"{name}: nDCG@10 {value:.3f}", flush=True)
    return found


def table(found: dict[str, list[list[int]]]) -> str:
    """Return nDCG@10, its paired difference to overlapping pieces, MRR, and what came first."""
    base = [gain(place) for place, _ in found[BASE]]
    lines = [
        f"| system | nDCG@10 (n = {len(base)} queries) | against {BASE} | MRR | "
        "first, kind said before | first, kind said after |",
        "|---|---|---|---|---|---|",
    ]
    for system, queries in found.items():
        own = [gain(place) for place, _ in queries]
        mean, gap = intervals.mean(own), intervals.difference(own, base)
        text = f"{gap.value:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})"
        if gap.excludes_zero and len(own) >= intervals.ENOUGH:
            text = f"**{text}**"
        cells = [system, f"{mean.value:.2f} ({mean.low:.2f} to {mean.high:.2f})"]
        cells += ["" if system == BASE else text]
        cells += [f"{np.mean([1 / place for place, _ in queries]):.2f}"]
        for before in (True, False):
            flags = [place == 1 for place, distance in queries if (distance < 0) is before]
            cells.append(f"{100 * np.mean(flags):.0f} % of {len(flags)}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--record", type=Path, help="write the places of the right documents")
    parser.add_argument("--count", type=int, default=48, help="queries (48)")
    given = parser.parse_args(arguments)
    if not (given.out / "model.safetensors").is_file():
        given.out.mkdir(parents=True, exist_ok=True)
        print(f"trained in {train(given.out):.0f} s")
    found = measure(given.out, given.count)
    if given.record:
        lines = [json.dumps({"system": name, "queries": each}) for name, each in found.items()]
        given.record.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
