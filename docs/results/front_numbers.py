"""The three numbers of the README, each with what it does not say."""

from __future__ import annotations

import json
import math
import textwrap

import policies
import write_encoders

from attendre_core.evaluation.intervals import mean
from attendre_core.evaluation.sweep import Cell, Measured, read_results
from attendre_core.evaluation.sweep.summary import paired
from attendre_core.evaluation.sweep.table import gap_text
from attendre_core.speed.results import Results

#: The memory of the first number, and the records that it comes from.
_OURS, _SIZE = "attendre-causal", 128


def numbers() -> str:
    """Return a paragraph for each number: text, both directions, cost."""
    return "\n".join(
        textwrap.fill(text, 100, subsequent_indent="  ", break_on_hyphens=False)
        for text in (_text(), _directions(), _cost())
    )


def _equal(record: policies.Record) -> tuple[Measured, Measured]:
    """Return our system, and sinks that hold as many entries."""
    ours = record.at(_OURS, _SIZE)
    sinks = None if ours is None else record.at("AS", round(ours.mean("entries")))
    if ours is None or sinks is None:
        raise LookupError(f"{record.name} lacks {_OURS}:{_SIZE}, or AS with as many entries")
    return ours, sinks


def _text() -> str:
    record, facts = (policies.read_record(f"{name}-smollm2") for name in ("stream", "keys"))
    ours, sinks = _equal(record)
    cells = (ours, sinks, record.cells[Cell("full", 0, 0)])
    bounded, recent, full = (f"{math.exp(one.mean('loss')):.1f}" for one in cells)
    found, lost = _equal(facts)
    gap = paired(found, lost, facts.metric.name)
    if gap is None:
        raise LookupError(f"{facts.name}: the two systems share no items")
    return (
        f"- **Perplexity {bounded}**, against {recent} for sinks and recent tokens with as many "
        f"entries, and {full} with full attention: SmolLM2-135M reads War and Peace through "
        f"{ours.mean('entries'):.0f} entries per layer (`{_OURS}`, M = {_SIZE}). *But:* "
        f"{len(ours.scores)} pieces of {record.identity['piece']} tokens; and where one of "
        f"{facts.identity['keys']} facts is asked for at the end, the difference to such sinks is "
        f"{gap_text(facts.metric, gap)} nats per token, n = {len(found.scores)}."
    )


def _directions() -> str:
    file = write_encoders.HERE / "encoders" / "entities.jsonl"
    records = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    f1 = write_encoders.example().f1
    found = {one["system"]: [f1(groups) for groups in one["documents"]] for one in records}
    names = ("attendre:512", "pieces of 512, overlapping by half", "full attention")
    ours, pieces, full = (f"{mean(found[name]).value:.2f}" for name in names)
    _, measured = read_results(write_encoders.HERE / "encoders" / "retrieval-minilm-1k.jsonl")
    best = {one.cell.policy: one for one in measured}
    cut, spans = (best[name] for name in ("overlapping-pieces", "attendre"))
    return (
        f"- **F1 {ours}**, against {pieces} with overlapping pieces of 512 words, and {full} with "
        "full attention: a small encoder tags entities in documents of 1,024 words "
        f"(`attendre:512`, N = 256). *But:* {len(found[names[0]])} documents of a task made for "
        "this; and to find documents, the best of overlapping pieces is the better tool: "
        f"nDCG@10 of {cut.mean('ndcg_best'):.2f}, through a memory {spans.mean('ndcg_best'):.2f}, "
        f"n = {len(cut.scores)}."
    )


def _cost() -> str:
    results = Results.load(write_encoders.HERE.parent / "benchmarks.json")
    ratios = {figure.name.removeprefix("torch: "): figure.ratio for figure in results.figures}
    million = "at token 1,000,000 ÷ at token"
    held, time, read = (
        ratios[name]
        for name in (
            f"resident memory {million} 23,000",
            f"time per chunk {million} 10,000",
            "SmolLM2-135M, M=1024, S=128, attendre-causal: prefill ÷ FIFO",
        )
    )
    if held is None or time is None or read is None:
        raise LookupError("benchmarks.json lacks a figure of the README")
    return (
        f"- **{held.median:.3f} times** the resident memory at token 1,000,000 as at token 23,000, "
        f"and {time.median:.2f} times the time per chunk as at token 10,000. *But:* one layer, on "
        "one CPU thread; and SmolLM2-135M with `attendre-causal`, M = 1,024, takes "
        f"{read.median:.2f} times as long to read as with FIFO."
    )
