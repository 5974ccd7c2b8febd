"""Blocks and stacks on the backend under test, NumPy in and NumPy out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from attendre_conformance.layer.texts import Numbers
from attendre_conformance.oracle.stack import PlainBlock
from attendre_conformance.positions.cases import table_for
from attendre_conformance.running import compiles, from_numpy, to_numpy

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 8, 2, 1, 4
KINDS = ("pre", "post", "parallel")

_functions: dict[tuple[Any, ...], Callable[..., Any]] = {}


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
        self.tables = [table_for(layer.encoding, HEADS, HEAD_DIM) for layer in stack.layers]
        self.compiled = compiles(backend)
        self.blocks = [
            BackendBlock(backend, block, table)
            for block, table in zip(blocks, self.tables, strict=True)
        ]

    def init(self, batch: int, seq: int, documents: bool = False) -> Any:
        """Return empty states."""
        xp = self.backend.xp
        return self.stack.init(
            batch=batch,
            heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            carry_dim=WIDTH,
            xp=xp,
            dtype=xp.float32,
            documents=documents,
            metadata=(self.backend.from_numpy(np.zeros((batch, 1), dtype=np.int32)),),
            chunk=seq,
        )

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
