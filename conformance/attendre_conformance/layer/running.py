"""Run a layer of the core on the backend under test, NumPy in and NumPy out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attendre_conformance.layer.cases import layer_rule
from attendre_conformance.layer.texts import CARRY, Numbers, Text
from attendre_conformance.oracle.layer import OracleLayer, Query
from attendre_conformance.oracle.positions import full_attention
from attendre_conformance.positions.cases import scheme_rule, table_for
from attendre_conformance.running import compiles, from_numpy, to_numpy

_functions: dict[tuple[Any, ...], Callable[..., Any]] = {}


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

    def table(self, heads: int, head_dim: int) -> Any:
        """Return the learned arrays of the position scheme."""
        return from_numpy(self.backend, table_for(self.layer.encoding, heads, head_dim))

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
        table = self.table(*chunk.query.shape[2:])
        state, out = self.function("step")(state, from_numpy(self.backend, chunk), table)
        return state, to_numpy(self.backend, out)

    def finish(self, state: Any, heads: int, length: int | None = None) -> tuple[Any, Any]:
        """Flush, or drain ``length`` queries at a time."""
        name = "flush" if length is None else "drain"
        table = self.table(heads, state.kv.key.shape[3])
        state, out = self.function(name, length or 0)(state, table)
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
    b, _, heads, dim = text.query.shape
    table, rule = table_for(layer.encoding, heads, dim), layer_rule(layer)
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


def everything(layer: Any, text: Text, **options: Any) -> Any:
    """Return full attention by brute force, (batch, length, heads, dim)."""
    rule, table = scheme_rule(layer.encoding), table_for(layer.encoding, *text.query.shape[2:])
    return np.stack(
        [
            full_attention(
                text.query[b],
                text.key[b],
                text.value[b],
                text.position[b],
                text.valid[b],
                rule=rule,
                causal=layer.causal,
                table=table,
                document=None if text.document is None else text.document[b],
                **options,
            )
            for b in range(text.valid.shape[0])
        ]
    )
