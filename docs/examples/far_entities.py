"""Tag entities that a cut tears apart, or whose kind is said far away: cut, overlap, or wait.

A log names things and says of what kind they are, once, earlier or later::

    ... hostAtlas ... 50 to 400 words ... Atlas north gate Unit ...     -> host, "Atlas ... Unit"

An entity is a name with all that follows up to ``Unit``, at most five words on. So its beginning
depends on what comes later, and its end on what came before; names and ``Unit`` also stand alone
and are no entities. Its kind is that of the word ``hostAtlas``, ``personAtlas`` or
``productAtlas``, which is somewhere else in the document.

`train` teaches a small ModernBERT, with the classes of transformers, on documents of up to 256
words, within three minutes on two cores. Then documents of 1,024 words are read: in pieces of 256
as they are or overlapping by half, through memories, and with full attention.

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
    "opened", "closed", "moved", "checked", "north", "south", "gate", "door", "line", "level",
    "early", "late", "again", "twice", "slowly", "report", "signal", "request", "answer",
    "queue", "worker", "cache", "index", "table", "record", "page", "node", "port", "link",
    "lock", "timer", "retry", "batch", "stage", "phase", "round", "sent", "seen", "kept",
    "lost", "found", "ready", "idle", "busy", "empty", "full",
)  # fmt: skip
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
        inside = start >= 0 and stop <= length and bool(free[start:stop].all())
        if inside:
            free[start:stop] = False
        return inside

    for name in rng.permutation(NAMES).tolist()[: max(1, min(len(NAMES), length // 16))]:
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


def train(folder: Path, *, steps: int = 2000, tokens: int = 1024, seed: int = 0) -> float:
    """Train a tagger, write its checkpoint; return the seconds that it took."""
    import torch
    import transformers

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    config = transformers.ModernBertConfig(
        vocab_size=len(VOCABULARY), hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=4, global_attn_every_n_layers=3, local_attention=16,
        max_position_embeddings=TRAINED, num_labels=len(LABELS), id2label=dict(enumerate(LABELS)),
        initializer_range=0.125,
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
        grown = min(max(2 * step / steps - 0.5, 0.0), 1.0)  # short documents, then longer ones
        length = int(rng.integers(3, 5 + int(12 * grown))) * 16 - 2
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


def write_tokenizer(folder: Path, vocabulary: Sequence[str] = VOCABULARY) -> None:
    """Write the tokenizer: one token per word."""
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    told = {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told) + "\n", encoding="utf-8")


def tagged(model: Any, documents: Sequence[Document], system: str) -> list[list[int]]:
    """Return the number of the label of each token, as a system reads the documents."""
    wanted = SYSTEMS[system]
    before, after, rows = [ID["[CLS]"]], [ID["[SEP]"]], [one.ids for one in documents]
    if wanted not in ("pieces", "windows"):
        reading = model.with_memory(wanted)
        logits = reading.classify([[*before, *row, *after] for row in rows])
        return [row[1:-1] for row in logits.argmax(-1).tolist()]
    size = int(system.removeprefix("pieces of ").partition(",")[0])
    cuts = cuts_of(wanted, len(rows[0]), size - 2)
    found: list[list[int]] = [[] for _ in rows]
    for start, stop, first, last in cuts:
        logits = model.classify([[*before, *row[start:stop], *after] for row in rows])
        for own, row in zip(found, logits.argmax(-1).tolist(), strict=True):
            own += row[first - start + 1 : last - start + 1]
    return found


def counted(sample: Document, labels: Sequence[int]) -> dict[str, list[int]]:
    """Return what was right: [wrongly found], and a flag per entity by its group."""
    got = spans_of(labels)
    groups: dict[str, list[int]] = {"extra": [len(got - {one[:3] for one in sample.entities})]}
    for one in sample.entities:
        groups.setdefault(group_of(one), []).append(int(one[:3] in got))
    return groups


def group_of(entity: Entity, size: int = TRAINED) -> str:
    """Say whether pieces cut an entity in two, or where its kind is said."""
    room = size - 2
    if entity.start // room != (entity.stop - 1) // room:
        return "cut in two"
    return "said earlier" if entity.distance < 0 else "said later"


def f1(groups: dict[str, list[int]]) -> float:
    """Return the F1 of a document."""
    flags = [flag for name, flags in groups.items() if name != "extra" for flag in flags]
    return 2 * sum(flags) / max(len(flags) + sum(flags) + groups["extra"][0], 1)


def measure(folder: Path, count: int, seed: int = 1) -> dict[str, list[dict[str, list[int]]]]:
    """Tag documents with all systems; return the counts of each document."""
    model = at.load(str(folder), backend="torch")
    rng = np.random.default_rng(seed)
    samples = [document(rng, LONG - 2, NEAR, FAR) for _ in range(count)]
    found: dict[str, list[dict[str, list[int]]]] = {}
    for name in SYSTEMS:
        labels: list[list[int]] = []
        for start in range(0, count, 10):
            labels += tagged(model, samples[start : start + 10], name)
        found[name] = [counted(*pair) for pair in zip(samples, labels, strict=True)]
        print(f"{name}: F1 {np.mean([f1(groups) for groups in found[name]]):.3f}", flush=True)
    return found


def table(found: dict[str, list[dict[str, list[int]]]]) -> str:
    """Return F1, its paired difference to overlapping pieces, and what was found by group."""
    base = [f1(groups) for groups in found["pieces of 256, overlapping by half"]]
    names = ("said earlier", "said later")
    lines = [
        f"| system | F1 (n = {len(base)} documents) | against overlapping pieces of 256 | "
        + " | ".join(f"found, {name}" for name in names) + " |",
        "|---|---|---|" + "---|" * len(names),
    ]  # fmt: skip
    for system, documents in found.items():
        own = [f1(groups) for groups in documents]
        mean, gap = intervals.mean(own), intervals.difference(own, base)
        text = f"{gap.value:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})"
        if gap.excludes_zero and len(own) >= intervals.ENOUGH:
            text = f"**{text}**"
        shares = []
        for name in names:
            flags = [flag for groups in documents for flag in groups.get(name, [])]
            shares.append(f"{100 * np.mean(flags):.0f} % of {len(flags)}")
        value = f"{mean.value:.2f} ({mean.low:.2f} to {mean.high:.2f})"
        lines.append(f"| {system} | {value} | {'' if own == base else text} | "
                     + " | ".join(shares) + " |")  # fmt: skip
    return "\n".join(lines)


def picture(samples: Sequence[Document], model: Any) -> str:
    """Draw the first entity that pieces cut in two and lose, and ``attendre:512`` finds.

    Nothing is drawn by hand: brackets are the spans that each system found around the cut.
    """
    names = ("pieces of 256", "pieces of 256, overlapping by half", "attendre:512")
    for sample in samples:
        if not any(group_of(one) == "cut in two" for one in sample.entities):
            continue
        found = {name: spans_of(tagged(model, [sample], name)[0]) for name in names}
        for one in sample.entities:
            lost = all(span[0] >= one.stop or span[1] <= one.start for span in found[names[0]])
            if group_of(one) == "cut in two" and lost and one[:3] in found[names[2]]:
                return _drawn(sample, one, found)
    return "no such entity"


def _drawn(sample: Document, one: Entity, found: dict[str, set[tuple[int, int, int]]]) -> str:
    first, last, room = one.start - 3, one.stop + 3, TRAINED - 2
    cut = (one.start // room + 1) * room
    words, places, line = [VOCABULARY[i] for i in sample.ids], {}, ""
    for place in range(first, last):
        line += " |" * (place == cut) + " "
        places[place] = len(line)
        line += words[place]
    away = f"{abs(one.distance)} words {'earlier' if one.distance < 0 else 'later'}"
    told = words[one.start + one.distance]
    lines = [f"{'words; | = where pieces end':<36}{line}"]
    for name, spans in (("what is true", {one[:3]}), *found.items()):
        row = [" "] * (len(line) + 12)
        for start, stop, kind in sorted(spans):
            if start >= first and stop <= last:
                a, b = places[start], places[stop - 1] + len(words[stop - 1])
                row[a:b] = f"[{KINDS[kind]:-<{b - a - 2}}]"
        lines.append(f"{name:<36}{''.join(row).rstrip()}".rstrip())
    return "\n".join([*lines, "", f"Its kind is said by {told!r}, {away}."])


def main() -> None:
    """Train, measure, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--record", type=Path, help="write the counts of all documents")
    parser.add_argument("--picture", type=Path, help="write a picture of one entity as text")
    parser.add_argument("--count", type=int, default=24, help="documents (24)")
    arguments = parser.parse_args()
    if not (arguments.out / "model.safetensors").is_file():
        arguments.out.mkdir(parents=True, exist_ok=True)
        print(f"trained in {train(arguments.out):.0f} s")
    found = measure(arguments.out, arguments.count)
    if arguments.picture:
        rng = np.random.default_rng(1)
        samples = [document(rng, LONG - 2, NEAR, FAR) for _ in range(400)]
        drawn = picture(samples, at.load(str(arguments.out), backend="torch"))
        arguments.picture.write_text(drawn + "\n", encoding="utf-8")
    if arguments.record:
        lines = [json.dumps({"system": name, "documents": each}) for name, each in found.items()]
        arguments.record.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
