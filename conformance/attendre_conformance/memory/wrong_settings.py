"""Mistakes in sizes, words, numbers and states."""

from __future__ import annotations

import numpy as np

import attendre_core as at
from attendre_conformance.memory.mistakes import (
    ATTEND,
    BROKEN,
    CONFIG,
    INSERT,
    LFA,
    LRA,
    STATE,
    B,
    M,
    Memory,
    Mistake,
    S,
    spoiled,
    two_libraries,
)
from attendre_conformance.running import from_numpy

WRONG_SETTINGS = [
    # sizes
    Mistake(
        "size-zero", CONFIG, ("KeyValueMemory", "size", "0", "at least 1"),
        lambda s: at.KeyValueMemory(size=0),
    ),
    Mistake(
        "size-negative", CONFIG, ("KeyValueMemory", "size", "-3", "at least 1"),
        lambda s: at.KeyValueMemory(size=-3),
    ),
    Mistake(
        "size-no-whole-number", CONFIG, ("KeyValueMemory", "size", "2.5", "whole number"),
        lambda s: Memory(size=2.5),
    ),
    Mistake(
        "queue-size-negative", CONFIG, ("DataOnlyMemory", "size", "-1", "at least"),
        lambda s: at.DataOnlyMemory(size=-1),
    ),
    Mistake(
        "batch-zero", CONFIG, ("KeyValueMemory.init", "batch", "0", "at least 1"),
        lambda s: s.init(s.memory, batch=0),
    ),
    Mistake(
        "head-dim-negative", CONFIG, ("KeyValueMemory.init", "head_dim", "-4", "at least 1"),
        lambda s: s.init(s.memory, head_dim=-4),
    ),
    Mistake(
        "sinks-negative", CONFIG, ("AttentionSink", "sinks", "-1", "0 or more"),
        lambda s: at.AttentionSink(sinks=-1),
    ),
    Mistake(
        "sinks-do-not-fit", CONFIG, ("KeyValueMemory", "5 sinks", "size 4"),
        lambda s: at.KeyValueMemory(size=4, policy=at.AttentionSink(5)),
    ),
    Mistake(
        "window-does-not-fit", CONFIG, ("KeyValueMemory", "5 protected", "size 4"),
        lambda s: at.KeyValueMemory(size=4, protect_recent=5),
    ),
    Mistake(
        "top-k-too-large", CONFIG, (ATTEND, "top_k", "9", "5 slots", "top_k=None"),
        lambda s: s.attend(top_k=9),
    ),
    Mistake(
        "retrieve-top-k-too-large", CONFIG, ("KeyValueMemory.retrieve", "top_k", "6", "5 slots"),
        lambda s: s.memory.retrieve(s.state, s.a(s.query), top_k=6),
    ),
    Mistake(
        "top-k-zero", CONFIG, (ATTEND, "top_k", "0", "at least 1"),
        lambda s: s.attend(top_k=0),
    ),
    Mistake(
        "top-k-negative", CONFIG, (ATTEND, "top_k", "-2", "at least 1"),
        lambda s: s.attend(top_k=-2),
    ),
    Mistake(
        "too-many-pinned", CONFIG, (INSERT, "6", "pinned", "holds 5"),
        lambda s: s.memory.insert(
            s.memory.insert(s.state, s.a(s.key), s.a(s.key), pinned=s.a(s.valid))[0],
            s.a(s.key),
            s.a(s.key),
            pinned=s.a(s.valid),
        ),
    ),
    Mistake(
        "byte-budget-too-small", CONFIG, ("within_bytes", "10 bytes"),
        lambda s: at.KeyValueMemory.within_bytes(10, heads=2, head_dim=4),
    ),
    Mistake(
        "byte-budget-nonsense", CONFIG, ("'a lot'", "64 MiB"),
        lambda s: at.KeyValueMemory.within_bytes("a lot", heads=2, head_dim=4),
    ),
    # words
    Mistake(
        "present-unknown", CONFIG, ("KeyValueMemory", "'gone'", "'compete'", "'visible'"),
        lambda s: Memory(size=4, present="gone"),
    ),
    Mistake(
        "retrieval-unknown", CONFIG, ("KeyValueMemory", "'magic'", "'threshold'", "'gather'"),
        lambda s: Memory(size=4, retrieval="magic"),
    ),
    Mistake(
        "pool-unknown", CONFIG, ("LRA", "'median'", "'last'", "'max'", "'sum'"),
        lambda s: LRA(pool="median"),
    ),
    Mistake(
        "window-empty", CONFIG, ("LRA", "window", "0", "at least 1"),
        lambda s: LRA("sum", window=0),
    ),
    Mistake(
        "window-fraction", CONFIG, ("LFA", "window", "0.5", "whole number"),
        lambda s: LFA(window=0.5),
    ),
    Mistake(
        "decay-negative", CONFIG, ("LFA", "decay", "-0.5"),
        lambda s: at.LFA(decay=-0.5),
    ),
    Mistake(
        "score-unknown", CONFIG, ("LFA", "'sigmoid'", "'softmax'"),
        lambda s: LFA(score="sigmoid"),
    ),
    Mistake(
        "clip-upside-down", CONFIG, ("Clip", "2.0", "1.0", "low <= high"),
        lambda s: at.Clip(2.0, 1.0),
    ),
    Mistake(
        "pin-upside-down", CONFIG, ("KeyValueMemory", "(5, 2)", "start < stop"),
        lambda s: at.KeyValueMemory(size=4, pin=((5, 2),)),
    ),
    Mistake(
        "ties-unknown", CONFIG, ("KeyValueMemory", "'coin'", "'recency'", "RandomTies"),
        lambda s: Memory(size=4, ties="coin"),
    ),
    Mistake(
        "quantile-beyond-one", CONFIG, ("QuantileScore", "10", "0 to 1"),
        lambda s: at.QuantileScore(10),
    ),
    Mistake(
        "policy-is-none", CONFIG, ("KeyValueMemory", "'LFA'", "at.LFA()"),
        lambda s: Memory(size=4, policy="LFA"),
    ),
    Mistake(
        "aux-not-announced", CONFIG, (INSERT, "aux", "init"),
        lambda s: s.memory.insert(
            s.state, s.a(s.key), s.a(s.key), aux=from_numpy(s.backend, (s.place,))
        ),
    ),
    # broken numbers
    Mistake(
        "key-nan", BROKEN, (INSERT, "key", "(1, 1)", "NaN", "valid=False"),
        lambda s: s.insert(spoiled(s.key, np.nan)),
    ),
    Mistake(
        "key-inf", BROKEN, (INSERT, "key", "(1, 1)", "infinity"),
        lambda s: s.insert(spoiled(s.key, np.inf)),
    ),
    Mistake(
        "value-nan", BROKEN, (INSERT, "value", "(1, 1)", "NaN"),
        lambda s: s.insert(value=spoiled(s.key, np.nan)),
    ),
    Mistake(
        "score-nan", BROKEN, (INSERT, "score", "(1, 1)", "NaN"),
        lambda s: s.insert(score=spoiled(np.zeros((B, S), dtype=np.float32), np.nan)),
    ),
    Mistake(
        "query-inf", BROKEN, (ATTEND, "query", "(1, 1)", "infinity"),
        lambda s: s.attend(spoiled(s.query, -np.inf)),
    ),
    # states and libraries
    Mistake(
        "state-of-another-size", STATE, (INSERT, "state", "7", "size=5", "init"),
        lambda s: s.memory.insert(
            s.init(at.KeyValueMemory(size=7)), s.a(s.key), s.a(s.key)
        ),
    ),
    Mistake(
        "state-per-head", STATE, (ATTEND, "state", "per_head=False"),
        lambda s: s.memory.attend(
            s.init(at.KeyValueMemory(size=M, per_head=True)), s.a(s.query)
        ),
    ),
    Mistake(
        "state-of-a-queue", STATE, (ATTEND, "DataOnlyState", "KeyValueState"),
        lambda s: s.memory.attend(
            at.DataOnlyMemory(size=M).init((s.a(s.key),)), s.a(s.query)
        ),
    ),
    Mistake(
        "state-is-no-state", STATE, (ATTEND, "dict", "KeyValueState"),
        lambda s: s.memory.attend({}, s.a(s.query)),
    ),
    Mistake(
        "two-libraries", at.LibraryMixError, ("two libraries", "convert"), two_libraries
    ),
]  # fmt: skip
