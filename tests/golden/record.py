"""Golden streams: what memories and layers kept, evicted, retrieved and computed.

Record every case on NumPy, choosing for each a seed with which rounding decides nothing::

    python tests/golden/record.py record tests/golden/streams.npz

Run the same streams with other code, on any libraries, without the kernels, and count how many
cases are equal bit for bit::

    python tests/golden/record.py record before.npz --like tests/golden/streams.npz \
        --library numpy torch --mode generic
    python tests/golden/record.py compare before.npz after.npz

`test_golden.py` replays the streams on every installed library.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

import attendre_core as at

backends = importlib.import_module("attendre_core.backend")

LIBRARIES = ("numpy", "array_api_strict", "torch", "jax")
#: As a user calls it; without machine code; without any kernel; compiled by the library.
MODES = ("eager", "calls", "generic", "compiled")
#: Tolerance of float32 scores and outputs, relative to the largest number and absolute.
RELATIVE = ABSOLUTE = 2e-5
#: With keys and queries changed by this much, and in float64, all decisions must stay the same.
DISTURBANCE = 4e-6
SEEDS = 2
#: What stands in padding.
GARBAGE, GARBAGE_POSITION = 777.0, 10_000
EXACT_FIELDS = ("kept", "observed", "evicted", "retrieved", "came", "counters")
CLOSE_FIELDS = ("score", "output")

Record = dict[str, np.ndarray]


@dataclass(frozen=True)
class Shape:
    """Sizes of a memory and its chunks; head_dim is a power of 4, so the scale is exact."""

    seq: int
    size: int
    kv_heads: int
    heads: int
    head_dim: int = 4
    steps: int = 6


MHA = Shape(seq=4, size=8, kv_heads=2, heads=2)
GQA = Shape(seq=4, size=12, kv_heads=2, heads=4)
MQA = Shape(seq=4, size=16, kv_heads=1, heads=2, head_dim=16, steps=8)
LONG = Shape(seq=6, size=5, kv_heads=1, heads=2)


@dataclass(frozen=True)
class Case:
    """One memory, or one layer, and the stream that it reads.

    Attributes
    ----------
    options
        Of the `KeyValueMemory`, beyond size and policy.
    exact
        Numbers are quarters, so that logits are exact and ties abound; otherwise plain floats.
    alike
        All keys are equal, and all queries: entries differ only by when they came.
    padding
        Of the second row: none, at the left or right end of the stream, or scattered over both.
    late
        How many positions the queries of a memory lag behind its entries.
    delay
        N of a layer; None without a Q memory.
    pinned, given
        Pin some entries by argument; insert with scores by argument.
    everywhere
        One of those that run even where running takes long.
    """

    name: str
    shape: Shape
    policy: Any
    options: dict[str, Any] = field(default_factory=dict)
    exact: bool = False
    alike: bool = False
    padding: str = "none"
    top_k: int | None = None
    causal: bool = False
    encoding: Any = None
    stride: int = 1
    late: int = 0
    layer: bool = False
    delay: int | None = None
    documents: bool = False
    pinned: bool = False
    given: bool = False
    donate: bool = False
    numbered: bool = True
    everywhere: bool = False

    @property
    def memory(self) -> Any:
        """The memory of this case."""
        return at.KeyValueMemory(size=self.shape.size, policy=self.policy, **self.options)


def memory_cases() -> Iterator[Case]:
    """Every policy, every setting of a policy and every option of a memory."""
    quantile, quota = at.QuantileScore(0.25), at.QuotaScore(0.5)
    exact = {
        "FIFO": at.FIFO(),
        "AttentionSink": at.AttentionSink(sinks=2),
        "LRU": at.LRU(),
        "LRU-quantile": at.LRU(initial=quantile),
        "LFU": at.LFU(),
        "LFU-constant": at.LFU(initial=at.ConstantScore(1.0)),
        "LFU-quota": at.LFU(initial=quota),
        "LRA-last": at.LRA("last"),
        "LRA-last-c0": at.LRA("last", initial=at.InitialScore(0.0)),
        "LRA-max": at.LRA("max"),
        "LRA-max-c-1": at.LRA("max", initial=at.InitialScore(-1.0)),
        "LRA-sum": at.LRA("sum"),
        "LRA-sum-quantile": at.LRA("sum", initial=quantile),
        "LRA-sum-quota": at.LRA("sum", initial=quota),
        "LRA-sum-heads-max": at.LRA("sum", heads="max", initial=at.InitialScore(-1.0)),
        "LRA-mean": at.LRA("mean", initial=at.InitialScore(0.0)),
        "LFA-0": at.LFA(0.0),
        "LFA-0-c0": at.LFA(0.0, initial=at.InitialScore(0.0)),
        "LFA-0-c-1": at.LFA(0.0, initial=at.InitialScore(-1.0)),
        "LFA-0-constant": at.LFA(0.0, initial=at.ConstantScore(0.0)),
        "LFA-0-quota": at.LFA(0.0, initial=quota),
        "LFA-0-clip": at.LFA(0.0, score=at.Clip(0.0, 1.0)),
        "LFA-0-shift": at.LFA(0.0, score=at.Shift("min"), initial=quantile),
        "LFA-0-hold": at.LFA(0.0, hold=True),
        "LFA-0-replace": at.LFA(0.0, start="replace"),
    }
    common = ("FIFO", "AttentionSink", "LRU", "LRA-max", "LFA-0")
    for name, policy in exact.items():
        top_k = 3 if name.startswith(("LRU", "LFU")) else None
        yield Case(f"exact {name}", MHA, policy, exact=True, top_k=top_k, everywhere=name in common)
    floats = {
        "LRU": at.LRU(),
        "LFU": at.LFU(initial=at.InitialScore(0.0)),
        "LRA-last": at.LRA("last", initial=at.InitialScore(0.0)),
        "LRA-last-softmax": at.LRA("last", score="softmax"),
        "LRA-max": at.LRA("max", initial=at.InitialScore(0.0)),
        "LRA-sum": at.LRA("sum", initial=at.InitialScore(0.0)),
        "LRA-sum-hold": at.LRA("sum", hold=True),
        "LRA-sum-softmax": at.LRA("sum", score="softmax", initial=at.InitialScore(0.0)),
        "LRA-mean-heads-max": at.LRA("mean", heads="max", initial=quantile),
        "LRA-mean-clip": at.LRA("mean", score=at.Clip(-0.5, 2.0), initial=quota),
        "LFA-0": at.LFA(0.0),
        "LFA-1e-3": at.LFA(1e-3),
        "LFA-1e-3-c0": at.LFA(1e-3, initial=at.InitialScore(0.0)),
        "LFA-1e-3-c-1": at.LFA(1e-3, initial=at.InitialScore(-1.0)),
        "LFA-1e-3-constant": at.LFA(1e-3, initial=at.ConstantScore(0.5)),
        "LFA-1e-3-quantile": at.LFA(1e-3, initial=quantile),
        "LFA-1e-3-quota": at.LFA(1e-3, initial=quota),
        "LFA-1e-3-softmax": at.LFA(1e-3, score="softmax"),
        "LFA-1e-3-softmax-hold": at.LFA(1e-3, score="softmax", hold=True),
        "LFA-1e-3-shift": at.LFA(1e-3, score=at.Shift("min")),
        "LFA-1e-3-shift-1": at.LFA(1e-3, score=at.Shift(1.0), heads="mean"),
        "LFA-1e-3-clip": at.LFA(1e-3, score=at.Clip(0.0), heads="max"),
        "LFA-1e-1-replace": at.LFA(0.1, start="replace", initial=quota),
        "H2O": at.H2O(),
        "TOVA": at.TOVA(),
    }
    common = ("LRA-sum", "LFA-1e-3", "LFA-1e-3-softmax", "TOVA")
    for number, (name, policy) in enumerate(floats.items()):
        yield Case(
            f"float {name}",
            GQA if number % 2 else MQA,
            policy,
            padding=("none", "left", "right", "scattered")[number % 4],
            top_k=(None, 5)[number // 4 % 2],
            stride=(1, 3)[number % 3 == 1],
            late=(0, 5)["hold" in name],
            everywhere=name in common,
        )
    yield from option_cases()


def option_cases() -> Iterator[Case]:
    """The options of a memory, with policies that they matter to."""
    lfa, lra = at.LFA(1e-3, initial=at.InitialScore(0.0)), at.LRA("sum", initial=at.QuotaScore(0.5))
    exact_lfa = at.LFA(0.0, initial=at.InitialScore(0.0))
    visible, heads = {"present": "visible"}, {"per_head": True}
    yield Case("visible FIFO", MHA, at.FIFO(), visible, padding="scattered")
    yield Case("visible LFA", GQA, lfa, visible, padding="left", everywhere=True)
    yield Case("visible LRA exact", MHA, at.LRA("max"), visible, exact=True, everywhere=True)
    yield Case("visible TOVA", MHA, at.TOVA(), visible, causal=True)
    yield Case("visible H2O", MHA, at.H2O(), visible | heads | {"protect_recent": 3}, causal=True)
    yield Case("visible sinks", MHA, at.AttentionSink(2), visible, padding="right", top_k=3)
    yield Case("visible chunk longer", LONG, exact_lfa, visible, exact=True)
    yield Case("visible pinned", MHA, at.LFU(), visible | {"pin": ((0, 2),)}, exact=True, top_k=3)
    yield Case("per head LFA", GQA, lfa, heads, padding="scattered", everywhere=True)
    yield Case("per head LRA exact", MHA, at.LRA("sum"), heads, exact=True)
    yield Case("per head LRA-last", MHA, at.LRA("last", initial=at.InitialScore(0.0)), heads)
    yield Case("per head LRU", GQA, at.LRU(), heads, exact=True, top_k=3, padding="right")
    yield Case("per head FIFO", MHA, at.FIFO(), heads, padding="left")
    yield Case("per head quota", GQA, lra, heads, padding="left", top_k=5)
    yield Case("per head chunk longer", LONG, lfa, heads)
    yield Case("protect FIFO", MHA, at.FIFO(), {"protect_recent": 3}, exact=True)
    yield Case("protect LFA", GQA, lfa, {"protect_recent": 5}, padding="left")
    yield Case("protect LRA", MHA, at.LRA("max"), {"protect_recent": 4} | heads, exact=True)
    yield Case("protect chunk longer", LONG, at.LFU(), {"protect_recent": 2}, exact=True)
    yield Case("pin FIFO", MHA, at.FIFO(), {"pin": ((0, 2), (5, 6))}, padding="scattered")
    yield Case("pin LFA", GQA, lfa, {"pin": ((3, 6),)}, padding="left", everywhere=True)
    yield Case("pin quantile", MHA, at.LRA("sum", initial=at.QuantileScore(0.5)),
               {"pin": ((1, 3),)}, exact=True)  # fmt: skip
    yield Case("pinned by argument", MHA, lfa, pinned=True, padding="left")
    yield Case("pinned, protected", MHA, exact_lfa, {"protect_recent": 2}, pinned=True, exact=True)
    yield Case("scores by argument", GQA, exact_lfa, given=True, exact=True, padding="scattered")
    yield Case("scores by argument, per head", MHA, at.LFU(), heads, given=True, exact=True)
    yield Case("random ties LFU", MHA, at.LFU(), {"ties": at.RandomTies(3)}, exact=True, top_k=3,
               everywhere=True)  # fmt: skip
    yield Case(
        "random ties LRA", MHA, at.LRA("max"), {"ties": at.RandomTies(1)} | heads, exact=True
    )
    yield Case("random ties visible", MHA, exact_lfa, {"ties": at.RandomTies(2)} | visible,
               exact=True, padding="right")  # fmt: skip
    yield Case("random ties protect", LONG, at.LRU(), {"ties": at.RandomTies(5),
               "protect_recent": 2}, exact=True, top_k=2)  # fmt: skip
    for number, ties in enumerate((at.RandomTies(0), at.RandomTies(4))):
        policy = (at.LFU, at.LRA)[number](initial=at.QuantileScore(0.5))
        yield Case(f"random ties quantile {number}", MHA, policy, {"ties": ties}, exact=True,
                   top_k=3, everywhere=number == 0)  # fmt: skip
    for name, policy in {
        "LFA-1e-3": at.LFA(1e-3), "LFA-0": at.LFA(0.0), "LRA-sum": at.LRA("sum"), "LFU": at.LFU(),
        "LFA-softmax": at.LFA(1e-3, score="softmax"),
    }.items():  # fmt: skip
        yield Case(f"alike {name}", MHA, policy, exact=True, alike=True)
        yield Case(f"alike {name} random ties", GQA, policy, {"ties": at.RandomTies(6)}, exact=True,
                   alike=True, padding="left")  # fmt: skip
    for retrieval in ("threshold", "gather", "approximate"):
        how = {"retrieval": retrieval}
        everywhere = retrieval != "gather"
        yield Case(f"{retrieval} LFA", GQA, lfa, how, top_k=5, everywhere=everywhere)
        yield Case(f"{retrieval} LFU exact", MHA, at.LFU(), how, exact=True, top_k=3)
        yield Case(f"{retrieval} LRU causal", GQA, at.LRU(), how, top_k=4, causal=True, late=3)
        yield Case(f"{retrieval} LRA per head", GQA, lra, how | heads, top_k=5, padding="right")
        yield Case(f"{retrieval} visible softmax", MHA, at.LFA(1e-3, score="softmax"),
                   how | visible, top_k=3, padding="scattered")  # fmt: skip
    yield Case("causal LFA", GQA, lfa, causal=True, padding="left", late=2)
    yield Case("causal LRA exact", MHA, at.LRA("last"), causal=True, exact=True, late=6)
    yield Case("scale", MHA, lfa, {"scale": 0.25}, padding="scattered")
    yield Case("donate LFA", GQA, lfa, donate=True, padding="scattered")
    yield Case("donate visible", MHA, at.LRA("max"), visible, donate=True, exact=True)
    yield Case("positions counted on", MHA, lfa, numbered=False)
    yield Case("positions counted on, causal", GQA, at.LRU(), numbered=False, causal=True, top_k=5)
    for name, policy in {
        "FIFO": at.FIFO(), "LFA": exact_lfa, "LRA": at.LRA("max"), "sinks": at.AttentionSink(2),
        "LFU": at.LFU(),
    }.items():  # fmt: skip
        top_k = 2 if name == "LFU" else None
        yield Case(f"chunk longer {name}", LONG, policy, exact=True, padding="right", top_k=top_k,
                   everywhere=name == "LFA")  # fmt: skip


def layer_cases() -> Iterator[Case]:
    """Every position scheme, with and without a Q memory."""
    encodings = {
        "NoPosition": at.NoPosition(),
        "RoPE": at.RoPE(),
        "LMInfinite": at.LMInfinite(n_local=3),
        "InCache": at.InCache(),
        "T5Bias": at.T5Bias(buckets=8, max_distance=16),
        "ALiBi": at.ALiBi(),
        "Window": at.Window(6, at.RoPE()),
    }
    policies = (
        at.LFA(1e-3, initial=at.InitialScore(0.0)),
        at.LRA("sum", initial=at.QuotaScore(0.5)),
        at.AttentionSink(2),
        at.LFA(1e-3, score="softmax", hold=True),
        at.LRA("max", initial=at.InitialScore(0.0)),
        at.LRU(),
        at.LRA("last", initial=at.InitialScore(-1.0)),
    )
    settings: tuple[dict[str, Any], ...] = (
        {},
        {"top_k": 5, "padding": "scattered"},
        {"options": {"per_head": True}, "padding": "left"},
        {"options": {"present": "visible"}, "causal": True},
        {"documents": True, "padding": "right"},
    )
    number = 0
    for name, encoding in encodings.items():
        for delay in (None, 6):
            for extra in settings:
                if delay is None and "documents" in extra and name not in ("RoPE", "InCache"):
                    continue
                words = "-".join(extra) or "plain"
                yield Case(
                    f"layer {name} N={delay} {words}",
                    GQA if number % 3 else MHA,
                    policies[number % len(policies)],
                    **{"options": {}, **extra},
                    encoding=encoding,
                    layer=True,
                    delay=delay,
                    stride=(1, 1, 2)[number % 3],
                    everywhere=words == "plain",
                )
                number += 1
    lfa = policies[0]
    far = at.LMInfinite(n_local=2)
    yield Case("layer LMInfinite top K", MQA, lfa, encoding=far, layer=True, delay=8, top_k=6)
    yield Case("layer LMInfinite softmax", MQA, policies[3], encoding=far, layer=True, delay=8)
    yield Case("layer LMInfinite heads", GQA, at.LFA(0.0, heads="max"), encoding=far, layer=True)
    yield Case("layer LMInfinite LRA-last", GQA, policies[6], encoding=far, layer=True, delay=7)
    yield Case("layer InCache of LMInfinite", GQA, lfa, encoding=at.InCache(far), layer=True,
               delay=6)  # fmt: skip
    yield Case("layer InCache of T5Bias", MHA, lfa, encoding=at.InCache(encodings["T5Bias"]),
               layer=True)  # fmt: skip
    yield Case("layer Window of LMInfinite", GQA, policies[1], encoding=at.Window(7, far),
               layer=True, delay=6)  # fmt: skip
    yield Case("layer YaRN", MHA, lfa, encoding=at.RoPE(scaling=at.YaRN(4.0, 16)), layer=True)
    yield Case("layer donate", GQA, lfa, encoding=at.RoPE(), layer=True, delay=6, donate=True)
    yield Case("layer gather", GQA, lfa, {"retrieval": "gather"}, encoding=at.RoPE(), layer=True,
               delay=6, top_k=5)  # fmt: skip
    yield Case("layer approximate", GQA, lfa, {"retrieval": "approximate"}, encoding=far,
               layer=True, delay=6, top_k=5)  # fmt: skip


CASES = {case.name: case for case in (*memory_cases(), *layer_cases())}


# -------------------------------------------------------------------------------- streams


def stream_of(case: Case, seed: int, disturbed: int = 0) -> dict[str, np.ndarray | None]:
    """Make the arrays of a stream, (batch, steps * seq, ...)."""
    shape = case.shape
    rng = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
    length = shape.seq * shape.steps
    sizes = (2, length)

    def content(heads: int) -> np.ndarray:
        size = (*sizes, heads, shape.head_dim)
        if case.exact:
            return (rng.integers(-6, 7, size=size) / 4).astype(np.float32)
        return rng.standard_normal(size).astype(np.float32)

    query, key, value = content(shape.heads), content(shape.kv_heads), content(shape.kv_heads)
    if case.alike:
        query[:], key[:] = query[:1, :1], key[:1, :1]
    valid = np.ones(sizes, dtype=bool)
    if case.padding == "left":
        valid[1, :3] = False
    elif case.padding == "right":
        valid[1, -(shape.seq + 2) :] = False
    elif case.padding == "scattered":
        valid = rng.random(sizes) < 0.75
    number = np.cumsum(valid, axis=1) - 1
    position = (number * case.stride).astype(np.int32)
    given = (rng.integers(0, 5, size=sizes) / 4).astype(np.float32)
    pinned = valid & (number % 11 == 4) & (number < 20)
    if disturbed and not case.exact:
        noise = np.random.default_rng(disturbed)
        for array in (query, key):
            array *= (1 + DISTURBANCE * noise.choice((-1, 1), size=array.shape)).astype(array.dtype)
    late = position - case.late * case.stride
    asks = valid & (late >= 0)

    def hidden(array: np.ndarray, real: np.ndarray, garbage: float) -> np.ndarray:
        real = real.reshape(real.shape + (1,) * (array.ndim - 2))
        return np.where(real, array, np.asarray(garbage, dtype=array.dtype))

    return {
        "query": hidden(query, asks, GARBAGE),
        "key": hidden(key, valid, GARBAGE),
        "value": hidden(value, valid, GARBAGE),
        "position": hidden(position, valid, GARBAGE_POSITION) if case.numbered else None,
        "valid": valid if case.numbered else None,
        "asks": asks if case.numbered else None,
        "query_position": hidden(late, asks, GARBAGE_POSITION) if case.numbered else None,
        "document": (number // 9).astype(np.int32) if case.documents else None,
        "pinned": (pinned | ~valid) if case.pinned else None,
        "given": given if case.given else None,
    }


def table_of(encoding: Any, heads: int) -> np.ndarray | None:
    """Return the learned table of T5's bias; None for other schemes."""
    encoding = getattr(encoding, "inner", encoding)
    if not isinstance(encoding, at.T5Bias):
        return None
    number = np.arange(encoding.buckets)[:, None] * 5 + np.arange(heads) * 3
    return (number % 37 / 8 - 2).astype(np.float32)


# -------------------------------------------------------------------------------- running


@contextlib.contextmanager
def in_mode(mode: str) -> Iterator[None]:
    """Choose the path that ops take, and let no warning about small memories through."""
    path: Any = contextlib.nullcontext()
    if mode == "generic":
        path = at.force_generic()
    elif mode == "calls":
        path = backends.machine_code(False)
    with warnings.catch_warnings(), path:
        warnings.simplefilter("ignore")
        yield


def run(
    case: Case, library: str, mode: str, seed: int, *, dtype: str = "float32", disturbed: int = 0
) -> Record:
    """Run one case; return what is recorded."""
    found = backends.backend(library)
    compiled = (lambda step: found.compile(_own(step))) if mode == "compiled" else _unchanged
    kind = np.dtype(dtype)

    def to_library(array: np.ndarray | None) -> Any:
        if array is None:
            return None
        return found.from_numpy(array.astype(kind) if array.dtype.kind == "f" else array)

    stream = {name: to_library(a) for name, a in stream_of(case, seed, disturbed).items()}
    table = to_library(table_of(case.encoding, case.shape.heads))
    with in_mode(mode):
        runner = _run_layer if case.layer else _run_memory
        return runner(case, found, compiled, stream, table, dtype)


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _own(function: Any) -> Callable[..., Any]:
    """Return the function with code of its own: PyTorch counts how often code is compiled."""
    code, name = function.__code__.replace(), function.__name__
    return FunctionType(code, function.__globals__, name, None, function.__closure__)


def _run_memory(
    case: Case, found: Any, compiled: Any, stream: dict[str, Any], table: Any, dtype: str
) -> Record:
    memory, shape = case.memory, case.shape
    state = memory.init(
        batch=2, heads=shape.kv_heads, head_dim=shape.head_dim, xp=found.name, dtype=dtype,
        chunk=shape.seq,
    )  # fmt: skip
    top_k = case.top_k or 4

    def step(state: Any, chunk: dict[str, Any]) -> tuple[Any, ...]:
        state, evicted = memory.insert(
            state, chunk["key"], chunk["value"], position=chunk["position"], valid=chunk["valid"],
            pinned=chunk["pinned"], score=chunk["given"], donate=case.donate,
        )  # fmt: skip
        asked = {"position": chunk["query_position"], "valid": chunk["asks"], "causal": case.causal}
        retrieving, retrieved = memory.retrieve(state, chunk["query"], top_k=top_k, **asked)
        attending, output = memory.attend(state, chunk["query"], top_k=case.top_k, **asked)
        return attending, retrieving, evicted, retrieved, output

    step = compiled(step)
    pages: dict[str, list[Any]] = {}
    for number, chunk in enumerate(_chunks(stream, shape)):
        attending, retrieving, evicted, retrieved, output = step(state, chunk)
        # Both score the entries: the stream goes on with one and with the other.
        state = retrieving if number % 2 else attending
        _note_kept(pages, found, state)
        _note(pages, "evicted", _sorted_positions(found, evicted))
        _note(pages, "retrieved", _shown(found, retrieved.position, retrieved.valid))
        _note(pages, "output", found.to_numpy(output))
    if memory.present == "visible":
        state, evicted = memory.settle(state)
        _note_kept(pages, found, state)
        _note(pages, "evicted", _sorted_positions(found, evicted))
    return _bound(pages, found, state)


def _run_layer(
    case: Case, found: Any, compiled: Any, stream: dict[str, Any], table: Any, dtype: str
) -> Record:
    shape, params = case.shape, {} if table is None else {"encoding_params": table}
    layer = at.AttendreLayer(
        kv_memory=case.memory,
        q_memory=None if case.delay is None else at.DataOnlyMemory(size=case.delay),
        top_k=case.top_k,
        causal=case.causal,
        encoding=case.encoding,
    )
    state = layer.init(
        batch=2, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim,
        carry_dim=None, xp=found.name, dtype=dtype, documents=case.documents, chunk=shape.seq,
    )  # fmt: skip

    def step(state: Any, chunk: dict[str, Any]) -> tuple[Any, ...]:
        names = ("query", "key", "value", "position", "valid", "document")
        given = at.Chunk(**{name: chunk[name] for name in names})
        return layer.step(state, given, donate=case.donate, **params)

    step = compiled(step)
    pages: dict[str, list[Any]] = {}

    def note(out: Any) -> None:
        _note_kept(pages, found, state.kv)
        _note(pages, "came", _shown(found, out.position, out.valid))
        _note(pages, "output", found.to_numpy(out.value))

    for chunk in _chunks(stream, shape):
        state, out = step(state, chunk)
        note(out)
    if case.delay is not None:
        end = layer.flush if zlib.crc32(case.name.encode()) % 2 else layer.drain
        state, out = end(state, **params) if end == layer.flush else end(state, shape.seq, **params)
        note(out)
    return _bound(pages, found, state.kv)


def _chunks(stream: dict[str, Any], shape: Shape) -> Iterator[dict[str, Any]]:
    for start in range(0, shape.seq * shape.steps, shape.seq):
        part = slice(start, start + shape.seq)
        yield {name: None if a is None else a[:, part, ...] for name, a in stream.items()}


def _note(pages: dict[str, list[Any]], name: str, array: Any) -> None:
    pages.setdefault(name, []).append(np.array(array))


def _shown(found: Any, position: Any, valid: Any) -> np.ndarray:
    shown: np.ndarray = np.where(found.to_numpy(valid), found.to_numpy(position), -1)
    return shown


def _sorted_positions(found: Any, entries: Any) -> np.ndarray:
    return np.sort(_shown(found, entries.position, entries.valid), axis=-1)


def _note_kept(pages: dict[str, list[Any]], found: Any, state: Any) -> None:
    """Note the stored entries in the order of their positions, whatever their slots."""
    position = _shown(found, state.position, state.valid)
    order = np.argsort(position, axis=-1, kind="stable")
    _note(pages, "kept", np.take_along_axis(position, order, axis=-1))
    for name, page in (("score", "score"), ("observed", "observed")):
        array = np.where(found.to_numpy(state.valid), found.to_numpy(getattr(state, name)), 0)
        _note(pages, page, np.take_along_axis(array, order, axis=-1))


def _bound(pages: dict[str, list[Any]], found: Any, state: Any) -> Record:
    """Join the pages of all steps along an axis in front; those of `came` and `output` by time."""
    counters = [
        found.to_numpy(getattr(state, name))
        for name in ("clock", "latest_query", "chunk_start", "evictions", "refusals")
    ]
    pages["counters"] = [np.stack(counters)]
    record = {}
    for name, arrays in pages.items():
        if name in ("came", "output"):
            joined = np.concatenate(arrays, axis=1)
        else:
            width = max(array.shape[-1] for array in arrays)
            joined = np.stack([_wide(array, width) for array in arrays])
        record[name] = joined.astype(np.float32 if name in CLOSE_FIELDS else np.int32)
    return record


def _wide(array: np.ndarray, width: int) -> np.ndarray:
    """Put blanks in front, where those of sorted positions stand."""
    gap = [(0, 0)] * (array.ndim - 1) + [(width - array.shape[-1], 0)]
    return np.pad(array, gap, constant_values=-1)


# -------------------------------------------------------------------------------- comparing


def differences(got: Record, want: Record) -> list[str]:
    """Say where two recordings differ: decisions at all, numbers beyond the tolerance."""
    found = []
    if set(got) != set(want):
        return [f"recorded {sorted(got)}, expected {sorted(want)}"]
    for name in (*EXACT_FIELDS, *CLOSE_FIELDS):
        if name not in want:
            continue
        one, other = got[name], want[name]
        if one.shape != other.shape:
            found.append(f"{name}: shape {one.shape}, expected {other.shape}")
            continue
        if name in EXACT_FIELDS:
            wrong = one != other
        else:
            size = max(1.0, float(np.max(np.abs(other), initial=0.0)))
            off = np.abs(one.astype(np.float64) - other.astype(np.float64))
            wrong = ~(off <= RELATIVE * size + ABSOLUTE)
        if wrong.any():
            at_ = tuple(int(i) for i in np.argwhere(wrong)[0])
            found.append(f"{name}{list(at_)}: {one[at_]!r}, expected {other[at_]!r}")
    return found


def same_bits(got: Record, want: Record) -> bool:
    """Tell whether two recordings are equal bit for bit."""
    return set(got) == set(want) and all(
        got[name].shape == want[name].shape and got[name].tobytes() == want[name].tobytes()
        for name in want
    )


# -------------------------------------------------------------------------------- files


def write(path: Path, records: dict[str, Record], seeds: dict[str, list[int]]) -> None:
    """Write recordings, ``library/mode/case/seed`` to arrays, into one compressed file."""
    index: dict[str, Any] = {}
    parts: dict[str, list[np.ndarray]] = {"i": [np.zeros(0, np.int32)], "f": [np.zeros(0, "f4")]}
    offset = {"i": 0, "f": 0}
    for key, record in records.items():
        index[key] = {}
        for name, array in record.items():
            kind = array.dtype.kind
            index[key][name] = [offset[kind], *array.shape]
            offset[kind] += array.size
            parts[kind].append(array.ravel())
    text = json.dumps({"seeds": seeds, "index": index}).encode()
    np.savez_compressed(
        path,
        index=np.frombuffer(text, dtype=np.uint8),
        i=np.concatenate(parts["i"]),
        f=np.concatenate(parts["f"]),
    )


def read(path: Path) -> tuple[dict[str, Record], dict[str, list[int]]]:
    """Read what `write` wrote."""
    with np.load(path) as file:
        text, numbers = json.loads(file["index"].tobytes()), {"i": file["i"], "f": file["f"]}
    records: dict[str, Record] = {}
    for key, fields in text["index"].items():
        records[key] = {}
        for name, (start, *shape) in fields.items():
            flat = numbers["f" if name in CLOSE_FIELDS else "i"]
            count = int(np.prod(shape, dtype=np.int64))
            records[key][name] = flat[start : start + count].reshape(shape)
    return records, text["seeds"]


# -------------------------------------------------------------------------------- commands


def choose_seed(case: Case, start: int) -> int:
    """Find the next seed with which no decision hangs on rounding."""
    for seed in range(start, start + 1000):
        want = run(case, "numpy", "eager", seed)
        others = [run(case, "numpy", "eager", seed, dtype="float64")]
        others.append(run(case, "numpy", "generic", seed))
        if not case.exact:
            others += [run(case, "numpy", "eager", seed, disturbed=n) for n in range(1, 5)]
        if all(_same_decisions(other, want) for other in others):
            return seed
    raise SystemExit(f"{case.name}: no seed from {start} on is free of close decisions")


def _same_decisions(got: Record, want: Record) -> bool:
    return all(np.array_equal(got[name], want[name]) for name in EXACT_FIELDS if name in want)


def record(path: Path, like: Path | None, libraries: list[str], modes: list[str]) -> None:
    """Record all cases on some libraries and in some modes."""
    seeds = {} if like is None else read(like)[1]
    records = {}
    for name, case in CASES.items():
        if like is None:
            seeds[name] = []
            for _ in range(SEEDS):
                seeds[name].append(choose_seed(case, seeds[name][-1] + 1 if seeds[name] else 0))
        for library in libraries:
            for mode in modes:
                for seed in seeds[name]:
                    records[f"{library}/{mode}/{name}/{seed}"] = run(case, library, mode, seed)
    write(path, records, seeds)
    print(f"{path}: {len(records)} streams, {path.stat().st_size} bytes")


def compare(before: Path, after: Path) -> int:
    """Tell case by case whether two files are equal bit for bit."""
    one, other = read(before)[0], read(after)[0]
    shared = [key for key in one if key in other]
    equal = 0
    for key in shared:
        if same_bits(other[key], one[key]):
            equal += 1
            continue
        found = differences(other[key], one[key])
        off = max(
            float(np.max(np.abs(other[key][name] - one[key][name]), initial=0.0))
            for name in CLOSE_FIELDS
            if other[key][name].shape == one[key][name].shape
        )
        print(f"{key}: not bit-equal, largest difference {off:.1e}; {'; '.join(found) or 'close'}")
    print(f"{equal} of {len(shared)} streams are equal bit for bit")
    missing = set(one) ^ set(other)
    if missing:
        print(f"{len(missing)} streams are in one file only")
    return int(equal < len(shared) or bool(missing))


def main() -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the streams and write what happened")
    recording.add_argument("file", type=Path)
    recording.add_argument("--like", type=Path, help="take the seeds from this recording")
    recording.add_argument("--library", nargs="+", default=["numpy"], choices=LIBRARIES)
    recording.add_argument("--mode", nargs="+", default=["eager"], choices=MODES)
    comparing = commands.add_parser("compare", help="compare two recordings bit for bit")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after)
    began = time.perf_counter()
    record(given.file, given.like, given.library, given.mode)
    print(f"{at.__file__}, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
