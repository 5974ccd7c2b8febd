"""MART: slots attend to the tokens and are updated by a gate."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.backend import Array, namespace_of
from attendre_core.written.base import Parameters, Writer, attend, logistic, shapes_of

__all__ = ["MART"]


@dataclass(frozen=True)
class MART(Writer):
    """Gated recurrence of the Memory-Augmented Recurrent Transformer (arXiv 2005.05402).

    The slots M read the tokens H by attention, S = Attention(M, H, H), and are updated by
    C = tanh(M W_mc + S W_sc + b_c), Z = sigmoid(M W_mz + S W_sz + b_z), M' = (1 - Z) C + Z M. They
    begin at 0.

    Parameters
    ----------
    heads
        Of the attention.

    Notes
    -----
    Differs from the original: H is what is given as input, where the original takes each layer's
    hidden states after self-attention; the attention's output projection is part of W_sc and W_sz.
    With slots that begin at 0 and no learned start all slots would stay equal, so queries have a
    learned place for each slot.

    Examples
    --------
    >>> sorted(MART(size=4).parameters(dim=8))[:3]
    ['candidate_bias', 'gate_bias', 'place']
    """

    heads: int = 1

    def parameters(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Return the projections of the attention and of the two gates."""
        names = ("to_query", "to_key", "to_value", "to_candidate", "to_candidate_read")
        square = shapes_of("MART", self.heads, dim, *names, "to_gate", "to_gate_read")
        return {**square, "candidate_bias": (dim,), "gate_bias": (dim,), "place": (self.size, dim)}

    def write(
        self, params: Parameters, slots: Array, x: Array, y: Array | None, valid: Array
    ) -> Array:
        """Read the tokens and let the gate decide."""
        xp = namespace_of(slots)
        query = xp.matmul(slots + params["place"][None, ...], params["to_query"])
        key, value = (xp.matmul(x, params[name]) for name in ("to_key", "to_value"))
        read = attend(query, key, value, valid[:, None, :], self.heads)

        def mixed(name: str) -> Array:
            own = xp.matmul(slots, params[f"to_{name}"])
            return own + xp.matmul(read, params[f"to_{name}_read"]) + params[f"{name}_bias"]

        gate = logistic(mixed("gate"))
        return (1.0 - gate) * xp.tanh(mixed("candidate")) + gate * slots
