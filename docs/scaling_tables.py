"""The formulas of docs/scaling.md, and its tables: ``python docs/scaling_tables.py`` writes them.

Tests hold the formulas against states, compiled programs and their collectives.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path

PAGE = Path(__file__).parent / "scaling.md"


@dataclass(frozen=True)
class Sizes:
    """A decoder like Llama: C = dim, H = heads, G = kv_heads, D = head_dim, F = hidden."""

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        """Numbers in the linear maps of one layer: q and out, k and v, gate, up and down."""
        attention = 2 * self.heads * self.head_dim + 2 * self.kv_heads * self.head_dim
        return self.dim * (attention + 3 * self.hidden)

    @property
    def weights(self) -> int:
        """Numbers in all layers, the embedding, the output matrix and the norms."""
        tables = 2 * self.vocabulary * self.dim
        return self.layers * (self.layer_weights + 2 * self.dim) + tables + self.dim


@dataclass(frozen=True)
class Memory:
    """M = size, N = waiting, S = chunk; ``visible``: the chunk has slots beside the M."""

    size: int
    waiting: int
    chunk: int
    visible: bool = False
    per_head: bool = False

    @property
    def slots(self) -> int:
        """Entries that a query may attend to."""
        return self.size + (self.chunk if self.visible else 0)


def kv_bytes(sizes: Sizes, memory: Memory, batch: int, width: int) -> int:
    """Bytes of the K/V memory of one layer; ``width`` bytes for each number of a key or value."""
    payload = 2 * sizes.kv_heads * sizes.head_dim * width
    records = 15 * (sizes.kv_heads if memory.per_head else 1)
    return batch * (memory.slots * (payload + records) + 20)


def q_bytes(sizes: Sizes, memory: Memory, batch: int, width: int) -> int:
    """Bytes of the Q memory of one layer: queries, the residual stream, records."""
    if memory.waiting == 0:
        return 0
    payload = (sizes.heads * sizes.head_dim + sizes.dim) * width
    return batch * (memory.waiting * (payload + 17) + 4)


def state_bytes(sizes: Sizes, memory: Memory, batch: int, width: int) -> int:
    """Bytes of all memories of a model."""
    each = kv_bytes(sizes, memory, batch, width) + q_bytes(sizes, memory, batch, width)
    return sizes.layers * each


def cache_bytes(sizes: Sizes, length: float, batch: int, width: int) -> float:
    """Bytes of a cache that keeps every key and value."""
    return sizes.layers * batch * length * 2 * sizes.kv_heads * sizes.head_dim * width


def token_flops(sizes: Sizes, keys: float) -> float:
    """Floating-point operations of all layers for one token that attends to so many keys."""
    attention = 4 * sizes.heads * sizes.head_dim * keys
    return sizes.layers * (2 * sizes.layer_weights + attention)


def score_flops(sizes: Sizes, memory: Memory) -> float:
    """Operations per token that a causal sum of logits adds: sums of queries, and one product."""
    each = 2 * sizes.heads * sizes.head_dim
    return sizes.layers * each * (memory.chunk + 1 + memory.slots / memory.chunk)


def collectives(sizes: Sizes, memory: Memory, batch: int, width: int) -> dict[str, tuple[int, int]]:
    """Return what is added up over devices in one step: times, and bytes each time."""
    stream = batch * memory.chunk * sizes.dim * width
    return {
        "embedding": (1, stream),
        "after attention": (sizes.layers, stream),
        "after the feed-forward part": (sizes.layers, stream),
        "scores": (sizes.layers, batch * memory.slots * 4),
        "is key, value, query finite?": (3 * sizes.layers, batch * memory.chunk),
    }


# ---------------------------------------------------------------- tables


@dataclass(frozen=True)
class Chip:
    """Public figures of one chip: FLOP/s in bfloat16 (dense), bytes/s and bytes of its memory."""

    name: str
    flops: float
    bandwidth: float
    capacity: float
    source: str

    @property
    def ridge(self) -> float:
        """Operations for each byte, from which on arithmetic is the bound."""
        return self.flops / self.bandwidth


CHIPS = (
    Chip("A100 SXM 80 GB", 312e12, 2039e9, 80e9, "NVIDIA A100 Tensor Core GPU datasheet"),
    Chip(
        "H100 SXM", 989e12, 3350e9, 80e9, "NVIDIA H100 Tensor Core GPU datasheet, without sparsity"
    ),
    Chip("TPU v5e", 197e12, 819e9, 16e9, "Google Cloud TPU documentation, page TPU v5e"),
    Chip("TPU v5p", 459e12, 2765e9, 95e9, "Google Cloud TPU documentation, page TPU v5p"),
)
#: The sizes that Llama 3 70B publishes.
MODEL = Sizes(80, 8192, 64, 8, 128, 28_672, 128_256)
MEMORY = Memory(size=8192, waiting=4096, chunk=1024, visible=True)
LENGTH, WIDTH = 10_000_000, 2


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _bytes(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def _time(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e3:.3g} ms"


def _chips_for(number: float, chip: Chip) -> int:
    """Return the smallest power of two of chips that hold so many bytes."""
    count = ceil(number / chip.capacity)
    return 1 << (count - 1).bit_length()


def _bound(chip: Chip, count: int, flops: float, moved: float) -> float:
    return max(flops / (count * chip.flops), moved / (count * chip.bandwidth))


def chip_table() -> str:
    """Return the figures of the chips."""
    rows = [
        (
            chip.name,
            f"{chip.flops / 1e12:.0f}",
            f"{chip.bandwidth / 1e9:,.0f}",
            f"{chip.capacity / 1e9:.0f}",
            f"{chip.ridge:.0f}",
            chip.source,
        )
        for chip in CHIPS
    ]
    head = ("chip", "TFLOP/s, bf16", "GB/s", "GB", "FLOP per byte at the ridge", "figures from")
    return _table(head, rows)


def needs_table() -> str:
    """Return what the model needs with memories and with full attention."""
    kv = MODEL.layers * kv_bytes(MODEL, MEMORY, 1, WIDTH)
    queries = MODEL.layers * q_bytes(MODEL, MEMORY, 1, WIDTH)
    cache = cache_bytes(MODEL, LENGTH, 1, WIDTH)
    ours, full = token_flops(MODEL, MEMORY.slots), token_flops(MODEL, (LENGTH + 1) / 2)
    without = token_flops(MODEL, 0)
    rows = [
        ("keys and values", _bytes(kv), _bytes(cache), f"{cache / kv:,.0f}"),
        ("waiting queries", _bytes(queries), "none", ""),
        ("both", _bytes(kv + queries), _bytes(cache), f"{cache / (kv + queries):,.0f}"),
        ("weights", _bytes(MODEL.weights * WIDTH), _bytes(MODEL.weights * WIDTH), "1"),
        (
            "FLOPs per token in attention",
            f"{ours - without:.3g}",
            f"{full - without:.3g}",
            f"{(full - without) / (ours - without):,.0f}",
        ),
        ("FLOPs per token in linear maps", f"{without:.3g}", f"{without:.3g}", "1"),
        ("FLOPs for all", f"{ours * LENGTH:.3g}", f"{full * LENGTH:.3g}", f"{full / ours:,.0f}"),
    ]
    return _table(("", "memories", "full attention", "times as much"), rows)


def roofline_table() -> str:
    """Return the least time on each chip, with as few chips as hold everything."""
    weights = MODEL.weights * WIDTH
    state, cache = state_bytes(MODEL, MEMORY, 1, WIDTH), cache_bytes(MODEL, LENGTH, 1, WIDTH)
    chunks = LENGTH / MEMORY.chunk
    rows = []
    for chip in CHIPS:
        few, many = _chips_for(weights + state, chip), _chips_for(weights + cache, chip)
        ours = LENGTH * token_flops(MODEL, MEMORY.slots), chunks * (weights + state)
        full = LENGTH * token_flops(MODEL, (LENGTH + 1) / 2), chunks * (weights + cache / 2)
        next_ours = token_flops(MODEL, MEMORY.slots), weights + state
        next_full = token_flops(MODEL, LENGTH), weights + cache
        rows.append(
            (
                chip.name,
                str(few),
                _time(_bound(chip, few, *ours)),
                _time(_bound(chip, few, *next_ours)),
                str(many),
                _time(_bound(chip, many, *full)),
                _time(_bound(chip, many, *next_full)),
                f"{_bound(chip, 1, *full) / _bound(chip, 1, *ours):,.0f}",
                f"{_bound(chip, 1, *next_full) / _bound(chip, 1, *next_ours):,.0f}",
            )
        )
    head = (
        *("chip", "memories: chips", "read all", "one more token"),
        *("full attention: chips", "read all", "one more token"),
        *("chip time to read, times as much", "chip time of a token, times as much"),
    )
    return _table(head, rows)


def crossing_table() -> str:
    """Return what crosses devices when heads are split."""
    reading = collectives(MODEL, MEMORY, 1, WIDTH)
    one = Memory(MEMORY.size, 0, 1, visible=True)
    writing = collectives(MODEL, one, 1, WIDTH)
    rows = []
    for name in reading:
        times, each = reading[name]
        rows.append((name, str(times), _bytes(times * each), _bytes(times * writing[name][1])))
    totals = [sum(times * each for times, each in found.values()) for found in (reading, writing)]
    own = [
        sum(found[name][0] * found[name][1] for name in list(found)[3:])
        for found in (reading, writing)
    ]
    count = sum(times for times, _ in reading.values())
    rows.append(("all", str(count), *map(_bytes, totals)))
    shares = [f"{100 * part / whole:.2g} %" for part, whole in zip(own, totals, strict=True)]
    rows.append(("share of the memory (the last two)", "", *shares))
    head = ("added up over devices", "times", f"a chunk of {MEMORY.chunk:,}", "one token")
    return _table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "chips": chip_table,
    "needs": needs_table,
    "roofline": roofline_table,
    "crossing": crossing_table,
}


def page_of(text: str) -> str:
    """Return the page with its tables written anew."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(
            pattern, lambda m, table=table: f"{m[1]}{table()}\n{m[2]}", text, flags=re.DOTALL
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(page_of(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
