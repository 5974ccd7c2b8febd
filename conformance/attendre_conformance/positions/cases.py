"""The position schemes under test, each beside the rule by which the oracle plays it."""

from __future__ import annotations

from typing import Any

import numpy as np

import attendre_core as at
from attendre_conformance.oracle.positions import Numbers, SchemeRule

#: Every position scheme; of each family the first one represents all where code is compiled.
SCHEMES: dict[str, tuple[Any, ...]] = {
    "none": (at.NoPosition(), at.LearnedPositions(4)),
    "rope": (
        at.RoPE(rotary_dim=4),
        at.RoPE(),
        at.RoPE(base=100.0, interleaved=True),
        at.RoPE(rotary_dim=6, interleaved=True),
    ),
    "scaled": (
        at.RoPE(scaling=at.YaRN(4.0, 64)),
        at.RoPE(scaling=at.Interpolation(4.0)),
        at.RoPE(scaling=at.NTK(8.0)),
        at.RoPE(rotary_dim=4, scaling=at.YaRN(16.0, 256, beta_fast=8.0, beta_slow=2.0)),
    ),
    "lm-infinite": (at.LMInfinite(3), at.LMInfinite(1), at.LMInfinite(0), at.LMInfinite(50)),
    "t5": (
        at.T5Bias(8, 16),
        at.T5Bias(8, 16, bidirectional=False),
        at.T5Bias(),
        at.T5Bias(4, 3),
    ),
    "alibi": (at.ALiBi(),),
    "transformer-xl": (
        at.TransformerXLPositions(6),
        at.TransformerXLPositions(2, base=100.0),
        at.TransformerXLPositions(8, scale=0.5),
    ),
    "deberta": (
        at.DisentangledPositions(9, 8),
        at.DisentangledPositions(3),
        at.DisentangledPositions(16, 6, ("p2c",), scale=0.5),
        at.DisentangledPositions(4, terms=("c2p",)),
    ),
    "in-cache": (
        at.InCache(),
        at.InCache(at.LMInfinite(2)),
        at.InCache(at.ALiBi()),
        at.InCache(at.T5Bias(8, 16)),
        at.InCache(at.TransformerXLPositions(4)),
    ),
}
#: The same, one by one.
EVERY = {f"{family}-{n}": one for family in SCHEMES for n, one in enumerate(SCHEMES[family])}


def scheme_rule(encoding: Any) -> SchemeRule:
    """Say in the oracle's words what a position scheme does, from its fields alone."""
    if isinstance(encoding, at.RoPE):
        scaling: tuple[Any, ...] = ()
        if isinstance(encoding.scaling, at.Interpolation):
            scaling = ("interpolation", encoding.scaling.factor)
        elif isinstance(encoding.scaling, at.NTK):
            scaling = ("ntk", encoding.scaling.factor)
        elif isinstance(encoding.scaling, at.YaRN):
            s = encoding.scaling
            scaling = ("yarn", s.factor, s.original_length, s.beta_fast, s.beta_slow)
        return SchemeRule(
            "rope",
            base=encoding.base,
            rotary_dim=encoding.rotary_dim,
            interleaved=encoding.interleaved,
            scaling=scaling,
        )
    if isinstance(encoding, at.LMInfinite):
        return SchemeRule("lm_infinite", base=encoding.base, n_local=encoding.n_local)
    if isinstance(encoding, at.T5Bias):
        return SchemeRule(
            "t5",
            buckets=encoding.buckets,
            max_distance=encoding.max_distance,
            bidirectional=encoding.bidirectional,
        )
    if isinstance(encoding, at.ALiBi):
        return SchemeRule("alibi")
    if isinstance(encoding, at.TransformerXLPositions):
        return SchemeRule(
            "transformer_xl", base=encoding.base, width=encoding.width, own_scale=encoding.scale
        )
    if isinstance(encoding, at.DisentangledPositions):
        return SchemeRule(
            "deberta",
            reach=encoding.reach,
            log_buckets=encoding.buckets or 0,
            terms=encoding.terms,
            own_scale=encoding.scale,
        )
    if isinstance(encoding, at.InCache):
        return SchemeRule("in_cache", inner=scheme_rule(encoding.inner))
    return SchemeRule("none")


def table_for(encoding: Any, heads: int, head_dim: int) -> Numbers | None:
    """Return the learned numbers of a scheme; None for schemes without.

    Biases for T5's table, all different within a head; for Transformer-XL W, u and v, and for
    DeBERTa the keys and queries of distances, in which no two rows or columns are alike.
    """
    if isinstance(encoding, at.InCache):
        return table_for(encoding.inner, heads, head_dim)
    if isinstance(encoding, at.TransformerXLPositions):
        rng = np.random.default_rng(encoding.width)
        size = (encoding.width + 2, heads, head_dim)
        return (rng.standard_normal(size) / 2).astype(np.float32)
    if isinstance(encoding, at.DisentangledPositions):
        rng = np.random.default_rng(encoding.reach)
        size = encoding.shape(heads, head_dim)
        return (rng.standard_normal(size) / 2).astype(np.float32)
    if not isinstance(encoding, at.T5Bias):
        return None
    number = np.arange(encoding.buckets)[:, None] * 5 + np.arange(heads) * 3
    return (number % 37 / 8 - 2).astype(np.float32)
