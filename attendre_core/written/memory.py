"""A memory of slots that a writer rewrites with every chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from attendre_core import checks, ops
from attendre_core.backend import Array, Backend, Namespace, backend_of, resolve
from attendre_core.errors import ConfigError
from attendre_core.joint.beside import Beside
from attendre_core.memory.batch import reorder_rows, reset_rows
from attendre_core.memory.inside import check_sizes
from attendre_core.written.base import Parameters, Writer, ready

__all__ = ["WrittenMemory", "WrittenState"]


class WrittenState(NamedTuple):
    """What a written memory remembers: ``slots``, (batch, size, dim)."""

    slots: Array


@dataclass(frozen=True)
class WrittenMemory:
    """Slots of fixed number that a network writes: a function of slots, input and output.

    Nothing is stored or evicted one by one. Slots are read as further keys and values beside a K/V
    memory (`beside`), or as they are (`get_all`).

    Parameters
    ----------
    writer
        `TokenTuring`, `Memformer`, `MART`, `ICAE`, or a `Writer` of your own.

    Notes
    -----
    Laws: the state keeps its shape; padding changes nothing, and a row without a valid token keeps
    its slots; rows do not depend on each other; gradients flow through all writes.

    Examples
    --------
    Slots beside a memory of two entries, in one softmax:

    >>> import numpy as np
    >>> import attendre_core as at
    >>> slots = at.WrittenMemory(at.TokenTuring(size=3))
    >>> params = slots.writer.init(dim=8, seed=0)
    >>> state = slots.init(batch=1, dim=8, params=params)
    >>> x = np.ones((1, 5, 8), dtype=np.float32)
    >>> state = slots.write(state, params, x)
    >>> key = x.reshape(1, 5, 2, 4)  # two heads
    >>> memory = at.KeyValueMemory(size=2)
    >>> kv, _ = memory.insert(memory.init(like=key), key, key)
    >>> eye = np.eye(8, dtype=np.float32)
    >>> kv, output = memory.attend(kv, key, beside=slots.beside(state, eye, eye, kv_heads=2))
    >>> output.shape
    (1, 5, 2, 4)
    """

    writer: Writer

    def __post_init__(self) -> None:
        if not isinstance(self.writer, Writer):
            raise ConfigError(
                f"WrittenMemory: writer is {self.writer!r}, expected a writer such as "
                "at.TokenTuring(size=16), or an instance of your own subclass of at.Writer."
            )

    @property
    def size(self) -> int:
        """How many slots a row has."""
        return self.writer.size

    def init(
        self,
        *,
        batch: int,
        dim: int,
        params: Parameters | None = None,
        xp: Namespace | str | Backend = "numpy",
        dtype: Any = None,
        device: Any = None,
    ) -> WrittenState:
        """Make an empty state: zeros, or the slots that a writer has learned to begin with.

        Parameters
        ----------
        params
            The writer's arrays; ``xp``, ``dtype`` and ``device`` are then theirs. None = zeros.
        """
        where = "WrittenMemory.init"
        check_sizes(where, batch=batch, dim=dim)
        start = None
        if params:
            ready(where, self.writer, params, dim)
            like = next(iter(params.values()))
            xp, dtype, device = backend_of(like), like.dtype, backend_of(like).device_of(like)
            start = self.writer.start(params)
        library = resolve(xp).xp
        kind = checks.dtype_named(library, dtype)
        shape = (batch, self.size, dim)
        if start is None:
            return WrittenState(library.zeros(shape, dtype=kind, device=device))
        return WrittenState(library.broadcast_to(start[None, ...], shape))

    def write(
        self,
        state: WrittenState,
        params: Parameters,
        x: Array,
        y: Array | None = None,
        valid: Array | None = None,
    ) -> WrittenState:
        """Let the writer rewrite the slots.

        Parameters
        ----------
        params
            The writer's arrays, from `Writer.init` or trained.
        x, y
            (batch, seq, dim): what was read, and what the network made of it, or None.
        valid
            Boolean, (batch, seq); False = padding. None = all valid.
        """
        where = "WrittenMemory.write"
        xp = checks.same_library(where, state.slots, x, y, valid)
        batch, _, dim = state.slots.shape
        ready(where, self.writer, params, dim)
        for name, tokens in (("x", x), ("y", y)):
            if tokens is not None:
                wanted = (batch, None if name == "x" else x.shape[1], dim)
                hint = "Give tokens as wide as the slots."
                checks.shape(where, name, tokens, "batch, seq, dim", wanted, hint)
        real = checks.flags(where, "valid", valid, (batch, x.shape[1]), x, default=True)
        for name, tokens in (("x", x), ("y", y)):
            if tokens is not None:
                real = real & checks.finite_rows(where, name, tokens, real, (0, 1))
        x = ops.fill(x, ~real[..., None], 0.0)
        y = None if y is None else ops.fill(y, ~real[..., None], 0.0)
        written = self.writer.write(params, state.slots, x, y, real)
        checks.shape(
            type(self.writer).__name__, "what write returned", written, "batch, size, dim",
            tuple(state.slots.shape), "Slots keep their shape.",
        )  # fmt: skip
        some = xp.any(real, axis=1)[:, None, None]
        return WrittenState(xp.where(some, written, state.slots))

    def get_all(self, state: WrittenState) -> Array:
        """Return the slots, (batch, size, dim)."""
        return state.slots

    def reset(
        self, state: WrittenState, rows: Array, params: Parameters | None = None
    ) -> WrittenState:
        """Empty the rows where ``rows``, boolean (batch,), is True."""
        batch, _, dim = state.slots.shape
        source = backend_of(state.slots)
        like = {"xp": source, "dtype": state.slots.dtype, "device": source.device_of(state.slots)}
        empty = self.init(batch=batch, dim=dim, params=params, **like)
        return reset_rows("WrittenMemory.reset", state, empty, rows)

    def reorder(self, state: WrittenState, index: Array) -> WrittenState:
        """Return row ``index[i]`` as row i, for beam search."""
        return reorder_rows("WrittenMemory.reorder", state, index)

    def beside(self, state: WrittenState, to_key: Array, to_value: Array, kv_heads: int) -> Beside:
        """Project the slots to keys and values, to be attended to together with a K/V memory.

        Parameters
        ----------
        to_key, to_value
            (dim, kv_heads * head_dim): projections, often those of the layer.
        """
        xp, (batch, size, _) = backend_of(state.slots).xp, state.slots.shape

        def projected(weight: Array) -> Array:
            heads = (batch, size, kv_heads, weight.shape[1] // kv_heads)
            return xp.reshape(xp.matmul(state.slots, weight), heads)

        return Beside(projected(to_key), projected(to_value))
