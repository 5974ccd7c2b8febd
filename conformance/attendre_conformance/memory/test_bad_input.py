"""Bad input: an error that says where, what, what was expected and what to do.

Every mistake is made on the backend under test and on NumPy: class and words must be the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.running import from_numpy, to_numpy

pytestmark = pytest.mark.attendre_profile("eager")

B, S, M, G, H, D = 2, 3, 5, 2, 4, 4


class Scene:
    """A memory in use on one backend, and well-formed arrays to spoil."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.xp = backend.xp
        self.memory: Any = at.KeyValueMemory(size=M, policy=at.LFA(0.0))
        self.state = self.init(self.memory)
        rng = np.random.default_rng(0)
        self.key = rng.standard_normal((B, S, G, D)).astype(np.float32)
        self.query = rng.standard_normal((B, S, H, D)).astype(np.float32)
        self.place = np.tile(np.arange(S, dtype=np.int32), (B, 1))
        self.valid = np.ones((B, S), dtype=bool)
        self.state, _ = self.memory.insert(self.state, self.a(self.key), self.a(self.key))

    def init(self, memory: Any, **options: Any) -> Any:
        """Make a state of the usual sizes."""
        sizes = {"batch": B, "heads": G, "head_dim": D, "dtype": self.xp.float32, **options}
        return memory.init(xp=self.xp, **sizes)

    def a(self, array: Any) -> Any:
        """Turn a NumPy array into one of the backend."""
        return self.backend.from_numpy(np.array(array))

    def insert(self, key: Any = None, value: Any = None, **more: Any) -> Any:
        """Insert NumPy arrays, the usual ones where none are given."""
        key = self.key if key is None else key
        value = self.key if value is None else value
        arrays = {name: self.a(x) if isinstance(x, np.ndarray) else x for name, x in more.items()}
        return self.memory.insert(self.state, self.a(key), self.a(value), **arrays)

    def attend(self, query: Any = None, **more: Any) -> Any:
        """Attend with NumPy arrays, the usual ones where none are given."""
        query = self.query if query is None else query
        arrays = {name: self.a(x) if isinstance(x, np.ndarray) else x for name, x in more.items()}
        return self.memory.attend(self.state, self.a(query), **arrays)


@dataclass(frozen=True)
class Mistake:
    """Something a caller may do wrong, and what the error must say."""

    name: str
    error: type[Exception]
    words: tuple[str, ...]
    make: Callable[[Scene], Any]


def spoiled(array: Any, number: float) -> Any:
    """Return a copy with one broken number, in entry 1 of row 1."""
    array = array.copy()
    array[(1, 1) + (0,) * (array.ndim - 2)] = number
    return array


def queue_insert(scene: Scene, **change: Any) -> Any:
    """Insert into a data-only memory, with something changed."""
    queue = at.DataOnlyMemory(size=2)
    data = (np.zeros((B, S, 3), dtype=np.float32), np.zeros((B, S), dtype=np.int32))
    state = queue.init(from_numpy(scene.backend, data))
    arguments: dict[str, Any] = {"data": data, "valid": scene.valid, **change}
    return queue.insert(
        state,
        from_numpy(scene.backend, arguments["data"]),
        valid=scene.a(arguments["valid"]),
    )


def two_libraries(scene: Scene) -> Any:
    """Pass arrays of another library than the state's."""
    name = "array_api_strict" if scene.backend.name == "numpy" else "numpy"
    try:
        other = at.backend(name)
    except at.ConfigError:
        pytest.skip(f"there is no other library than {scene.backend.name} installed")
    key = other.from_numpy(scene.key)
    return scene.memory.insert(scene.state, key, key)


SHAPE, DTYPE, CONFIG, STATE, BROKEN = (
    at.ShapeError,
    at.DTypeError,
    at.ConfigError,
    at.StateError,
    at.NonFiniteError,
)
#: What is passed to these is wrong on purpose, and type checkers would say so.
Memory: Any = at.KeyValueMemory
LRA: Any = at.LRA
LFA: Any = at.LFA
INSERT, ATTEND = "KeyValueMemory.insert", "KeyValueMemory.attend"

MISTAKES = [
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
        (INSERT, "key", "(1, 3, 2, 4)", "(2, any, 2, 4)"),
        lambda s: s.insert(s.key[:1], s.key[:1]),
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


@pytest.mark.parametrize("mistake", MISTAKES, ids=[one.name for one in MISTAKES])
def test_mistake_is_explained(backend: Any, mistake: Mistake) -> None:
    """The error has the right class, says where, what, what was expected and what to do.

    Issue, bad input: the same words on every backend.
    """
    scene = Scene(backend)
    with pytest.raises(mistake.error) as caught:
        mistake.make(scene)
    message = str(caught.value)
    assert type(caught.value) is mistake.error, (
        f"{mistake.name}: {type(caught.value).__name__}, expected {mistake.error.__name__}"
    )
    for word in mistake.words:
        assert word in message, f"{mistake.name}: {word!r} is missing in {message!r}"
    builtin = TypeError if mistake.error in (DTYPE, at.LibraryMixError) else ValueError
    assert isinstance(caught.value, builtin), f"{mistake.name}: not a {builtin.__name__}"
    if mistake.name == "two-libraries":
        return
    with pytest.raises(mistake.error) as on_numpy:
        mistake.make(Scene(at.backend("numpy")))
    assert message == str(on_numpy.value), (
        f"{mistake.name}: {backend.name} says {message!r}, numpy says {str(on_numpy.value)!r}"
    )


@pytest.mark.parametrize(
    "mistake",
    [one for one in MISTAKES if one.words[0] in (INSERT, ATTEND, "two libraries")],
    ids=lambda one: one.name,
)
def test_state_is_usable_after_a_mistake(backend: Any, mistake: Mistake) -> None:
    """A failed call leaves the caller's state as it was, and the memory works on.

    Issue, bad input: a failed call leaves the caller's state usable.
    """
    scene = Scene(backend)
    before = to_numpy(backend, scene.state)
    with pytest.raises(mistake.error):
        mistake.make(scene)
    comparing.assert_same(
        to_numpy(backend, scene.state), before, f"state after the mistake {mistake.name}"
    )
    untouched = Scene(backend)
    got = to_numpy(backend, scene.insert()[0])
    want = to_numpy(backend, untouched.insert()[0])
    comparing.assert_same(got, want, f"state one insert after the mistake {mistake.name}")


def test_unknown_backend_is_explained() -> None:
    """Asking for a backend that is not there names those that are.

    Issue: an error that says what to do.
    """
    with pytest.raises(at.ConfigError, match="numpy") as caught:
        at.backend("no-such-library")
    assert "no-such-library" in str(caught.value), str(caught.value)
