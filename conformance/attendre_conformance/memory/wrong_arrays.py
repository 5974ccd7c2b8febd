"""Mistakes in the shapes and dtypes of arrays."""

from __future__ import annotations

import numpy as np

from attendre_conformance.memory.mistakes import (
    ATTEND,
    DTYPE,
    INSERT,
    SHAPE,
    B,
    D,
    G,
    H,
    Mistake,
    S,
    queue_insert,
)

WRONG_ARRAYS = [
    # wrong ranks and shapes
    Mistake(
        "key-heads-not-split",
        SHAPE,
        (INSERT, "key", "(2, 3, 8)", "(2, any, 2, 4)", "Split the heads"),
        lambda s: s.insert(s.key.reshape(B, S, G * D)),
    ),
    Mistake(
        "key-wrong-batch",
        SHAPE,
        (INSERT, "key", "(1, 3, 2, 4)", "(2, any, 2, 4)", "has 2 rows, but 1", "init(batch=1)"),
        lambda s: s.insert(s.key[:1], s.key[:1]),
    ),
    Mistake(
        "key-heads-before-seq",
        SHAPE,
        (INSERT, "key", "(2, 2, 3, 4)", "(batch, heads, seq, head_dim)", "key.swapaxes(1, 2)"),
        lambda s: s.insert(s.key.swapaxes(1, 2), s.key.swapaxes(1, 2)),
    ),
    Mistake(
        "key-wrong-heads",
        SHAPE,
        (INSERT, "key", "(2, 3, 1, 4)", "2, 4)"),
        lambda s: s.insert(s.key[:, :, :1], s.key[:, :, :1]),
    ),
    Mistake(
        "value-wrong-length",
        SHAPE,
        (INSERT, "value", "(2, 2, 2, 4)", "3"),
        lambda s: s.insert(value=s.key[:, :2]),
    ),
    Mistake(
        "value-wrong-width",
        SHAPE,
        (INSERT, "value", "(2, 3, 2, 3)", "4"),
        lambda s: s.insert(value=s.key[..., :3]),
    ),
    Mistake(
        "position-wrong-shape",
        SHAPE,
        (INSERT, "position", "(3,)", "(2, 3)"),
        lambda s: s.insert(position=s.place[0]),
    ),
    Mistake(
        "valid-wrong-shape",
        SHAPE,
        (INSERT, "valid", "(2, 2)", "(2, 3)"),
        lambda s: s.insert(valid=s.valid[:, :2]),
    ),
    Mistake(
        "pinned-wrong-shape",
        SHAPE,
        (INSERT, "pinned", "(3,)", "(2, 3)"),
        lambda s: s.insert(pinned=s.valid[0]),
    ),
    Mistake(
        "score-wrong-shape",
        SHAPE,
        (INSERT, "score", "(2, 3, 2)", "(2, 3)"),
        lambda s: s.insert(score=np.zeros((B, S, G), dtype=np.float32)),
    ),
    Mistake(
        "query-wrong-rank",
        SHAPE,
        (ATTEND, "query", "(2, 3, 16)", "(2, any, any, 4)", "Split the heads"),
        lambda s: s.attend(s.query.reshape(B, S, H * D)),
    ),
    Mistake(
        "query-heads-no-multiple",
        SHAPE,
        (ATTEND, "3 heads", "multiple", "2 K/V heads"),
        lambda s: s.attend(s.query[:, :, :3]),
    ),
    Mistake(
        "query-wrong-batch",
        SHAPE,
        (ATTEND, "query", "(1, 3, 4, 4)", "(2, any, any, 4)", "has 2 rows, but 1"),
        lambda s: s.attend(s.query[:1]),
    ),
    Mistake(
        "query-heads-before-seq",
        SHAPE,
        (ATTEND, "3 heads", "(batch, heads, seq, head_dim)", "query.swapaxes(1, 2)"),
        lambda s: s.attend(s.query.swapaxes(1, 2)),
    ),
    Mistake(
        "query-wrong-width",
        SHAPE,
        (ATTEND, "query", "(2, 3, 4, 2)", "4)"),
        lambda s: s.attend(s.query[..., :2]),
    ),
    Mistake(
        "query-valid-wrong-shape",
        SHAPE,
        (ATTEND, "valid", "(2, 2)", "(2, 3)"),
        lambda s: s.attend(valid=s.valid[:, :2]),
    ),
    Mistake(
        "query-position-wrong-shape",
        SHAPE,
        (ATTEND, "position", "(2, 1)", "(2, 3)"),
        lambda s: s.attend(position=s.place[:, :1]),
    ),
    Mistake(
        "reset-wrong-shape",
        SHAPE,
        ("KeyValueMemory.reset", "rows", "(3,)", "(2,)"),
        lambda s: s.memory.reset(s.state, s.a(np.zeros(3, dtype=bool))),
    ),
    Mistake(
        "reorder-row-that-is-none",
        SHAPE,
        ("KeyValueMemory.reorder", "index", "0..1"),
        lambda s: s.memory.reorder(s.state, s.a(np.asarray([0, 2], dtype=np.int32))),
    ),
    Mistake(
        "reorder-wrong-rank",
        SHAPE,
        ("KeyValueMemory.reorder", "index", "(1, 2)"),
        lambda s: s.memory.reorder(s.state, s.a(np.asarray([[0, 1]], dtype=np.int32))),
    ),
    Mistake(
        "queue-wrong-width",
        SHAPE,
        ("DataOnlyMemory.insert", "(2, 3, 2)", "(2, 3, 3)"),
        lambda s: queue_insert(
            s, data=(np.zeros((B, S, 2), np.float32), np.zeros((B, S), np.int32))
        ),
    ),
    Mistake(
        "queue-valid-wrong-shape",
        SHAPE,
        ("DataOnlyMemory.insert", "valid", "(2, 1)", "(2, 3)"),
        lambda s: queue_insert(s, valid=s.valid[:, :1]),
    ),
    # wrong dtypes
    Mistake(
        "key-integers",
        DTYPE,
        (INSERT, "key", "int32", "float32", "Cast"),
        lambda s: s.insert(s.key.astype(np.int32)),
    ),
    Mistake(
        "value-integers",
        DTYPE,
        (INSERT, "value", "int32", "float32"),
        lambda s: s.insert(value=s.key.astype(np.int32)),
    ),
    Mistake(
        "position-floats",
        DTYPE,
        (INSERT, "position", "float32", "int32"),
        lambda s: s.insert(position=s.place.astype(np.float32)),
    ),
    Mistake(
        "valid-integers",
        DTYPE,
        (INSERT, "valid", "int32", "bool"),
        lambda s: s.insert(valid=s.valid.astype(np.int32)),
    ),
    Mistake(
        "query-integers",
        DTYPE,
        (ATTEND, "query", "int32", "float32"),
        lambda s: s.attend(s.query.astype(np.int32)),
    ),
    Mistake(
        "query-valid-floats",
        DTYPE,
        (ATTEND, "valid", "float32", "bool"),
        lambda s: s.attend(valid=s.valid.astype(np.float32)),
    ),
    Mistake(
        "reset-integers",
        DTYPE,
        ("KeyValueMemory.reset", "rows", "int32", "bool"),
        lambda s: s.memory.reset(s.state, s.a(np.asarray([0, 1], dtype=np.int32))),
    ),
    Mistake(
        "reorder-floats",
        DTYPE,
        ("KeyValueMemory.reorder", "index", "float32"),
        lambda s: s.memory.reorder(s.state, s.a(np.asarray([0, 1], dtype=np.float32))),
    ),
    Mistake(
        "init-integers",
        DTYPE,
        ("KeyValueMemory.init", "int32", "float"),
        lambda s: s.init(s.memory, dtype=s.xp.int32),
    ),
]
