"""Seeded mistakes in position schemes."""

from __future__ import annotations

from mutant import Mutant

ALIBI = "attendre_core/positions/alibi.py"
IN_CACHE = "attendre_core/positions/in_cache.py"
LM_INFINITE = "attendre_core/positions/lm_infinite.py"
ROPE = "attendre_core/positions/rope.py"
SCALING = "attendre_core/positions/scaling.py"
SCHEME = "positions/test_schemes.py::test_scheme_equals_brute_force"
SORTING = "attendre_core/memory/sorting.py"
T5 = "attendre_core/positions/relative_table.py"

POSITION_MUTANTS = (
    # positions
    Mutant(
        "LM-Infinite: far pairs are one position too far apart",
        LM_INFINITE,
        "limit = self.xp.full_like(self._place, n_local)",
        "limit = self.xp.full_like(self._place, n_local + 1)",
        f"{SCHEME}[lm-infinite]",
    ),
    Mutant(
        "LM-Infinite: far keys ahead are treated as far behind",
        LM_INFINITE,
        '"ahead": -limit}',
        '"ahead": limit}',
        "layer/test_attention.py::test_large_layer_is_full_bidirectional_attention[lm-infinite]",
    ),
    Mutant(
        "LM-Infinite: keys far from some queries are taken as near to all",
        LM_INFINITE,
        "past, ahead = at <= highest - n_local, at >= lowest + n_local",
        "past, ahead = at <= lowest - n_local, at >= highest + n_local",
        f"{SCHEME}[lm-infinite]",
    ),
    Mutant(
        "LM-Infinite: pairs at n_local are turned as near ones are",
        LM_INFINITE,
        "distance >= self._n_local if",
        "distance > self._n_local if",
        "positions/test_clamp_ties.py::test_equal_keys_at_and_beyond_the_clamp_tie",
    ),
    Mutant(
        "LM-Infinite: a block takes near keys from where the whole begins",
        LM_INFINITE,
        "turned[:, :, part.start - start : part.stop - start, :]",
        "turned[:, :, : part.stop - part.start, :]",
        "positions/test_clamp_ties.py::test_long_memories_equal_brute_force",
    ),
    Mutant(
        "LM-Infinite: how keys are cut up depends on what all rows need",
        LM_INFINITE,
        "for part in _parts(products.slots, _BLOCK)",
        "for part in _parts(products.slots, 9 + int(needed.sum()) // 4)",
        "positions/test_clamp_ties.py::test_other_rows_do_not_change_how_a_row_is_rounded",
    ),
    Mutant(
        "scores found with sorted keys are not brought back into order",
        SORTING,
        "score=gather_slots(sorted_state.score, back, axis=axis),",
        "score=sorted_state.score,",
        "layer/test_oracle.py::test_layer_equals_oracle[lfa]",
    ),
    Mutant(
        "T5: keys before and after the query change places",
        T5,
        "start = buckets if offset > 0 else 0",
        "start = buckets if offset < 0 else 0",
        "positions/test_formulas.py::test_t5_buckets_known_by_heart",
    ),
    Mutant(
        "T5: a distance on the border falls into the bucket below",
        T5,
        "+ 1e-6)",
        "- 1e-6)",
        "positions/test_formulas.py::test_t5_buckets_equal_the_public_formula",
    ),
    Mutant(
        "ALiBi: the last head gets the first slope",
        ALIBI,
        "alibi_slopes(heads * group), dtype",
        "alibi_slopes(heads * group)[::-1], dtype",
        f"{SCHEME}[alibi]",
    ),
    Mutant(
        "RoPE: the halves are swapped",
        ROPE,
        "left, right = x[..., :half], x[..., half : 2 * half]",
        "right, left = x[..., :half], x[..., half : 2 * half]",
        f"{SCHEME}[rope]",
    ),
    Mutant(
        "RoPE: frequencies of all features, though only some are rotated",
        ROPE,
        "plain = [self.base ** (-2 * i / dim) for i in range(dim // 2)]",
        "plain = [self.base ** (-2 * i / head_dim) for i in range(dim // 2)]",
        "layer/test_attention.py::test_large_layer_is_full_bidirectional_attention[rope]",
    ),
    Mutant(
        "YaRN sharpens once instead of on both sides",
        ROPE,
        "query = query * self.temperature**2",
        "query = query * self.temperature",
        f"{SCHEME}[scaled]",
    ),
    Mutant(
        "NTK: the base grows by the factor alone",
        SCALING,
        "self.factor ** (dim / max(dim - 2, 1))",
        "self.factor",
        "positions/test_formulas.py::test_frequencies_equal_the_published_formulas[8-scaled-2]",
    ),
    Mutant(
        "in-cache positions count empty slots",
        IN_CACHE,
        "(at[..., None, :] < at[..., :, None]) & real[..., None, :]",
        "at[..., None, :] < at[..., :, None]",
        f"{SCHEME}[in-cache]",
    ),
)
