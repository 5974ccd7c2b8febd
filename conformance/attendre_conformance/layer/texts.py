"""Texts for layers: whole inputs with queries, keys, values and all that goes with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import attendre_core as at
from attendre_conformance import options
from attendre_conformance.memory.streams import GARBAGE, GARBAGE_POSITION, dyadic, padded

Numbers = NDArray[Any]

#: Width of the residual stream in tests of single layers.
CARRY = 3


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
WHOLE = Sizes(batch=options.rows, length=9, seq=4, heads=4, kv_heads=2, head_dim=8)
STREAM = Sizes(batch=options.rows, length=12, seq=3, heads=4, kv_heads=2, head_dim=4)


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
