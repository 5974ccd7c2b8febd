"""Token Turing Machine: slots summarise slots, output and input."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core import ops
from attendre_core.backend import Array, namespace_of
from attendre_core.written.base import Parameters, Writer

__all__ = ["TokenTuring"]


@dataclass(frozen=True)
class TokenTuring(Writer):
    """The token summariser of Token Turing Machines (arXiv 2211.09119).

    The new slots are weighted sums of all old slots, outputs and inputs: slot i is the sum of
    softmax(q_i.(t + p_t) / sqrt(d)) t over all these tokens t, with a learned query q_i and learned
    places p: one for each old slot, one for all outputs, one for all inputs. The slots begin at 0.

    Notes
    -----
    Of the two summarisers in the paper this is the one with learned queries; the other scores
    tokens with an MLP. Differs from the original: places count in the scores alone, where the
    original adds them to the tokens, and inputs share one place; reading is attention to the slots
    beside a memory, where the original summarises [slots ; input] for its processing unit.

    Examples
    --------
    >>> TokenTuring(size=4).parameters(dim=8)
    {'query': (4, 8), 'place': (4, 8), 'output_place': (8,), 'input_place': (8,)}
    """

    def parameters(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Return a query and a place for each slot, and places of outputs and inputs."""
        each = (self.size, dim)
        return {"query": each, "place": each, "output_place": (dim,), "input_place": (dim,)}

    def write(
        self, params: Parameters, slots: Array, x: Array, y: Array | None, valid: Array
    ) -> Array:
        """Summarise [slots ; output ; input]."""
        xp = namespace_of(slots)
        parts, places = [slots], [slots + params["place"][None, ...]]
        flags = [xp.ones_like(slots[..., 0], dtype=xp.bool)]
        for tokens, name in ((y, "output_place"), (x, "input_place")):
            if tokens is not None:
                parts.append(tokens)
                places.append(tokens + params[name])
                flags.append(valid)
        every, placed = xp.concat(parts, axis=1), xp.concat(places, axis=1)
        scores = xp.matmul(params["query"][None, ...], xp.matrix_transpose(placed))
        weight = ops.masked_softmax(
            scores * slots.shape[-1] ** -0.5, xp.concat(flags, axis=1)[:, None, :]
        )
        return xp.matmul(weight, every)
