"""Compressors: several entries that leave one tier become one entry of the next.

::

    evicted, in order    a  b  c  d | e  f  g  h | i  j        rate 4
    next tier                 abcd         efgh     i, j wait, and are read as they are meanwhile

Every entry goes into exactly one compressed entry, which counts how many inserted entries it stands
for (``aux["count"]``). It has the latest of their positions, so causal attention never looks ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core import checks, ops
from attendre_core.backend import Array, backend_of, namespace_of, numbers, wide
from attendre_core.errors import ConfigError
from attendre_core.memory.arrivals import Arrivals, taken

__all__ = ["Compressor", "Convolution", "Dilated", "MaxPool", "MeanPool", "MostUsed", "as_index"]


def as_index(number: Array) -> Array:
    """Return integers in the dtype that the library has for indices."""
    xp = namespace_of(number)
    return xp.astype(number, xp.argsort(numbers(1, number)).dtype, copy=False)


@dataclass(frozen=True)
class Compressor:
    """Base of the compressors that make one entry out of every ``rate`` entries.

    A subclass overrides `pool`, if it computes keys and values, or `choose`, if it keeps some of
    the entries as they are.

    Parameters
    ----------
    rate
        c: how many entries become one.
    """

    rate: int

    # Of every `block` entries, those that are this far apart become one. Not a field here.
    dilation = 1

    def __post_init__(self) -> None:
        for name in ("rate", "dilation"):
            number = getattr(self, name)
            checks.whole_number(type(self).__name__, name, number, least=1, hint="4 is usual.")

    @property
    def block(self) -> int:
        """How many entries are compressed at once; fewer wait."""
        return self.rate * self.dilation

    def initial(self, kv_heads: int, head_dim: int, value_dim: int, like: Array) -> Any:
        """Return parameters to start from, of the library and dtype of ``like``; None = none."""
        return None

    def pool(self, x: Array, params: Any, name: str) -> Array:
        """Compress keys or values, (batch, kv_heads, n, rate, dim) to (batch, kv_heads, n, dim).

        Parameters
        ----------
        params
            Learned arrays of the compressor, if it has any.
        name
            ``"key"`` or ``"value"``.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides neither pool nor choose.")

    def choose(self, entries: Arrivals, ready: Array) -> Array | None:
        """Return which entries are kept as they are, (batch, n), in order; None pools them.

        Parameters
        ----------
        entries
            n * rate entries, of which the first ``ready`` of each row are real.
        """
        return None

    def compress(self, entries: Arrivals, ready: Array, params: Any = None) -> Arrivals:
        """Compress n * block entries, of which the first ``ready`` of each row are real."""
        xp, axis = namespace_of(ready), entries.valid.ndim - 1
        index = self.choose(entries, ready)
        if index is None:
            position = xp.max(self._grouped(entries.position, axis), axis=-1)
            score = xp.max(self._grouped(entries.score, axis), axis=-1)
            key, value = (
                xp.astype(
                    self.pool(self._grouped(wide(x), 2), params, name), x.dtype, copy=False
                )
                for name, x in (("key", entries.key), ("value", entries.value))
            )  # fmt: skip
            result = taken(entries, self._last(entries))._replace(
                key=key, value=value, position=position, score=score
            )
        else:
            result = taken(entries, index)
        count = self._grouped(entries.aux["count"], axis)
        count = xp.sum(count, axis=-1, dtype=count.dtype)
        valid = numbers(count.shape[-1], ready) < ready[..., None] // self.rate
        return result._replace(valid=valid, enter=valid, aux={**result.aux, "count": count})

    def _grouped(self, x: Array, axis: int) -> Array:
        """Split an axis of n * block entries into (n * dilation, rate)."""
        xp, rest = namespace_of(x), x.shape[axis + 1 :]
        x = xp.reshape(x, (*x.shape[:axis], -1, self.rate, self.dilation, *rest))
        order = list(range(x.ndim))
        order[axis + 1], order[axis + 2] = order[axis + 2], order[axis + 1]
        lead = x.shape[:axis]
        return xp.reshape(xp.permute_dims(x, tuple(order)), (*lead, -1, self.rate, *rest))

    def _last(self, entries: Arrivals) -> Array:
        """Return the last entry of each group, as an index."""
        number = numbers(entries.position.shape[-1], entries.position) + 0 * entries.position
        return as_index(self._grouped(number, number.ndim - 1)[..., -1])


@dataclass(frozen=True)
class MeanPool(Compressor):
    """The mean of the keys and of the values (Compressive Transformer).

    Examples
    --------
    >>> import attendre_core as at
    >>> at.Tier(at.KeyValueMemory(512), compress=at.MeanPool(4)).compress.rate
    4
    """

    def pool(self, x: Array, params: Any, name: str) -> Array:
        """Return the mean."""
        return namespace_of(x).mean(x, axis=-2)


@dataclass(frozen=True)
class MaxPool(Compressor):
    """The largest number of each feature (Compressive Transformer).

    Examples
    --------
    >>> MaxPool(2).block
    2
    """

    def pool(self, x: Array, params: Any, name: str) -> Array:
        """Return the maximum."""
        return namespace_of(x).max(x, axis=-2)


@dataclass(frozen=True)
class Convolution(Compressor):
    """A learned map of ``rate`` entries to one: a convolution with stride ``rate``, for each head.

    Parameters
    ----------
    dilation
        The entries that become one are this far apart; ``rate * dilation`` are compressed at once.

    Notes
    -----
    The parameters are a dict of ``"key"`` and ``"value"``, (kv_heads, rate, dim, dim): a
    compressed key is the sum over i of ``key[i] @ params["key"][head, i]``. `initial` is the mean.

    Examples
    --------
    >>> Convolution(4, dilation=2).block
    8
    """

    dilation: int = 1

    def initial(self, kv_heads: int, head_dim: int, value_dim: int, like: Array) -> Any:
        """Return the parameters of the mean."""
        found = backend_of(like)

        def mean(dim: int) -> Array:
            one = found.xp.eye(dim, dtype=like.dtype, device=found.device_of(like)) / self.rate
            return found.xp.broadcast_to(one, (kv_heads, self.rate, dim, dim)) + 0.0

        return {"key": mean(head_dim), "value": mean(value_dim)}

    def pool(self, x: Array, params: Any, name: str) -> Array:
        """Return the sum of the mapped entries."""
        if params is None:
            raise ConfigError(
                "Convolution: it has parameters, and none were given. Pass policy_params="
                "memory.parameters(...), or arrays that were learned from there."
            )
        xp = namespace_of(x)
        batch, heads, count, rate, dim = x.shape
        flat = xp.reshape(x, (batch, heads, count, rate * dim))
        return xp.matmul(flat, xp.reshape(wide(params[name]), (heads, rate * dim, -1)))


@dataclass(frozen=True)
class MostUsed(Compressor):
    """Of all entries that are ready, keep the share with the highest scores, as they are.

    The scores are those with which the entries left the tier before, so its policy must keep some:
    `Usage` evicts the oldest first and adds up attention weights, as Compressive Transformer does.
    Of equal scores the later entry is kept. A kept entry counts ``rate`` entries.

    Examples
    --------
    >>> MostUsed(4).rate
    4
    """

    def choose(self, entries: Arrivals, ready: Array) -> Array:
        """Return the entries with the highest scores, in order."""
        xp = namespace_of(ready)
        number = numbers(entries.score.shape[-1], ready) + 0 * entries.position
        real = number < ready[..., None]
        unused = xp.where(real, -entries.score, float("inf"))
        best = ops.lowest(unused, -number, number.shape[-1] // self.rate)
        kept = numbers(best.shape[-1], ready) < ready[..., None] // self.rate
        last = xp.full_like(best, number.shape[-1] - 1)
        return xp.sort(xp.where(kept, best, last), axis=-1)


@dataclass(frozen=True)
class Dilated(Compressor):
    """Keep every ``rate``-th entry as it is, the last of each group.

    Examples
    --------
    >>> Dilated(4).rate
    4
    """

    def choose(self, entries: Arrivals, ready: Array) -> Array:
        """Return every ``rate``-th entry."""
        return self._last(entries)
