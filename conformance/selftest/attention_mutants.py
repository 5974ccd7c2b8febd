"""Seeded mistakes in attention, retrieval and the scores that policies make of them."""

from __future__ import annotations

from mutant import Mutant

ATTEND = "attendre_core/memory/attend.py"
LFA = "attendre_core/policies/lfa.py"
LRU = "attendre_core/policies/lru.py"
NUMPY_KERNELS = "attendre_core/eager/numpy_kernels.py"
OPS = "attendre_core/ops/dense.py"
DENSE = "attendre_core/ops/dense.py"
PAIRS = "attendre_core/ops/pairs.py"
RUNNING_SUMS = "attendre_core/ops/sums.py"
SCORES = "attendre_core/policies/scores.py"
SELECTION = "attendre_core/ops/selection.py"
SUMS = "attendre_core/eager/sums.py"
VIEW = "attendre_core/policies/view.py"
ORACLE = "memory/test_oracle.py::test_stream_equals_oracle"

ATTENTION_MUTANTS = (
    # attention and retrieval
    Mutant(
        "the scale 1/sqrt(head_dim) is missing",
        ATTEND,
        "scale = dim**-0.5 if scale is None else scale",
        "scale = 1.0 if scale is None else scale",
        "memory/test_chunks.py::test_large_memory_is_full_attention",
    ),
    Mutant(
        "GQA: query heads are dealt out to K/V heads in turn",
        PAIRS,
        "    rows = xp.reshape(query, (batch, count, kv_heads, heads // kv_heads, dim))\n"
        "    return xp.permute_dims(rows, (0, 2, 3, 1, 4))",
        "    rows = xp.reshape(query, (batch, count, heads // kv_heads, kv_heads, dim))\n"
        "    return xp.permute_dims(rows, (0, 3, 2, 1, 4))",
        "memory/test_chunks.py::test_large_memory_is_full_attention",
        "strict",
    ),
    Mutant(
        "causal sums: an entry is not scored by the query at its own position",
        SUMS,
        "at[:, :, None, :] >= place[..., None]",
        "at[:, :, None, :] > place[..., None]",
        "memory/test_chunks.py::test_chunking_changes_nothing_for_lfa_without_eviction",
    ),
    Mutant(
        "causal: a query does not see its own position",
        PAIRS,
        "visible = at[:, :, None, None, :] <= pairs",
        "visible = at[:, :, None, None, :] < pairs",
        "memory/test_chunks.py::test_large_causal_memory_is_full_causal_attention",
        "strict",
    ),
    Mutant(
        "softmax of an empty row is NaN",
        OPS,
        "return raised / xp.where(total > 0, total, xp.ones_like(total))",
        "return xp.where(total > 0, raised / xp.where(total > 0, total,"
        " xp.ones_like(total)), float('nan'))",
        "memory/test_retrieval.py::test_kernels_equal_the_generic_path",
    ),
    Mutant(
        "softmax kernel: an empty row is NaN",
        NUMPY_KERNELS,
        "total[total == 0] = 1",
        "total[total == 0] = np.nan",
        f"{ORACLE}[lra]",
    ),
    Mutant(
        "one entry too few in the top K",
        SELECTION,
        "threshold = kth_largest(masked, k)",
        "threshold = kth_largest(masked, max(1, k - 1)); k = max(1, k - 1)",
        f"{ORACLE}[lru-and-lfu]",
        "strict",
    ),
    Mutant(
        "approximate: the threshold moves to where too many entries lie above",
        SELECTION,
        "high = xp.where(enough & ~few, middle, high)",
        "high = xp.where(~enough & ~few, middle, high)",
        "memory/test_retrieval.py::test_approximate_is_a_subset_of_exact",
        "strict",
    ),
    # scores
    Mutant(
        "softmax scores from the top K only",
        VIEW,
        "pooled = ops.pool_pairs(self._pairs, amounts, queries, weight, value)",
        "pooled = ops.pool_queries(ops.masked_softmax(self.logits, self.used), self.used, queries)",
        "policies/test_paper_rules.py::test_scores_come_from_all_entries",
    ),
    Mutant(
        "max pooling counts masked pairs as 0",
        DENSE,
        'xp.where(allowed, amounts, -float("inf"))',
        "xp.where(allowed, amounts, 0.0)",
        f"{ORACLE}[lra]",
    ),
    Mutant(
        "mean pooling divides by all queries",
        DENSE,
        "count = count_true(allowed, axis=3)",
        "count = count_true(allowed | ~allowed, axis=3)",
        f"{ORACLE}[lra]",
    ),
    Mutant(
        "mean over heads forgets to divide",
        "attendre_core/ops/heads.py",
        'if how == "mean" else total',
        'if how == "no mean" else total',
        f"{ORACLE}[lra]",
    ),
    Mutant(
        "LFA: the past is not decayed",
        LFA,
        "past = past * attention.along_slots(left[:, 0])",
        "past = past * attention.along_slots(left[:, 0] ** 0)",
        "memory/test_chunks.py::test_chunking_changes_nothing_for_lfa_without_eviction",
    ),
    Mutant(
        "LFA: the queries of a step all count the same",
        LFA,
        "weight = left[:, 1:]",
        "weight = left[:, 1:] ** 0",
        "memory/test_chunks.py::test_chunking_changes_nothing_for_lfa_without_eviction",
    ),
    Mutant(
        "LFA: start='replace' keeps the initial score",
        LFA,
        "past = xp.where(stored.observed, past, xp.zeros_like(past))",
        "past = xp.where(stored.observed, past, past)",
        f"{ORACLE}[initial-scores]",
    ),
    Mutant(
        "entries that no query saw decay all the same",
        ATTEND,
        "policy.observe(seen, view), view.seen",
        "policy.observe(seen, view), view.seen | ~view.seen",
        "policies/test_paper_rules.py::test_unseen_entries_keep_their_score",
    ),
    Mutant(
        "hold is ignored",
        ATTEND,
        'if getattr(policy, "hold", False):',
        'if getattr(policy, "held", False):',
        f"{ORACLE}[scores]",
    ),
    Mutant(
        "Shift('min') takes the minimum over all slots, empty ones too",
        SCORES,
        "lowest = xp.min(xp.where(attention.allowed, logits, math.inf), axis=-1, keepdims=True)",
        "lowest = xp.min(logits, axis=-1, keepdims=True)",
        f"{ORACLE}[scores]",
    ),
    Mutant(
        "LRU: the first instead of the last query that used it",
        LRU,
        'latest = xp.max(xp.where(used, position, -float("inf")), axis=-2)',
        'latest = xp.min(xp.where(used, position, float("inf")), axis=-2)',
        f"{ORACLE}[lru-and-lfu]",
    ),
    Mutant(
        "LFU counts heads instead of queries",
        "attendre_core/ops/heads.py",
        "return xp.any(x, axis=axes)",
        "return xp.sum(x, axis=axes)",
        f"{ORACLE}[lru-and-lfu]",
    ),
    Mutant(
        "LFU and LFA forget what they summed before",
        ATTEND,
        "past = ops.levelled(state.score, score, state.valid & ~state.pinned)",
        "past = xp.zeros_like(score)",
        f"{ORACLE}[lru-and-lfu]",
    ),
    Mutant(
        "long sums are not levelled",
        RUNNING_SUMS,
        "far = (xp.abs(low) > _FAR * most)",
        "far = (xp.abs(low) > math.inf)",
        "memory/test_long_streams.py::test_long_sums_decide_as_short_ones",
    ),
    Mutant(
        "long sums are rounded to nearest",
        RUNNING_SUMS,
        "share = (xp.astype(number, total.dtype) + 0.5) / _PRIME",
        "share = 0.0 * xp.astype(number, total.dtype) + 0.5",
        "memory/test_long_streams.py::test_sums_never_freeze",
    ),
)
