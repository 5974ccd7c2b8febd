"""What turns the hidden states of an encoder into logits of labels.

::

    hidden ─┬──────────────────► dense ─► activation ─► norm ─► out ─► logits    token, span
            └─► pooled to a row ─► dense ─► activation ─► norm ─► out ─► logits    sequence

An architecture says which of these parts its heads have, and what checkpoints call them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attendre_core.backend import Array, backend_of
from attendre_core.zoo.architectures.base import Params, Tensor
from attendre_core.zoo.architectures.layers import activate, layer_norm, linear

__all__ = ["HEAD", "OUT", "Head", "Kind", "Pooling", "pooled"]

Kind = Literal["token", "sequence", "span"]
Pooling = Literal["cls", "mean", "last"]
#: Where the parameters of a head are among those of a model.
HEAD = "classifier"
#: What most checkpoints call the last linear map of a head.
OUT: dict[Kind, str] = {"token": "classifier", "sequence": "classifier", "span": "qa_outputs"}


@dataclass(frozen=True)
class Head:
    """Logits of labels for each token, for a whole input, or for where an answer begins and ends.

    Attributes
    ----------
    kind
        ``"token"``, ``"sequence"`` or ``"span"``.
    labels
        What the logits are of, in their order; ``("start", "end")`` for spans.
    dim
        Width of the hidden states.
    out
        Name of the last linear map in the checkpoint.
    dense, activation
        Name of a linear map before it, and what follows that one; None = there is none.
    norm, eps
        Name of a layer norm after the activation, and what is added to its variance.
    pooling
        How hidden states become the row of a sequence: the first one, their mean, the last one.
    late
        Pool after dense, activation and norm, not before.
    biased
        Which of ``"dense"``, ``"norm"`` and ``"out"`` have a bias.

    Examples
    --------
    >>> import numpy as np
    >>> head = Head("token", ("O", "PER"), dim=3, out="classifier")
    >>> sorted(head.parameters())
    ['out', 'out_bias']
    >>> params = {"classifier": {"out": np.ones((2, 3)), "out_bias": np.asarray([0.0, 1.0])}}
    >>> head.logits(params, np.ones((1, 1, 3))).tolist()
    [[[3.0, 4.0]]]
    """

    kind: Kind
    labels: tuple[str, ...]
    dim: int
    out: str
    dense: str | None = None
    activation: str = "tanh"
    norm: str | None = None
    eps: float = 1e-5
    pooling: Pooling = "cls"
    late: bool = False
    biased: tuple[str, ...] = ("dense", "norm", "out")

    def parameters(self) -> dict[str, Tensor]:
        """Name the tensors of a checkpoint."""
        shapes = {
            "dense": (self.dense, (self.dim, self.dim)),
            "norm": (self.norm, (self.dim,)),
            "out": (self.out, (len(self.labels), self.dim)),
        }
        tensors = {}
        for name, (stored, shape) in shapes.items():
            if stored is not None:
                tensors[name] = Tensor(f"{stored}.weight", shape)
                if name in self.biased:
                    tensors[f"{name}_bias"] = Tensor(f"{stored}.bias", shape[:1])
        return tensors

    def row(self, params: Params, hidden: Array, valid: Array) -> Array:
        """Pool the hidden states of sequences to what `logits` takes.

        Parameters
        ----------
        params
            Of the whole model.
        hidden, valid
            (batch, n, dim), and which of them are real, (batch, n), padded at the end.

        Returns
        -------
        array
            (batch, dim).
        """
        return pooled(self.poolable(params, hidden), valid, self.pooling)

    def poolable(self, params: Params, hidden: Array) -> Array:
        """Return what is pooled to a row: the hidden states, or what ``late`` makes of each."""
        return self._inner(params, hidden) if self.late else hidden

    def logits(self, params: Params, x: Array) -> Array:
        """Return logits, (..., labels).

        Parameters
        ----------
        params
            Of the whole model.
        x
            Hidden states of tokens, (batch, n, dim); for a sequence the row they are pooled to,
            (batch, dim).
        """
        return linear(params[HEAD], "out", x if self.late else self._inner(params, x))

    def _inner(self, params: Params, x: Array) -> Array:
        own = params[HEAD]
        if self.dense is not None:
            x = activate(self.activation, linear(own, "dense", x))
        if self.norm is not None:
            x = layer_norm(own["norm"], own.get("norm_bias"), x, self.eps)
        return x


def pooled(x: Array, valid: Array, pooling: Pooling) -> Array:
    """Pool (batch, n, dim) to (batch, dim); ``valid`` is (batch, n), padded at the end.

    Examples
    --------
    >>> import numpy as np
    >>> x, valid = np.asarray([[[1.0], [3.0], [9.0]]]), np.asarray([[True, True, False]])
    >>> [pooled(x, valid, how).tolist() for how in ("cls", "mean", "last")]
    [[[1.0]], [[2.0]], [[3.0]]]
    """
    if pooling == "cls":
        return x[:, 0, :]
    xp = backend_of(x).xp
    if pooling == "mean":
        real = xp.astype(valid, x.dtype)[:, :, None]
        kept = xp.where(valid[:, :, None], x, xp.zeros_like(x))
        return xp.sum(kept, axis=1) / xp.sum(real, axis=1)
    place = xp.sum(xp.astype(valid, xp.int32), axis=1, keepdims=True) - 1
    last = xp.cumulative_sum(xp.astype(valid, xp.int32), axis=1, dtype=xp.int32) - 1 == place
    kept = xp.where((last & valid)[:, :, None], x, xp.zeros_like(x))
    return xp.sum(kept, axis=1)
