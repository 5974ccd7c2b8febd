"""Seeded mistakes in tiers: what flows on, what is compressed, who sees which weights."""

from __future__ import annotations

from mutant import Mutant

COMPRESS = "attendre_core/tiers/compress.py"
FLOW = "attendre_core/tiers/flow.py"
MERGE = "attendre_core/tiers/merge.py"
READING = "attendre_core/tiers/reading.py"
STATES = "attendre_core/tiers/states.py"
ORACLE = "tiers/test_oracle.py::test_long_tiers_equal_oracle"
LAWS = "tiers/test_laws.py"

TIER_MUTANTS = (
    Mutant(
        "evicted entries flow on in the order of eviction",
        FLOW,
        "return ops.lowest(None, order, count)",
        "return ops.lowest(None, -order, count)",
        f"{ORACLE}[mean]",
    ),
    Mutant(
        "entries that wait to be compressed are forgotten",
        FLOW,
        "_replace(valid=place < held[..., None])",
        "_replace(valid=place < ready[..., None])",
        f"{LAWS}::test_tiers_lose_nothing",
    ),
    Mutant(
        "a tier is written over the first",
        FLOW,
        "exchange._replace(slot=exchange.slot + span.first)",
        "exchange._replace(slot=exchange.slot)",
        f"{LAWS}::test_tiers_lose_nothing",
    ),
    Mutant(
        "a tier does not count what arrives",
        FLOW,
        "clock=own.clock + count_of(new.valid)",
        "clock=own.clock",
        f"{ORACLE}[fifo-fifo]",
    ),
    Mutant(
        "compressed entries stand for one entry each",
        COMPRESS,
        "count = xp.sum(count, axis=-1, dtype=count.dtype)",
        "count = xp.max(count, axis=-1)",
        f"{LAWS}::test_tiers_lose_nothing",
    ),
    Mutant(
        "compressed entries have the earliest position",
        COMPRESS,
        "position = xp.max(self._grouped(entries.position, axis), axis=-1)",
        "position = xp.min(self._grouped(entries.position, axis), axis=-1)",
        f"{ORACLE}[mean]",
    ),
    Mutant(
        "the least used are kept",
        COMPRESS,
        "xp.where(real, -entries.score,",
        "xp.where(real, entries.score,",
        f"{ORACLE}[most-used]",
    ),
    Mutant(
        "the longest key is the most similar one",
        MERGE,
        "return products / length(coming)[..., None] / length(held)[..., None, :]",
        "return products",
        f"{ORACLE}[merge]",
    ),
    Mutant(
        "merged entries count the same, however many they stand for",
        MERGE,
        "count = before + xp.sum(amount, axis=-2, dtype=before.dtype)",
        "count = before",
        f"{LAWS}::test_tiers_lose_nothing",
    ),
    Mutant(
        "the gate is the wrong way round",
        READING,
        "share * far + (1.0 - share) * near",
        "share * near + (1.0 - share) * far",
        f"{ORACLE}[gate]",
    ),
    Mutant(
        "a policy sees the softmax over its own tier alone",
        READING,
        "pooled = ops.pool_pairs(whole._pairs, amounts, queries, weight, value)",
        "return super().pool(amounts, queries=queries, heads=heads, weight=weight, unseen=unseen)",
        f"{ORACLE}[softmax-scores]",
    ),
    Mutant(
        "the top K of a tier is not applied",
        READING,
        "if top_k is not None and top_k < stop - start:",
        "if False:",
        f"{ORACLE}[tier-top-k]",
    ),
    Mutant(
        "a chunk of a tier is judged by its sum, not by its mean",
        READING,
        "mean = total / xp.where(some > 0, some, xp.ones_like(some))",
        "mean = total",
        f"{ORACLE}[tier-chunks]",
    ),
    Mutant(
        "a tier retrieves one entry of each chunk",
        READING,
        "return xp.matmul(xp.astype(chosen, logits.dtype), xp.astype(same, logits.dtype)) > 0",
        "return chosen",
        f"{ORACLE}[tier-chunks]",
    ),
    Mutant(
        "the first refused entry is not counted as refused",
        FLOW,
        "refused, axes = gone.valid & (gone.arrival >= since), ",
        "refused, axes = gone.valid & (gone.arrival > since), ",
        f"{LAWS}::test_each_tier_counts_what_leaves_it",
    ),
    Mutant(
        "what flows on is numbered as it lies, not as it arrived",
        FLOW,
        "place = xp.astype(xp.argsort(_order(new), axis=-1), xp.int32)",
        "place = numbers(new.valid.shape[-1], own.clock)",
        f"{ORACLE}[three]",
    ),
    Mutant(
        "settled entries do not flow on in order",
        FLOW,
        "new = gone if tier.compress is None else _in_order(gone)",
        "new = gone",
        f"{ORACLE}[mean]",
    ),
    Mutant(
        "decoding holds the first tier twice",
        STATES,
        "parts.append(cut(state, span.stop, state.key.shape[2]))",
        "parts.append(cut(state, span.first, state.key.shape[2]))",
        f"{LAWS}::test_decoding_holds_what_was_read_once",
    ),
)
