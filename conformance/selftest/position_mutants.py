"""Seeded mistakes in position schemes."""

from __future__ import annotations

from mutant import Mutant

ALIBI = "attendre_core/positions/alibi.py"
BIAS = "attendre_core/ops/bias.py"
IN_CACHE = "attendre_core/positions/in_cache.py"
LAYERS = "attendre_core/ops/layers.py"
LM_INFINITE = "attendre_core/positions/lm_infinite.py"
PARTS = "attendre_core/eager/parts.py"
RELATIVE_TABLE = "attendre_core/positions/relative_table.py"
ROPE = "attendre_core/positions/rope.py"
SCALING = "attendre_core/positions/scaling.py"
SUMS = "attendre_core/eager/sums.py"
TRANSFORMER_XL = "attendre_core/positions/published/transformer_xl.py"
SCHEME = "positions/test_schemes.py::test_scheme_equals_brute_force"

POSITION_MUTANTS = (
    # positions
    Mutant(
        "LM-Infinite: far pairs are one position too far apart",
        LM_INFINITE,
        "full_like(places.key[:, :, :1], self.n_local)",
        "full_like(places.key[:, :, :1], self.n_local + 1)",
        f"{SCHEME}[lm-infinite]",
    ),
    Mutant(
        "LM-Infinite: far keys ahead are treated as far behind",
        LM_INFINITE,
        "rope.rotate, None, limit, high",
        "rope.rotate, None, -limit, high",
        "layer/test_attention.py::test_large_layer_is_full_bidirectional_attention[lm-infinite]",
    ),
    Mutant(
        "eager: keys far from some queries are taken as near to all",
        PARTS,
        "some = (last - key_at >= low) & (first - key_at < high)",
        "some = (first - key_at >= low) & (last - key_at < high)",
        f"{SCHEME}[lm-infinite]",
    ),
    Mutant(
        "LM-Infinite: pairs at n_local are rotated as near ones are",
        LM_INFINITE,
        "low=self.n_local)",
        "low=self.n_local + 1)",
        "positions/test_clamp_ties.py::test_equal_keys_at_and_beyond_the_clamp_tie",
    ),
    Mutant(
        "eager: logits of groups of slots are not put back into their places",
        PARTS,
        "back[slots] = np.arange(len(slots))",
        "back[:] = slots",
        "positions/test_clamp_ties.py::test_long_memories_equal_brute_force",
    ),
    Mutant(
        "eager: one row far from its keys makes all rows multiply in another way",
        PARTS,
        "    query_at, key_at, real, held = (found.to_numpy(array) for array in arrays)\n",
        "    query_at, key_at, real, held = (found.to_numpy(array) for array in arrays)\n"
        "    if key_at.min() < -600:\n"
        "        return None\n",
        "positions/test_clamp_ties.py::test_other_rows_do_not_change_how_a_row_is_rounded",
    ),
    Mutant(
        "eager: sums of groups of slots are not put back into their places",
        SUMS,
        "whole(groups, [of_group(row, group) for group in groups])",
        "namespace_of(pairs.key_place).concat([of_group(row, group) for group in groups], axis=-1)",
        "layer/test_oracle.py::test_layer_equals_oracle[lfa]",
    ),
    Mutant(
        "T5: keys before and after the query change places",
        RELATIVE_TABLE,
        "start = buckets if offset > 0 else 0",
        "start = buckets if offset < 0 else 0",
        "positions/test_formulas.py::test_t5_buckets_known_by_heart",
    ),
    Mutant(
        "T5: a distance on the border falls into the bucket below",
        RELATIVE_TABLE,
        "+ 1e-6)",
        "- 1e-6)",
        "positions/test_formulas.py::test_t5_buckets_equal_the_public_formula",
    ),
    Mutant(
        "a bias by distance: all heads look up the columns of the first",
        BIAS,
        "xp.broadcast_to(columns[None, ...]",
        "xp.broadcast_to(columns[None, :1, :, :1]",
        f"{SCHEME}[t5]",
    ),
    Mutant(
        "ALiBi: the last head gets the first slope",
        ALIBI,
        "xp.reshape(slopes, (heads",
        "xp.reshape(backend_of(slopes).xp.flip(slopes), (heads",
        f"{SCHEME}[alibi]",
    ),
    Mutant(
        "RoPE: the halves are swapped",
        LAYERS,
        "left, right = x[..., :half], x[..., half:]",
        "right, left = x[..., :half], x[..., half:]",
        f"{SCHEME}[rope]",
        "strict",
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
    Mutant(
        "Transformer-XL: the distance counts from the key to the query",
        TRANSFORMER_XL,
        "            cosine_part * sine - sine_part * cosine,\n"
        "            sine_part * sine + cosine_part * cosine,",
        "            cosine_part * sine + sine_part * cosine,\n"
        "            cosine_part * cosine - sine_part * sine,",
        f"{SCHEME}[transformer-xl]",
    ),
    Mutant(
        "Transformer-XL: u and v change places",
        TRANSFORMER_XL,
        "Term(query + biases[0, ..., None, :], key)",
        "Term(query + biases[1, ..., None, :], key)",
        f"{SCHEME}[transformer-xl]",
    ),
)
