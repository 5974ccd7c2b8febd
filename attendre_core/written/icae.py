"""ICAE: memory tokens behind a span read it, and become its slots."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.backend import Array, namespace_of, numbers
from attendre_core.written.base import Parameters, Writer, attend, shapes_of

__all__ = ["ICAE"]


@dataclass(frozen=True)
class ICAE(Writer):
    """The encoder of the In-context Autoencoder, as one attention block (arXiv 2307.06945).

    Learned memory tokens m are read behind the span x, each with the span and the memory tokens up
    to itself: slots = m + Attention(m, [x ; m], [x ; m]) W_o. A span replaces what was written
    before it.

    Parameters
    ----------
    heads
        Of the attention.

    Notes
    -----
    The original's encoder is a whole language model with LoRA, whose last hidden states at the
    memory tokens are the slots; this is its last attention block. To keep several spans, write each
    with a state of its own and attend to all of them.

    Examples
    --------
    >>> sorted(ICAE(size=4).parameters(dim=8))
    ['memory', 'to_key', 'to_output', 'to_query', 'to_value']
    """

    heads: int = 1

    def parameters(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Return the memory tokens and the projections of the attention."""
        names = ("to_query", "to_key", "to_value", "to_output")
        return {"memory": (self.size, dim), **shapes_of("ICAE", self.heads, dim, *names)}

    def write(
        self, params: Parameters, slots: Array, x: Array, y: Array | None, valid: Array
    ) -> Array:
        """Let the memory tokens read the span."""
        xp = namespace_of(slots)
        memory = xp.broadcast_to(params["memory"][None, ...], slots.shape)
        every = xp.concat([x, memory], axis=1)
        number = numbers(self.size, slots)
        upto = (number[None, :] <= number[:, None])[None, ...]
        shape = (slots.shape[0], self.size)
        allowed = xp.concat(
            [
                xp.broadcast_to(valid[:, None, :], (*shape, x.shape[1])),
                xp.broadcast_to(upto, (*shape, self.size)),
            ],
            axis=-1,
        )
        query = xp.matmul(memory, params["to_query"])
        key, value = (xp.matmul(every, params[name]) for name in ("to_key", "to_value"))
        read = attend(query, key, value, allowed, self.heads)
        return memory + xp.matmul(read, params["to_output"])
