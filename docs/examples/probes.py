"""Systems that ask before they evict: KVzip, Finch, attention sorting, fewer encoder outputs.

A probe lets tokens attend to what was read, so that the scores change and nothing else does::

    python docs/examples/probes.py --model SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import attendre_core as at
from attendre_core.backend import Array, namespace_of
from attendre_core.evaluation import difference, load_tiny, share
from attendre_core.evaluation.tasks import LookAhead
from attendre_core.evaluation.tasks.answering import log_likelihood
from attendre_core.evaluation.tasks.multi_key import MultiKey

__all__ = [
    "ByProbes",
    "ReplayMax",
    "attention_sorting",
    "finch",
    "kvzip",
    "measured",
    "memory",
    "outputs_kept",
]

REPEAT = "\n\nRepeat the previous context exactly.\n"

#: What probes are compared with: sums of softmax weights, per head, half of M recent.
SUMS = "LFA-3e-3+softmax+start=0+visible+per-head+sinks=4+recent=half"


@dataclass(frozen=True)
class ByProbes(at.Policy):
    """Evict the lowest score; new entries have none, and reading changes none: probes do."""

    def enter(self, stored: at.Stored, new: Any) -> Array:
        """Start from zero."""
        return namespace_of(stored.score).zeros_like(stored.score[..., 0])


@dataclass(frozen=True)
class ReplayMax(ByProbes):
    """The largest weight that any query of any replay so far gave an entry (KVzip)."""

    def observe(self, stored: at.Stored, attention: at.Attention) -> Array:
        """Raise the scores of what this replay attended to more than all before."""
        weight = attention.pool("weights", queries="max", heads="max")
        return namespace_of(weight).maximum(stored.score, weight)


def memory(size: int, chunk: int) -> at.MemoryConfig:
    """Return memories that evict what the probes do not want, each head for itself."""
    return at.MemoryConfig(
        ByProbes(), size, chunk=chunk, present="visible", per_head=True, sinks=4
    )  # fmt: skip


def kvzip(stream: at.Stream, blocks: Iterable[Any], prompt: Any = REPEAT) -> None:
    """Read blocks; after each, let the model repeat it, and keep what it needed for that."""
    for block in blocks:
        stream.feed(block)
        stream.probe(prompt, block, policy=ReplayMax())


def finch(stream: at.Stream, blocks: Iterable[Any], question: Any) -> None:
    """Read blocks; after each, keep what the question attends to (Finch, TAKE)."""
    for block in blocks:
        stream.feed(block)
        stream.probe(question, policy=at.LRA("sum", score="softmax"))


def attention_sorting(
    model: at.Model, documents: Sequence[Any], question: Any, rounds: int = 2
) -> tuple[at.Stream, list[int]]:
    """Read documents, sort them by the attention that the question pays them, read again."""
    order = list(range(len(documents)))
    for _ in range(rounds):
        stream = read_in_order(model, documents, order)
        order = [int(number) for number in stream.attention_by("document", question)]
    return read_in_order(model, documents, order), order


def read_in_order(model: at.Model, documents: Sequence[Any], order: Sequence[int]) -> at.Stream:
    """Read documents in an order."""
    stream = model.stream()
    for number in order:
        stream.feed(documents[number], document=number)
    return stream


def measured(
    model: at.Model,
    *,
    size: int = 48,
    chunk: int = 32,
    limit: int = 20,
    keys: int = 12,
    only: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Return the log-likelihood of answers about one of several codes, (questions,) by system."""
    task = MultiKey(limit=limit, keys=keys, question="last")
    questions = list(task.questions(model))
    plain = at.preset(SUMS, size, chunk=chunk)
    systems = {
        "LFA-3e-3": (plain, "none"),
        "LFA-3e-3, question probed": (plain, "question"),
        "KVzip": (memory(size, chunk), "kvzip"),
        "Finch": (memory(size, chunk), "finch"),
    }
    systems = {name: system for name, system in systems.items() if not only or name in only}
    results: dict[str, list[np.ndarray]] = {name: [] for name in systems}
    for start in range(0, len(questions), 10):
        some = questions[start : start + 10]
        contexts = [q.tokens[: q.context] for q in some]
        asked = [q.tokens[q.context :] for q in some]
        blocks = [
            [row[place : place + chunk] for row in contexts]
            for place in range(0, max(map(len, contexts)), chunk)
        ]
        for name, (config, how) in systems.items():
            stream = model.with_memory(config).stream(len(some))
            if how == "finch":
                finch(stream, blocks, asked)
            elif how == "kvzip":
                kvzip(stream, blocks)
            else:
                for block in blocks:
                    stream.feed(block)
                    if how == "question":
                        stream.probe(asked)
            stream.feed(asked)
            gold = [q.gold for q in some]
            writer = stream.writer(max(map(len, gold)))
            results[name].append(log_likelihood(*writer, gold))
    return {name: np.concatenate(parts) for name, parts in results.items()}


def outputs_kept(share_kept: float = 0.1, count: int = 100) -> np.ndarray:
    """Return whether the answer's own token is among the encoder outputs kept, (documents,).

    A tiny encoder-decoder reads documents in which one of many records answers a question; after
    its first token it keeps a share of the outputs (Berchansky et al., 2023).
    """
    model = load_tiny("encoder-decoder", "MT:512")
    right = []
    for document in LookAhead(answers="single").documents(seed=0, count=count, chunks=(8, 16)):
        stream = model.stream()
        stream.feed(document.tokens.tolist())
        encoded, _ = stream.encoded()
        key, _ = model.writing_part.cross_project(model.params["decoder"]["layers"][0], encoded)
        (place,) = np.nonzero(document.tokens == document.answer)[0]
        own = key[0, key.shape[1] - len(document.tokens) + place]
        stream.keep_encoder_outputs(share_kept)
        writer, _ = stream.writer(1)
        kept, _, valid = writer.blocks[0].cross
        right.append(bool((kept[0][valid[0]] == own).all(axis=(1, 2)).any()))
    return np.asarray(right)


def main() -> None:
    """Print records, one per line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a checkpoint that answers questions")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=())
    given = parser.parse_args()
    kept = share(outputs_kept())
    print(json.dumps({"system": "encoder outputs", "kept": [round(x, 3) for x in kept]}))
    if given.model is None:
        return
    model = at.load(given.model, backend=given.backend)
    found = measured(model, limit=given.limit, only=given.only)
    base = found["LFA-3e-3"]
    for name, values in found.items():
        gain = difference(values, base)
        print(json.dumps({
            "system": name, "questions": len(values), "log_likelihood": round(values.mean(), 3),
            "difference": [round(x, 3) for x in gain],
        }))  # fmt: skip


if __name__ == "__main__":
    main()
