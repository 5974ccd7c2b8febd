"""Position schemes and full attention by brute force: every pair of positions by itself, float64.

A rotation is a matrix with 2x2 blocks, a clamped distance is clamped pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]


@dataclass(frozen=True)
class SchemeRule:
    """What a position scheme does, in words and numbers.

    Attributes
    ----------
    kind : {"none", "rope", "lm_infinite", "t5", "alibi", "transformer_xl", "deberta", "in_cache"}
        The family.
    base, rotary_dim, interleaved
        Of a rotation.
    scaling : tuple
        ``()``, ``("interpolation", factor)``, ``("ntk", factor)`` or
        ``("yarn", factor, trained length, beta_fast, beta_slow)``.
    n_local : int
        The largest distance of LM-Infinite.
    buckets, max_distance, bidirectional
        Of T5's table.
    width, own_scale
        Of Transformer-XL: how wide its sinusoids are, and what multiplies u and v, or the keys
        of DeBERTa (None is 1/sqrt(head_dim)).
    reach, log_buckets, terms
        Of DeBERTa: distances from there on are alike, how many buckets there are in each
        direction (0 = one for each distance), and what is added.
    inner : SchemeRule or None
        What in-cache positions are given to.
    """

    kind: str
    base: float = 10000.0
    rotary_dim: int | None = None
    interleaved: bool = False
    scaling: tuple[Any, ...] = ()
    n_local: int = 0
    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    width: int = 0
    own_scale: float | None = None
    reach: int = 0
    log_buckets: int = 0
    terms: tuple[str, ...] = ()
    inner: SchemeRule | None = None

    @property
    def exact(self) -> bool:
        """Whether it adds no rounding to dyadic numbers (and, for ALiBi, 2**n heads)."""
        if self.kind == "in_cache" and self.inner is not None:
            return self.inner.exact
        return self.kind in ("none", "t5", "alibi")


NO_SCHEME = SchemeRule("none")


def angles(rule: SchemeRule, dim: int) -> list[float]:
    """Radians per position of each pair of features."""
    plain = [rule.base ** (-2.0 * d / dim) for d in range(dim // 2)]
    if not rule.scaling:
        return plain
    kind, factor = rule.scaling[:2]
    if kind == "interpolation":  # positions m become m / factor (Chen et al. 2023)
        return [angle / factor for angle in plain]
    if kind == "ntk":  # the base becomes base * factor ** (dim / (dim - 2))
        base = rule.base * factor ** (dim / (dim - 2))
        return [base ** (-2.0 * d / dim) for d in range(dim // 2)]
    return [_yarn_angle(rule, dim, d, plain[d]) for d in range(dim // 2)]


def _yarn_angle(rule: SchemeRule, dim: int, pair: int, angle: float) -> float:
    """YaRN by parts: a fast pair keeps its angle, a slow one is interpolated (Peng et al. 2023).

    A pair that turns r times over the trained length L has angle 2 pi r / L, so it stands at index
    ln(L / (2 pi r)) / ln(base) * dim / 2. The ramp between the indices of beta_fast and beta_slow,
    rounded outwards, is linear in the index, as in the code released with that paper.
    """
    _, factor, length, fast, slow = rule.scaling

    def index(turns: float) -> float:
        return math.log(length / (2 * math.pi * turns)) / math.log(rule.base) * dim / 2

    first = max(0, math.floor(index(fast)))
    last = min(dim - 1, math.ceil(index(slow)))
    if pair <= first:
        share = 0.0
    elif pair >= last:
        share = 1.0
    else:
        share = (pair - first) / (last - first)
    return float((1.0 - share) * angle + share * angle / factor)


def sharpening(rule: SchemeRule) -> float:
    """Return YaRN's 1/t, sqrt(1/t) = 0.1 ln(factor) + 1, which multiplies all logits; else 1."""
    if rule.scaling and rule.scaling[0] == "yarn" and rule.scaling[1] > 1:
        return float((0.1 * math.log(rule.scaling[1]) + 1.0) ** 2)
    return 1.0


@lru_cache(maxsize=8192)
def rotation(rule: SchemeRule, head_dim: int, position: float) -> Numbers:
    """Matrix that turns each pair of features by its angle times the position."""
    dim = head_dim if rule.rotary_dim is None else rule.rotary_dim
    matrix = np.eye(head_dim)
    for d, angle in enumerate(angles(rule, dim)):
        one, two = (2 * d, 2 * d + 1) if rule.interleaved else (d, d + dim // 2)
        cosine, sine = math.cos(angle * position), math.sin(angle * position)
        matrix[one, one] = cosine
        matrix[one, two] = -sine
        matrix[two, one] = sine
        matrix[two, two] = cosine
    return matrix


def t5_bucket(offset: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """Bucket of a key ``offset`` positions after its query, in single precision as T5 computes it.

    Keys after the query use the upper half of the table (a decoder has none, and treats them as
    distance 0). Of the buckets of one direction the first half is for the distances 0, 1, 2, ...;
    beyond these, the logarithm of the distance is divided evenly up to ``max_distance``.
    """
    first, distance = 0, max(0, -offset)
    if bidirectional:
        buckets = buckets // 2
        first, distance = (buckets, offset) if offset > 0 else (0, -offset)
    own = buckets // 2
    if distance < own:
        return first + distance
    one = np.float32
    growth = np.log(one(distance) / one(own)) / one(math.log(max_distance / own))
    return first + min(buckets - 1, own + int(growth * one(buckets - own)))


def alibi_slope(head: int, heads: int) -> float:
    """Slope of one head: 2**(-8/n), 2**(-16/n), ... for n = 2**k heads.

    Other numbers of heads take those of the next lower power of two, and then the 1st, 3rd, 5th ...
    of the next higher one (Press et al. 2022).
    """
    power = 1
    while 2 * power <= heads:
        power *= 2
    if head < power:
        return float(2.0 ** (-8.0 * (head + 1) / power))
    number = 2 * (head - power) + 1
    return float(2.0 ** (-8.0 * number / (2 * power)))


class Pair(NamedTuple):
    """A query and a key: vectors, positions, and which of how many heads."""

    query: Numbers
    key: Numbers
    at: int
    to: int
    head: int
    heads: int


def pair_logit(rule: SchemeRule, pair: Pair, scale: float, table: Numbers | None) -> float:
    """Logit of one pair, with everything that the scheme does to it."""
    query, key, at, to = pair.query, pair.key, pair.at, pair.to
    if rule.kind == "none":
        return scale * float(query @ key)
    if rule.kind == "rope":
        turned = (rotation(rule, len(query), at) @ query) @ (rotation(rule, len(key), to) @ key)
        return scale * sharpening(rule) * float(turned)
    if rule.kind == "lm_infinite":
        distance = max(-rule.n_local, min(rule.n_local, at - to))
        return scale * float((rotation(rule, len(query), distance) @ query) @ key)
    if rule.kind == "alibi":
        return scale * float(query @ key) - alibi_slope(pair.head, pair.heads) * abs(at - to)
    if rule.kind == "t5" and table is not None:
        bucket = t5_bucket(to - at, rule.buckets, rule.max_distance, rule.bidirectional)
        return scale * float(query @ key) + float(table[bucket, pair.head])
    if rule.kind == "transformer_xl" and table is not None:
        own = len(query) ** -0.5 if rule.own_scale is None else rule.own_scale
        weights = np.asarray(table[:, pair.head], dtype=np.float64)
        placed = weights[: rule.width].T @ sinusoid(at - to, rule.width, rule.base)
        u, v = weights[rule.width], weights[rule.width + 1]
        return float(scale * (query @ key + query @ placed) + own * (u @ key + v @ placed))
    if rule.kind == "deberta" and table is not None:
        own = len(query) ** -0.5 if rule.own_scale is None else rule.own_scale
        rows = 2 * (rule.log_buckets or rule.reach)
        row = deberta_row(at - to, rule.reach, rule.log_buckets)
        logit = scale * float(query @ key)
        if "c2p" in rule.terms:
            logit += scale * float(query @ table[row, pair.head])
        if "p2c" in rule.terms:
            start = rows if "c2p" in rule.terms else 0
            logit += own * float(key @ table[start + row, pair.head])
        return logit
    raise ValueError(f"no rule for {rule}")


def deberta_row(distance: int, reach: int, buckets: int) -> int:
    """Row of a distance, from the query back to the key, among those of keys of distances.

    Up to half of the buckets a distance is its own bucket; the others grow by equal ratios, so
    that ``reach - 1`` is the last (He et al. 2021, version 2).
    """
    if not buckets:
        return min(max(distance, -reach), reach - 1) + reach
    half, size = buckets // 2, abs(distance)
    bucket = size
    if size > half:
        bucket = half
        while bucket < buckets and half * ((reach - 1) / half) ** (
            (bucket - half) / (half - 1)
        ) < size * (1 - 1e-9):
            bucket += 1
    signed = bucket if distance > 0 else -bucket
    return min(max(signed + buckets, 0), 2 * buckets - 1)


def sinusoid(distance: int, width: int, base: float) -> Numbers:
    """Return the sines of a distance at each frequency, then the cosines (Dai et al. 2019)."""
    turned = [distance / base ** (2.0 * f / width) for f in range(width // 2)]
    return np.asarray([math.sin(x) for x in turned] + [math.cos(x) for x in turned])


def in_cache(at: int, to: int, stored: Sequence[int]) -> tuple[int, int]:
    """Numbers of a query and of a stored entry when only what is stored is counted.

    The entry has as many stored before it as its number says; the query stands at the number of
    the last stored entry that is not after it (-1 if there is none).
    """
    return sum(p <= at for p in stored) - 1, sum(p < to for p in stored)


def softmax(logits: Sequence[float]) -> list[float]:
    """Weights that sum to one."""
    top = max(logits)
    raised = [math.exp(x - top) for x in logits]
    return [x / math.fsum(raised) for x in raised]


def full_attention(
    query: Numbers,
    key: Numbers,
    value: Numbers,
    position: Numbers,
    valid: Numbers,
    *,
    rule: SchemeRule = NO_SCHEME,
    causal: bool = False,
    table: Numbers | None = None,
    document: Numbers | None = None,
    top_k: int | None = None,
) -> Numbers:
    """Attention of every valid position of one row to all valid positions it may attend to.

    Parameters
    ----------
    query, key, value : array
        (length, heads, dim), (length, kv_heads, dim) twice.
    position, valid, document : array
        (length,).

    Returns
    -------
    array
        (length, heads, value_dim), zeros for what is not valid.
    """
    query, key, value = (np.asarray(x, dtype=np.float64) for x in (query, key, value))
    length, heads, dim = query.shape
    share = heads // key.shape[1]
    real = [j for j in range(length) if valid[j]]
    stored = [int(position[j]) for j in real]
    output = np.zeros((length, heads, value.shape[2]))
    for i in real:
        own = [j for j in real if not causal or position[j] <= position[i]]
        if document is not None:
            own = [j for j in own if document[j] == document[i]]
        for h in range(heads):
            logits = []
            for j in own:
                at, to, inside = int(position[i]), int(position[j]), rule
                if rule.kind == "in_cache" and rule.inner is not None:
                    at, to = in_cache(at, to, stored)
                    inside = rule.inner
                pair = Pair(query[i, h], key[j, h // share], at, to, h, heads)
                logits.append(pair_logit(inside, pair, dim**-0.5, table))
            best = sorted(range(len(own)), key=lambda n: (-logits[n], -n))[: top_k or len(own)]
            for weight, n in zip(softmax([logits[n] for n in best]), best, strict=True):
                output[i, h] += weight * value[own[n], h // share]
    return output
