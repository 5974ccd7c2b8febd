"""Seeded mistakes in attention, retrieval and the scores that policies make of them."""

from __future__ import annotations

from mutant import Mutant

ATTENTION = "attendre_core/memory/attention.py"
LFA = "attendre_core/policies/lfa.py"
LFU = "attendre_core/policies/lfu.py"
LRU = "attendre_core/policies/lru.py"
NUMPY = "attendre_core/builtin_backends.py"
OPS = "attendre_core/ops/attention.py"
ORACLE = "memory/test_oracle.py::test_stream_equals_oracle"
READING = "attendre_core/memory/reading.py"
SCORES = "attendre_core/policies/scores.py"
SCORING = "attendre_core/memory/scoring.py"
SELECTION = "attendre_core/ops/selection.py"
SOFTMAX = "attendre_core/ops/softmax.py"

ATTENTION_MUTANTS = (
    # attention and retrieval
    Mutant(
        "the scale 1/sqrt(head_dim) is missing",
        READING,
        "(dim**-0.5 if scale is None else scale)",
        "(1.0 if scale is None else scale)",
        "memory/test_chunks.py::test_large_memory_is_full_attention",
    ),
    Mutant(
        "GQA: query heads are dealt out to K/V heads in turn",
        OPS,
        "    rows = xp.reshape(query, (batch, count, kv_heads, heads // kv_heads, dim))\n"
        "    return xp.permute_dims(rows, (0, 2, 3, 1, 4))",
        "    rows = xp.reshape(query, (batch, count, heads // kv_heads, kv_heads, dim))\n"
        "    return xp.permute_dims(rows, (0, 3, 2, 1, 4))",
        "memory/test_chunks.py::test_large_memory_is_full_attention",
    ),
    Mutant(
        "causal sums: an entry is not scored by the query at its own position",
        ATTENTION,
        "at[:, None, None, :] >= place[..., None]",
        "at[:, None, None, :] > place[..., None]",
        "memory/test_chunks.py::test_chunking_changes_nothing_for_lfa_without_eviction",
    ),
    Mutant(
        "causal: a query does not see its own position",
        ATTENTION,
        "return at <= self.position[:, None, None, :, None]",
        "return at < self.position[:, None, None, :, None]",
        "memory/test_chunks.py::test_large_causal_memory_is_full_causal_attention",
    ),
    Mutant(
        "softmax of an empty row is NaN",
        SOFTMAX,
        "return raised / xp.where(total > 0, total, xp.ones_like(total))",
        "return xp.where(total > 0, raised / xp.where(total > 0, total, xp.ones_like(total)),"
        " float('nan'))",
        "memory/test_retrieval.py::test_kernels_equal_the_generic_path",
    ),
    Mutant(
        "softmax kernel: an empty row is NaN",
        NUMPY,
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
    ),
    Mutant(
        "approximate: the threshold moves to where too many entries lie above",
        SELECTION,
        "high = xp.where(enough & ~few, middle, high)",
        "high = xp.where(~enough & ~few, middle, high)",
        "memory/test_retrieval.py::test_approximate_is_a_subset_of_exact",
    ),
    # scores
    Mutant(
        "softmax scores from the top K only",
        ATTENTION,
        "self._weights = masked_softmax(self.logits, self.allowed)",
        "self._weights = masked_softmax(self.logits, self.used)",
        "policies/test_paper_rules.py::test_scores_come_from_all_entries",
    ),
    Mutant(
        "max pooling counts masked pairs as 0",
        ATTENTION,
        "pooled = xp.max(xp.where(self.allowed, amounts, -_INFINITY), axis=3)",
        "pooled = xp.max(xp.where(self.allowed, amounts, 0.0), axis=3)",
        f"{ORACLE}[lra]",
    ),
    Mutant(
        "mean pooling divides by all queries",
        ATTENTION,
        "pairs = count_true(self.allowed, axis=3)",
        "pairs = count_true(self.allowed | ~self.allowed, axis=3)",
        f"{ORACLE}[lra]",
    ),
    Mutant(
        "mean over heads forgets to divide",
        ATTENTION,
        "summed = summed / count",
        "summed = summed * 1.0",
        f"{ORACLE}[lra]",
    ),
    Mutant(
        "LFA: the past is not decayed",
        LFA,
        "past = past * attention.along_slots(xp.exp(self.decay * age))",
        "past = past * attention.along_slots(xp.exp(0.0 * age))",
        "memory/test_chunks.py::test_chunking_changes_nothing_for_lfa_without_eviction",
    ),
    Mutant(
        "LFA: the queries of a step all count the same",
        LFA,
        "weight = xp.exp(self.decay * age)",
        "weight = xp.exp(0.0 * age)",
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
        SCORING,
        "        change = seen\n        if not surely",
        "        change = seen | ~seen\n        if not surely",
        "policies/test_paper_rules.py::test_unseen_entries_keep_their_score",
    ),
    Mutant(
        "hold is ignored",
        SCORING,
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
        ATTENTION,
        "return self._xp.any(self.used, axis=axes)",
        "return self._xp.sum(self.used, axis=axes)",
        f"{ORACLE}[lru-and-lfu]",
    ),
    Mutant(
        "LFU forgets what it counted before",
        LFU,
        "return stored.score + xp.astype(times, stored.score.dtype)",
        "return xp.astype(times, stored.score.dtype)",
        f"{ORACLE}[lru-and-lfu]",
    ),
)
