"""Layers and stacks under test, the texts they read, and how to run them: NumPy in, NumPy out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import attendre_core as at
from attendre_conformance.cases import policy_rule
from attendre_conformance.layer_oracle import (
    LayerRule,
    OracleLayer,
    PlainBlock,
    Query,
    SchemeRule,
)
from attendre_conformance.options import ROWS
from attendre_conformance.oracle import MemoryRule
from attendre_conformance.running import COMPILED_STREAMS, from_numpy, to_numpy
from attendre_conformance.streams import GARBAGE, GARBAGE_POSITION, dyadic, padded

Numbers = NDArray[Any]

#: Width of the residual stream in tests of single layers.
CARRY = 3

_functions: dict[tuple[Any, ...], Callable[..., Any]] = {}


@dataclass(frozen=True)
class Sizes:
    """Rows, length of the text, chunk length, query heads, K/V heads, width of a head."""

    batch: int
    length: int
    seq: int
    heads: int
    kv_heads: int
    head_dim: int


#: For laws in which nothing is evicted, and for streams through small memories.
WHOLE = Sizes(batch=ROWS, length=9, seq=4, heads=4, kv_heads=2, head_dim=8)
STREAM = Sizes(batch=ROWS, length=12, seq=3, heads=4, kv_heads=2, head_dim=4)

#: Every position scheme; of each family the first one stands for all where code is compiled.
SCHEMES: dict[str, tuple[Any, ...]] = {
    "none": (at.NoPosition(), at.LearnedPositions(4)),
    "rope": (
        at.RoPE(rotary_dim=4),
        at.RoPE(),
        at.RoPE(base=100.0, interleaved=True),
        at.RoPE(rotary_dim=6, interleaved=True),
    ),
    "scaled": (
        at.RoPE(scaling=at.YaRN(4.0, 64)),
        at.RoPE(scaling=at.Interpolation(4.0)),
        at.RoPE(scaling=at.NTK(8.0)),
        at.RoPE(rotary_dim=4, scaling=at.YaRN(16.0, 256, beta_fast=8.0, beta_slow=2.0)),
    ),
    "lm-infinite": (at.LMInfinite(3), at.LMInfinite(1), at.LMInfinite(0), at.LMInfinite(50)),
    "t5": (
        at.T5Bias(8, 16),
        at.T5Bias(8, 16, bidirectional=False),
        at.T5Bias(),
        at.T5Bias(4, 3),
    ),
    "alibi": (at.ALiBi(),),
    "in-cache": (at.InCache(), at.InCache(at.LMInfinite(2)), at.InCache(at.ALiBi())),
}


def scheme_rule(encoding: Any) -> SchemeRule:
    """Say in the oracle's words what a position scheme does, from its fields alone."""
    if isinstance(encoding, at.RoPE):
        scaling: tuple[Any, ...] = ()
        if isinstance(encoding.scaling, at.Interpolation):
            scaling = ("interpolation", encoding.scaling.factor)
        elif isinstance(encoding.scaling, at.NTK):
            scaling = ("ntk", encoding.scaling.factor)
        elif isinstance(encoding.scaling, at.YaRN):
            s = encoding.scaling
            scaling = ("yarn", s.factor, s.original_length, s.beta_fast, s.beta_slow)
        return SchemeRule(
            "rope",
            base=encoding.base,
            rotary_dim=encoding.rotary_dim,
            interleaved=encoding.interleaved,
            scaling=scaling,
        )
    if isinstance(encoding, at.LMInfinite):
        return SchemeRule("lm_infinite", base=encoding.base, n_local=encoding.n_local)
    if isinstance(encoding, at.T5Bias):
        return SchemeRule(
            "t5",
            buckets=encoding.buckets,
            max_distance=encoding.max_distance,
            bidirectional=encoding.bidirectional,
        )
    if isinstance(encoding, at.ALiBi):
        return SchemeRule("alibi")
    if isinstance(encoding, at.InCache):
        return SchemeRule("in_cache", inner=scheme_rule(encoding.inner))
    return SchemeRule("none")


def table_for(encoding: Any, heads: int) -> Numbers | None:
    """Return biases for T5's table, all different within a head; None for other schemes."""
    if isinstance(encoding, at.InCache):
        return table_for(encoding.inner, heads)
    if not isinstance(encoding, at.T5Bias):
        return None
    number = np.arange(encoding.buckets)[:, None] * 5 + np.arange(heads) * 3
    return (number % 37 / 8 - 2).astype(np.float32)


def layer_rule(layer: Any) -> LayerRule:
    """Say in the oracle's words what a layer does, from its fields alone."""
    kv, queue = layer.kv_memory, layer.q_memory
    return LayerRule(
        memory=MemoryRule(
            size=kv.size,
            policy=policy_rule(kv.policy),
            present=kv.present,
            per_head=kv.per_head,
            protect_recent=kv.protect_recent,
            pin=kv.pin,
            scale=kv.scale,
        ),
        queue=None if queue is None else MemoryRule(queue.size, policy_rule(queue.policy)),
        scheme=scheme_rule(layer.encoding),
        top_k=layer.top_k,
        causal=layer.causal,
    )


def scored_queue(size: int) -> Any:
    """Return a Q memory that lets the query with the lowest score go first."""
    return at.DataOnlyMemory(size, at.LFA(initial=at.ConstantScore(0.0)))


#: Small memories that evict: every policy, N below, above, equal to and no multiple of S = 3.
LAYERS: dict[str, Any] = {
    "lfa-top-k-t5": at.AttendreLayer(
        at.KeyValueMemory(6, at.LFA(0.0)), at.DataOnlyMemory(4), top_k=3, encoding=at.T5Bias(8, 16)
    ),
    "visible-lra-alibi": at.AttendreLayer(
        at.KeyValueMemory(5, at.LRA("sum"), present="visible"),
        at.DataOnlyMemory(3),
        encoding=at.ALiBi(),
    ),
    "sink-lm-infinite": at.AttendreLayer(
        at.KeyValueMemory(5, at.AttentionSink(2)), at.DataOnlyMemory(1), encoding=at.LMInfinite(3)
    ),
    "lru-causal": at.AttendreLayer(at.KeyValueMemory(5, at.LRU()), top_k=2, causal=True),
    "fifo": at.AttendreLayer(at.KeyValueMemory(5), at.DataOnlyMemory(2)),
    "lfu-recent-pin": at.AttendreLayer(
        at.KeyValueMemory(6, at.LFU(), protect_recent=2, pin=((0, 2),)),
        at.DataOnlyMemory(3),
        top_k=2,
    ),
    "per-head-lra-in-cache": at.AttendreLayer(
        at.KeyValueMemory(8, at.LRA("max"), per_head=True),
        at.DataOnlyMemory(7),
        encoding=at.InCache(),
    ),
    "lfa-decay-rope": at.AttendreLayer(
        at.KeyValueMemory(6, at.LFA(0.0625, hold=True)), at.DataOnlyMemory(5), encoding=at.RoPE()
    ),
    "lfa-lm-infinite": at.AttendreLayer(
        at.KeyValueMemory(6, at.LFA(0.0625)),
        at.DataOnlyMemory(2),
        top_k=3,
        encoding=at.LMInfinite(2),
    ),
    "lra-scored-queue": at.AttendreLayer(
        at.KeyValueMemory(6, at.LRA("last")), scored_queue(4), top_k=4
    ),
}


#: The same, by what decides; the first of each stands for all where code is compiled.
FAMILIES = {
    "lfa": ("lfa-top-k-t5", "lfa-lm-infinite", "lfa-decay-rope"),
    "lra": ("visible-lra-alibi", "per-head-lra-in-cache", "lra-scored-queue"),
    "first-in": ("sink-lm-infinite", "fifo"),
    "used": ("lru-causal", "lfu-recent-pin"),
}


def layers_for(backend: Any, names: Sequence[str] | None = None) -> list[str]:
    """Return names of `LAYERS`: all, or the first where each has to be compiled."""
    chosen = list(LAYERS) if names is None else list(names)
    return few(backend, chosen)


def compiles(backend: Any) -> bool:
    """Whether texts run compiled on a backend, so that every spec and shape costs seconds."""
    return backend.name in COMPILED_STREAMS


def few(backend: Any, choices: Sequence[Any], most: int = 1) -> list[Any]:
    """Return all choices, or the first few where each has to be compiled."""
    return list(choices[:most] if compiles(backend) else choices)


# -- texts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """A whole input, (batch, length, ...): queries, keys and values and all that goes with them.

    ``index`` numbers the places of the input; it is sent along as metadata.
    """

    query: Numbers
    key: Numbers
    value: Numbers
    position: Numbers
    valid: Numbers
    carry: Numbers
    document: Numbers | None
    index: Numbers
    query_score: Numbers | None
    exact: bool

    def __repr__(self) -> str:
        lines = [f"Text(exact={self.exact})"]
        numbers = ("query", "key", "value") if self.exact else ()
        for name in ("valid", "position", "document", "query_score", *numbers):
            array = getattr(self, name)
            if array is not None:
                lines.append(f"    {name} = {array.tolist()}")
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def arrays(self) -> dict[str, Numbers]:
        """The arrays by name, without those that are None."""
        every = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "exact"}
        return {name: array for name, array in every.items() if array is not None}

    def rows(self, index: Sequence[int]) -> Text:
        """Return the same text with the rows taken by index."""
        return self.but(**{name: a[list(index)] for name, a in self.arrays.items()})

    def but(self, **arrays: Any) -> Text:
        """Return the same text with some arrays replaced."""
        return replace(self, **arrays)

    def spread(self, places: Numbers, length: int) -> Text:
        """Return the same text in a longer one, padding in between.

        ``places``, (batch, length), says where each position goes.
        """
        wide = {}
        for name, array in self.arrays.items():
            blank: Any = {"f": GARBAGE, "i": GARBAGE_POSITION, "b": False}[array.dtype.kind]
            new = np.full((array.shape[0], length, *array.shape[2:]), blank, dtype=array.dtype)
            for b in range(array.shape[0]):
                new[b, places[b]] = array[b]
            wide[name] = new
        return self.but(**wide)

    def chunks(self, seq: int) -> list[Any]:
        """Cut it into chunks of one length, the last filled up with padding."""
        length = self.valid.shape[1]
        whole = -(-length // seq) * seq
        wide = self.spread(np.tile(np.arange(length), (self.valid.shape[0], 1)), whole)
        return [wide._chunk(slice(start, start + seq)) for start in range(0, whole, seq)]

    def _chunk(self, part: slice) -> at.Chunk:
        return at.Chunk(
            self.query[:, part],
            self.key[:, part],
            self.value[:, part],
            self.position[:, part],
            self.valid[:, part],
            self.carry[:, part],
            None if self.document is None else self.document[:, part],
            {"index": self.index[:, part]},
            None if self.query_score is None else self.query_score[:, part],
        )


class Plan(NamedTuple):
    """Everything about a text except its contents.

    Attributes
    ----------
    exact : bool
        Dyadic numbers, of which ``levels`` are used; otherwise generic floats.
    percent : int
        How much is padding, anywhere; ``ends`` cuts the rows off as well.
    stride, first : int
        Distance of neighbouring positions, and where row 0 begins.
    documents : int
        How many documents there are, one after the other; 0 for no ids at all.
    """

    exact: bool = True
    levels: int = 17
    percent: int = 0
    ends: tuple[int, ...] = ()
    stride: int = 1
    first: int = 0
    documents: int = 0
    scored: bool = False

    def bytes_needed(self, sizes: Sizes) -> int:
        """Return how many bytes `assemble` reads."""
        places = sizes.batch * sizes.length
        width = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
        return places * (3 + width if self.exact else 3) + 4


def assemble(sizes: Sizes, plan: Plan, contents: bytes) -> Text:
    """Build the text that a plan and a string of bytes describe."""
    b, t, g, h, d = sizes.batch, sizes.length, sizes.kv_heads, sizes.heads, sizes.head_dim
    used = 0

    def take(count: int) -> bytes:
        nonlocal used
        used += count
        return contents[used - count : used]

    rng = np.random.default_rng(list(take(4)))
    valid = padded(take(b * t), plan.percent).reshape(b, t)
    for row, end in enumerate(plan.ends):
        valid = valid & ~((np.arange(b)[:, None] == row) & (np.arange(t) >= end))
    score = np.frombuffer(take(b * t), dtype=np.uint8).reshape(b, t) % 5 / 4
    border = np.frombuffer(take(b * t), dtype=np.uint8).reshape(b, t)
    number = np.cumsum(valid, axis=1) - 1

    def content(*shape: int) -> Numbers:
        if plan.exact:
            return dyadic(take(int(np.prod(shape))), plan.levels).reshape(shape)
        return rng.standard_normal(shape).astype(np.float32)

    query, key, value = content(b, t, h, d), content(b, t, g, d), content(b, t, g, d)
    # Every value can be told from every other: its first number counts the entries.
    value[..., 0] = (number / 8)[..., None] + np.arange(g) / 64
    index = np.tile(np.arange(t, dtype=np.int32), (b, 1))
    carry = index[..., None] + np.arange(b)[:, None, None] * 100 + np.arange(CARRY) / 4
    position = plan.first + np.arange(b)[:, None] * 7 + plan.stride * number
    document = None
    if plan.documents:
        steps = np.cumsum(border >= 180, axis=1)
        document = np.minimum(steps, plan.documents - 1)

    def clean(array: Any, kind: Any, blank: float) -> Numbers:
        flags = valid.reshape(valid.shape + (1,) * (array.ndim - 2))
        return np.where(flags, array, blank).astype(kind)

    return Text(
        query=clean(query, np.float32, GARBAGE),
        key=clean(key, np.float32, GARBAGE),
        value=clean(value, np.float32, GARBAGE),
        position=clean(position, np.int32, GARBAGE_POSITION),
        valid=valid,
        carry=clean(carry, np.float32, GARBAGE),
        document=None if document is None else clean(document, np.int32, GARBAGE_POSITION),
        index=index,
        query_score=score.astype(np.float32) if plan.scored else None,
        exact=plan.exact,
    )


@st.composite
def texts(
    draw: st.DrawFn,
    sizes: Sizes,
    *,
    exact: bool = True,
    padding: bool = True,
    documents: int = 0,
    scored: bool = False,
) -> Text:
    """Draw a text, with padding anywhere and rows that end at different times."""
    ends: tuple[int, ...] = ()
    percent = 0
    if padding:
        percent = draw(st.sampled_from((0, 25, 60)), label="percent of padding")
        if draw(st.booleans(), label="rows end early"):
            each = st.integers(1, sizes.length)
            ends = tuple(draw(each, label=f"end of row {b}") for b in range(sizes.batch))
    plan = Plan(
        exact=exact,
        levels=draw(st.sampled_from((17, 3)), label="levels of the numbers") if exact else 17,
        percent=percent,
        ends=ends,
        stride=draw(st.sampled_from((1, 3)), label="distance of positions"),
        first=draw(st.sampled_from((0, 5)), label="first position"),
        documents=documents,
        scored=scored,
    )
    size = plan.bytes_needed(sizes)
    return assemble(sizes, plan, draw(st.binary(min_size=size, max_size=size), label="contents"))


def seeded_text(sizes: Sizes, seed: int, **plan: Any) -> Text:
    """Build a text from a seed, without hypothesis."""
    chosen = Plan(**plan)
    return assemble(sizes, chosen, np.random.default_rng(seed).bytes(chosen.bytes_needed(sizes)))


@st.composite
def layer_and_text(
    draw: st.DrawFn, /, names: Sequence[str], sizes: Sizes = STREAM, **options: Any
) -> tuple[str, Any, Text]:
    """Draw one of `LAYERS` and a text for it."""
    name = draw(st.sampled_from(list(names)), label="layer")
    options.setdefault("scored", name == "lra-scored-queue")
    return name, LAYERS[name], draw(texts(sizes, **options), label="text")


# -- running layers ------------------------------------------------------------------------------


class LayerRunner:
    """An Attendre layer on a backend.

    Parameters
    ----------
    backend : attendre_core.Backend
        Library to run on.
    layer : attendre_core.AttendreLayer
        Spec.
    compiled : bool or None
        Whether to compile; None does so where it is the faster way.
    """

    def __init__(self, backend: Any, layer: Any, compiled: bool | None = None) -> None:
        self.backend = backend
        self.layer = layer
        self.compiled = compiles(backend) if compiled is None else compiled

    def init(self, text: Text, seq: int, batch: int | None = None) -> Any:
        """Return an empty state for a text."""
        b, _, heads, dim = text.query.shape
        b = b if batch is None else batch
        index = from_numpy(self.backend, {"index": np.zeros((b, 1), dtype=np.int32)})
        return self.layer.init(
            batch=b,
            heads=heads,
            kv_heads=text.key.shape[2],
            head_dim=dim,
            carry_dim=CARRY,
            xp=self.backend.xp,
            dtype=self.backend.xp.float32,
            documents=text.document is not None,
            metadata=index,
            chunk=seq,
        )

    def table(self, heads: int) -> Any:
        """Return the learned arrays of the position scheme."""
        return from_numpy(self.backend, table_for(self.layer.encoding, heads))

    def function(self, name: str, length: int = 0) -> Callable[..., Any]:
        """Return step, flush or drain as a function of arrays alone."""
        key = (self.backend.name, self.layer, self.compiled, name, length)
        if key not in _functions:
            layer = self.layer

            def step(state: Any, chunk: Any, table: Any) -> Any:
                return layer.step(state, chunk, encoding_params=table)

            def flush(state: Any, table: Any) -> Any:
                return layer.flush(state, encoding_params=table)

            def drain(state: Any, table: Any) -> Any:
                return layer.drain(state, length, encoding_params=table)

            functions: dict[str, Callable[..., Any]] = {
                "step": step,
                "flush": flush,
                "drain": drain,
            }
            function = functions[name]
            _functions[key] = self.backend.compile(function) if self.compiled else function
        return _functions[key]

    def step(self, state: Any, chunk: Any) -> tuple[Any, Any]:
        """Read a chunk of NumPy arrays: the state of the backend, the output in NumPy."""
        table = self.table(chunk.query.shape[2])
        state, out = self.function("step")(state, from_numpy(self.backend, chunk), table)
        return state, to_numpy(self.backend, out)

    def finish(self, state: Any, heads: int, length: int | None = None) -> tuple[Any, Any]:
        """Flush, or drain ``length`` queries at a time."""
        name = "flush" if length is None else "drain"
        state, out = self.function(name, length or 0)(state, self.table(heads))
        return state, to_numpy(self.backend, out)

    def read(self, text: Text, seq: int) -> tuple[Any, list[Any]]:
        """Read a whole text: (state, outputs of every step)."""
        state = self.init(text, seq)
        outputs = []
        for chunk in text.chunks(seq):
            state, out = self.step(state, chunk)
            outputs.append(out)
        return state, outputs

    def run(self, text: Text, seq: int, length: int | None = None) -> tuple[Any, list[Any]]:
        """Read a whole text and flush (or drain): (state, outputs of every step)."""
        state, outputs = self.read(text, seq)
        if self.layer.q_memory is not None:
            state, out = self.finish(state, text.query.shape[2], length)
            outputs.append(out)
        return state, outputs


def came_out(outputs: Sequence[Any]) -> list[list[int]]:
    """Input indices of the valid outputs, row by row, as they came."""
    rows: list[list[int]] = [[] for _ in range(outputs[0].valid.shape[0])]
    for out in outputs:
        for b, row in enumerate(rows):
            row += out.metadata["index"][b][out.valid[b]].tolist()
    return rows


def by_index(outputs: Sequence[Any], length: int, field: str = "value") -> Numbers:
    """Arrange a field of the valid outputs by input index; zeros where nothing came out."""
    first = getattr(outputs[0], field)
    result = np.zeros((first.shape[0], length, *first.shape[2:]), dtype=first.dtype)
    for out in outputs:
        for b in range(first.shape[0]):
            result[b, out.metadata["index"][b][out.valid[b]]] = getattr(out, field)[b][out.valid[b]]
    return result


def assert_in_order(outputs: Sequence[Any], text: Text, where: str) -> None:
    """Check that every valid position came out once, in the order of the input."""
    for b, got in enumerate(came_out(outputs)):
        want = np.nonzero(text.valid[b])[0].tolist()
        assert got == want, f"{where}, row {b}: positions of the input came out {got}, not {want}"


def assert_belongings(outputs: Sequence[Any], text: Text, where: str) -> None:
    """Check that carry, position and document came out with the query they belong to."""
    for number, out in enumerate(outputs):
        for b in range(text.valid.shape[0]):
            places = out.metadata["index"][b][out.valid[b]]
            for name in ("carry", "position", "document"):
                if getattr(text, name) is None:
                    continue
                got = getattr(out, name)[b][out.valid[b]]
                want = getattr(text, name)[b][places]
                assert got.tolist() == want.tolist(), (
                    f"{where}, output {number}, row {b}: with the queries of the places "
                    f"{places.tolist()} came {name} {got.tolist()}, expected {want.tolist()}"
                )


def oracle_layers(layer: Any, text: Text) -> list[OracleLayer]:
    """Return the oracle of a layer, one for each row."""
    b, _, heads, _ = text.query.shape
    table, rule = table_for(layer.encoding, heads), layer_rule(layer)
    return [OracleLayer(rule, heads, text.key.shape[2], text.exact, table) for _ in range(b)]


def oracle_queries(chunk: Any, row: int) -> list[Query | None]:
    """Return the queries of one row of a chunk for the oracle; None for padding."""
    queries: list[Query | None] = []
    for s in range(chunk.valid.shape[1]):
        if not chunk.valid[row, s]:
            queries.append(None)
            continue
        queries.append(
            Query(
                heads=list(chunk.query[row, s].astype(np.float64)),
                position=int(chunk.position[row, s]),
                index=int(chunk.metadata["index"][row, s]),
                document=None if chunk.document is None else int(chunk.document[row, s]),
            )
        )
    return queries


# -- blocks and stacks ---------------------------------------------------------------------------

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 8, 2, 1, 4
KINDS = ("pre", "post", "parallel")


@lru_cache(maxsize=64)
def plain_block(kind: str, seed: int) -> PlainBlock:
    """Return a block with random weights; the same object for the same arguments."""
    rng = np.random.default_rng(seed)
    inner = HEADS * HEAD_DIM
    shapes = {
        "query": (WIDTH, inner),
        "key": (WIDTH, KV_HEADS * HEAD_DIM),
        "value": (WIDTH, KV_HEADS * HEAD_DIM),
        "out": (inner, WIDTH),
        "up": (WIDTH, 2 * WIDTH),
        "down": (2 * WIDTH, WIDTH),
    }
    weights = {
        name: (rng.standard_normal(shape) / 3).astype(np.float32) for name, shape in shapes.items()
    }
    return PlainBlock(kind, HEADS, KV_HEADS, HEAD_DIM, weights)


class BackendBlock:
    """The same block on a backend, for (batch, seq, width)."""

    def __init__(self, backend: Any, plain: PlainBlock, table: Numbers | None) -> None:
        self.kind = plain.kind
        self.xp = backend.xp
        self.weights = from_numpy(backend, plain.weights)
        if table is not None:
            self.encoding_params = from_numpy(backend, table)

    def _normed(self, x: Any) -> Any:
        xp = self.xp
        return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    def _feed(self, x: Any) -> Any:
        xp = self.xp
        h = xp.matmul(x, self.weights["up"])
        return xp.matmul(xp.where(h > 0, h, xp.zeros_like(h)), self.weights["down"])

    def project(self, x: Any, position: Any) -> tuple[Any, Any, Any]:
        """Return query, key and value."""
        xp = self.xp
        h = x if self.kind == "post" else self._normed(x)

        def heads(name: str, count: int) -> Any:
            return xp.reshape(xp.matmul(h, self.weights[name]), (*x.shape[:2], count, HEAD_DIM))

        return heads("query", HEADS), heads("key", KV_HEADS), heads("value", KV_HEADS)

    def finish(self, attended: Any, carry: Any) -> Any:
        """Return the output of the block."""
        xp = self.xp
        flat = xp.reshape(attended, (*attended.shape[:2], HEADS * HEAD_DIM))
        mixed = xp.matmul(flat, self.weights["out"])
        if self.kind == "parallel":
            return carry + mixed + self._feed(self._normed(carry))
        if self.kind == "post":
            middle = self._normed(carry + mixed)
            return self._normed(middle + self._feed(middle))
        middle = carry + mixed
        return middle + self._feed(self._normed(middle))


class StackRunner:
    """A stack on a backend, with blocks.

    Parameters
    ----------
    backend : attendre_core.Backend
        Library to run on.
    stack : attendre_core.Stack
        Spec.
    blocks : sequence of PlainBlock
        One for each layer.
    """

    def __init__(self, backend: Any, stack: Any, blocks: Sequence[PlainBlock]) -> None:
        self.backend = backend
        self.stack = stack
        self.plain = tuple(blocks)
        self.tables = [table_for(layer.encoding, HEADS) for layer in stack.layers]
        self.compiled = compiles(backend)
        self.blocks = [
            BackendBlock(backend, block, table)
            for block, table in zip(blocks, self.tables, strict=True)
        ]

    def init(self, batch: int, seq: int, documents: bool = False) -> Any:
        """Return empty states."""
        return self.stack.init(
            batch, HEADS, KV_HEADS, HEAD_DIM, WIDTH, self.backend.xp, self.backend.xp.float32,
            documents=documents,
            metadata=(self.backend.from_numpy(np.zeros((batch, 1), dtype=np.int32)),),
            chunk=seq,
        )  # fmt: skip

    def function(self, name: str, length: int = 0) -> Callable[..., Any]:
        """Return step, flush or drain as a function of arrays alone."""
        key = (self.backend.name, self.stack, self.plain, name, length)
        if not self.compiled or key not in _functions:
            stack, blocks = self.stack, self.blocks

            def step(state: Any, x: Any, position: Any, valid: Any, more: Any) -> Any:
                return stack.step(state, blocks, x, position, valid, **more)

            def flush(state: Any) -> Any:
                return stack.flush(state, blocks)

            def drain(state: Any) -> Any:
                return stack.drain(state, blocks, length)

            functions: dict[str, Callable[..., Any]] = {
                "step": step,
                "flush": flush,
                "drain": drain,
            }
            function = functions[name]
            if not self.compiled:
                return function
            _functions[key] = self.backend.compile(function)
        return _functions[key]

    def step(
        self,
        state: Any,
        x: Numbers,
        position: Numbers | None,
        valid: Numbers,
        index: Numbers,
        document: Numbers | None = None,
    ) -> tuple[Any, Any]:
        """Read one chunk of NumPy arrays."""
        put = self.backend.from_numpy
        more: dict[str, Any] = {"metadata": (put(np.array(index)),)}
        if document is not None:
            more["document"] = put(np.array(document))
        where = None if position is None else put(np.array(position))
        state, out = self.function("step")(
            state, put(np.array(x)), where, put(np.array(valid)), more
        )
        return state, to_numpy(self.backend, out)

    def finish(self, state: Any, length: int | None = None) -> tuple[Any, list[Any]]:
        """Flush, or drain ``length`` positions at a time."""
        name = "flush" if length is None else "drain"
        state, outs = self.function(name, length or 0)(state)
        return state, [to_numpy(self.backend, out) for out in outs]

    def run(
        self,
        x: Numbers,
        valid: Numbers,
        seq: int,
        finish: str = "drain",
        position: Numbers | None = None,
        document: Numbers | None = None,
    ) -> tuple[Numbers, list[list[int]]]:
        """Read a whole input step by step: (outputs by index, indices as they came)."""
        batch, length = valid.shape
        whole = -(-length // seq) * seq
        index = np.tile(np.arange(whole, dtype=np.int32), (batch, 1))

        def wide(a: Any) -> Any:
            missing = [(0, 0), (0, whole - length)] + [(0, 0)] * (a.ndim - 2)
            return np.pad(a, missing)

        state = self.init(batch, seq, document is not None)
        outs = []
        for start in range(0, whole, seq):
            part = (slice(None), slice(start, start + seq))
            state, out = self.step(
                state, wide(x)[part], None if position is None else wide(position)[part],
                wide(valid)[part], index[part],
                None if document is None else wide(document)[part],
            )  # fmt: skip
            outs.append(out)
        state, rest = self.finish(state, seq if finish == "drain" else None)
        return collected(outs + rest, batch, length)


def collected(outs: Sequence[Any], batch: int, length: int) -> tuple[Numbers, list[list[int]]]:
    """Arrange the outputs of a stack: (batch, length, width) by index, and indices as they came."""
    result = np.zeros((batch, length, WIDTH), dtype=np.float32)
    order: list[list[int]] = [[] for _ in range(batch)]
    for out in outs:
        for b in range(batch):
            places = out.metadata[0][b][out.valid[b]]
            order[b] += places.tolist()
            result[b, places] = out.x[b][out.valid[b]]
    return result, order


def inputs(seed: int, batch: int, length: int) -> Numbers:
    """Return random vectors (batch, length, width)."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((batch, length, WIDTH)).astype(np.float32)
