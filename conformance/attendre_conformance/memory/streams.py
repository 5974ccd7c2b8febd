"""Random streams: chunks of keys, values and queries with padding, drawn by hypothesis.

Shapes come from a short list, so that a backend that compiles does it once per shape. The numbers
are mostly small *dyadic* ones (quarters between -2 and 2): their products, sums and the scale
1/sqrt(head_dim) are exact in float32, so logits are the same on every library and ties are
abundant, real, and decided by the rules instead of by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from attendre_conformance import options

Numbers = NDArray[Any]

#: What stands in padding, to be sure that nobody reads it.
GARBAGE = 777.0
GARBAGE_POSITION = 10_000
#: Pinned entries of a row, at most: they have to fit into every memory.
PINS = 2


@dataclass(frozen=True)
class Shape:
    """Sizes of a memory and of the chunks that stream through it.

    Attributes
    ----------
    batch, seq, size : int
        Rows, chunk length S, memory size M.
    kv_heads, heads, head_dim : int
        G, H and D. The head_dim is a power of four, so that the scale is a power of two.
    top_k : int or None
        Entries per query.
    """

    name: str
    batch: int
    seq: int
    size: int
    kv_heads: int
    heads: int
    head_dim: int
    top_k: int | None


MHA = Shape("mha", options.rows, 3, 5, 2, 2, 4, 3)
GQA = Shape("gqa", options.rows, 4, 6, 2, 4, 4, 6)
MQA = Shape("mqa", options.rows, 2, 3, 1, 3, 4, 1)
LONG_CHUNK = Shape("long-chunk", options.rows, 6, 4, 1, 2, 4, 2)
SINGLE = Shape("single", options.rows, 1, 3, 1, 1, 16, 2)
EQUAL = Shape("equal", options.rows, 4, 4, 2, 2, 4, None)
SHAPES = (MHA, GQA, MQA, LONG_CHUNK, SINGLE, EQUAL)


@dataclass(frozen=True)
class Chunk:
    """One step of a stream, in NumPy arrays: (batch, seq, ...)."""

    key: Numbers
    value: Numbers
    position: Numbers
    valid: Numbers
    query: Numbers
    query_position: Numbers
    query_valid: Numbers
    pinned: Numbers | None = None
    score: Numbers | None = None

    def rows(self, index: Sequence[int]) -> Chunk:
        """Return the same chunk with the rows of the batch taken by index."""
        fields: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            array = getattr(self, name)
            fields[name] = None if array is None else array[list(index)]
        return Chunk(**fields)


@dataclass(frozen=True)
class Stream:
    """A sequence of chunks; ``exact`` says that its logits have no rounding in float32."""

    shape: Shape
    chunks: tuple[Chunk, ...]
    exact: bool

    def __repr__(self) -> str:
        lines = [f"Stream({self.shape}, exact={self.exact})"]
        for number, chunk in enumerate(self.chunks):
            lines.append(f"  chunk {number}:")
            for name in chunk.__dataclass_fields__:
                array = getattr(chunk, name)
                if array is not None:
                    lines.append(f"    {name} = {array.tolist()}")
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


def dyadic(raw: bytes, levels: int) -> Numbers:
    """Map bytes to quarters: 0, 1, -1, 2, -2 ..., of which ``levels``, at most 17 (-2 to 2)."""
    step = np.frombuffer(raw, dtype=np.uint8).astype(np.int32) % levels
    return (np.where(step % 2 == 1, 1, -1) * ((step + 1) // 2) / 4).astype(np.float32)


def padded(raw: bytes, percent: int) -> Numbers:
    """Map bytes to validity, False for about ``percent`` of them."""
    return np.frombuffer(raw, dtype=np.uint8) >= percent * 256 // 100


class _Bytes:
    """Hands out slices of one drawn string of bytes."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.used = 0

    def take(self, count: int) -> bytes:
        self.used += count
        return self.raw[self.used - count : self.used]


@dataclass(frozen=True)
class Plan:
    """Everything about a stream except its contents.

    Attributes
    ----------
    steps : int
        Number of chunks.
    exact : bool
        Dyadic numbers, of which ``levels`` are used; otherwise generic floats.
    mode : {"own", "late", "free"}
        Queries at the positions of their own chunk, or ``late`` positions late (as out of a Q
        memory), or with positions and a validity of their own.
    percent : int
        How much of it is padding.
    stride, first : int
        Distance of neighbouring positions, and where row 0 begins.
    """

    steps: int
    exact: bool = True
    mode: str = "own"
    percent: int = 25
    stride: int = 1
    late: int = 0
    levels: int = 17
    with_score: bool = False
    with_pinned: bool = False
    query_seq: int | None = None
    first: int = 0

    def bytes_needed(self, shape: Shape) -> int:
        """Return how many bytes `assemble` reads."""
        b, s, g, h, d = shape.batch, shape.seq, shape.kv_heads, shape.heads, shape.head_dim
        sq = self.query_seq or s
        numbers = b * s * g * d * 2 + b * sq * h * d if self.exact else 4
        return self.steps * (b * s * 2 + b * sq + numbers)


def assemble(shape: Shape, plan: Plan, contents: bytes) -> Stream:
    """Build the stream that a plan and a string of bytes describe."""
    b, s, g, h, d = shape.batch, shape.seq, shape.kv_heads, shape.heads, shape.head_dim
    sq = plan.query_seq or s
    raw = _Bytes(contents)

    def content(*sizes: int) -> Numbers:
        if plan.exact:
            return dyadic(raw.take(int(np.prod(sizes))), plan.levels).reshape(sizes)
        return rng.standard_normal(sizes).astype(np.float32)

    chunks = []
    count = np.zeros((b,), dtype=np.int32)
    offset = plan.first + np.arange(b, dtype=np.int32) * 7
    pins_left = np.full((b,), PINS, dtype=np.int32)
    for step in range(plan.steps):
        valid = padded(raw.take(b * s), plan.percent).reshape(b, s)
        query_valid = padded(raw.take(b * sq), plan.percent).reshape(b, sq)
        extra = np.frombuffer(raw.take(b * s), dtype=np.uint8).reshape(b, s)
        rng = np.random.default_rng(list(raw.take(0 if plan.exact else 4)))
        arrival = count[:, None] + np.cumsum(valid, axis=1, dtype=np.int32) - 1
        position = (offset[:, None] + plan.stride * arrival).astype(np.int32)
        count = count + valid.sum(axis=1, dtype=np.int32)
        key, value, query = content(b, s, g, d), content(b, s, g, d), content(b, sq, h, d)
        # Every value can be told from every other: its first number counts the entries.
        value[..., 0] = (arrival / 8)[..., None] + np.arange(g) / 64
        pinned = (extra >= 200) & valid
        pinned = pinned & (np.cumsum(pinned, axis=1) <= pins_left[:, None])
        pins_left = pins_left - pinned.sum(axis=1, dtype=np.int32)
        if plan.mode == "free":
            newest = offset + plan.stride * (count - 1)
            query_position = np.maximum(newest[:, None] + np.arange(sq) - sq // 2, 0)
        else:
            query_position = position - plan.late
            query_valid = valid & (query_position >= 0)
        chunks.append(
            Chunk(
                key=np.where(valid[..., None, None], key, np.float32(GARBAGE)),
                value=np.where(valid[..., None, None], value, np.float32(GARBAGE)),
                position=np.where(valid, position, np.int32(GARBAGE_POSITION + step)),
                valid=valid,
                query=np.where(query_valid[..., None, None], query, np.float32(GARBAGE)),
                query_position=np.where(
                    query_valid, query_position.astype(np.int32), np.int32(GARBAGE_POSITION)
                ),
                query_valid=query_valid,
                pinned=(pinned | ~valid) if plan.with_pinned else None,
                score=((extra % 5) / 4).astype(np.float32) if plan.with_score else None,
            )
        )
    return Stream(shape, tuple(chunks), plan.exact)


@st.composite
def streams(
    draw: st.DrawFn,
    shape: Shape,
    *,
    exact: bool = True,
    min_steps: int = 1,
    max_steps: int = 4,
    padding: bool = True,
    query_mode: str | None = None,
    with_score: bool = False,
    with_pinned: bool = False,
    query_seq: int | None = None,
    first: int = 0,
) -> Stream:
    """Draw a stream of a few chunks; see `Plan` for the parameters."""
    steps = draw(st.integers(min_steps, max_steps), label="steps")
    modes = ("own", "late", "free") if query_seq is None else ("free",)
    mode = query_mode or draw(st.sampled_from(modes), label="query mode")
    plan = Plan(
        steps=steps,
        exact=exact,
        mode=mode,
        percent=draw(st.sampled_from((0, 25, 60)), label="percent of padding") if padding else 0,
        stride=draw(st.sampled_from((1, 3)), label="distance of positions"),
        late=draw(st.integers(1, 2 * shape.seq), label="positions late") if mode == "late" else 0,
        levels=draw(st.sampled_from((17, 3, 1)), label="levels of the numbers") if exact else 17,
        with_score=with_score,
        with_pinned=with_pinned,
        query_seq=query_seq,
        first=first,
    )
    size = plan.bytes_needed(shape)
    return assemble(shape, plan, draw(st.binary(min_size=size, max_size=size), label="contents"))


def seeded(shape: Shape, rng: np.random.Generator, steps: int = 5, **options: Any) -> Stream:
    """Build a stream from a seeded generator, without hypothesis."""
    plan = Plan(steps=steps, **options)
    return assemble(shape, plan, rng.bytes(plan.bytes_needed(shape)))


def with_garbage(stream: Stream, number: float) -> Stream:
    """Return the same stream with something else standing in the padding."""
    chunks = []
    for chunk in stream.chunks:
        blank, silent = ~chunk.valid, ~chunk.query_valid
        wide, other = blank[..., None, None], np.float32(number)
        chunks.append(
            replace(
                chunk,
                key=np.where(wide, other, chunk.key),
                value=np.where(wide, other, chunk.value),
                position=np.where(blank, np.int32(-5), chunk.position),
                query=np.where(silent[..., None, None], other, chunk.query),
                query_position=np.where(silent, np.int32(-5), chunk.query_position),
            )
        )
    return Stream(stream.shape, tuple(chunks), stream.exact)


def scattered(chunk: Chunk, places: Numbers, length: int) -> Chunk:
    """Return the same chunk spread over a longer one, padding in between.

    Parameters
    ----------
    places
        (batch, seq): where each entry (and query) goes, ascending in every row.
    length
        The new chunk length.
    """
    fields: dict[str, Any] = {}
    for name in chunk.__dataclass_fields__:
        array = getattr(chunk, name)
        if array is None:
            fields[name] = None
            continue
        blank: Any = {"f": GARBAGE, "i": GARBAGE_POSITION, "b": name == "pinned"}[array.dtype.kind]
        wide = np.full((array.shape[0], length, *array.shape[2:]), blank, dtype=array.dtype)
        for b in range(array.shape[0]):
            wide[b, places[b]] = array[b]
        fields[name] = wide
    return Chunk(**fields)
