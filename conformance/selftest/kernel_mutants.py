"""Seeded mistakes in kernels: where values may be read, in machine code, and in the adapters."""

from __future__ import annotations

from mutant import Mutant

ADMIT = "attendre_core/numba_kernels/admission.py"
NUMPY = "attendre_core/eager/numpy_kernels.py"
PARTS = "attendre_core/eager/parts.py"
SELECTION = "attendre_core/eager/selection.py"
SUMS = "attendre_core/eager/sums.py"
TOP_K = "attendre_core/numba_kernels/top_k.py"
JAX = "attendre_jax/kernels.py"
JAX_SUMS = "attendre_jax/sums.py"
JAX_ROTATION = "attendre_jax/rotation.py"
TORCH = "attendre_torch/kernels.py"
TORCH_POOLING = "attendre_torch/pooling.py"
TORCH_SUMS = "attendre_torch/sums.py"
TORCH_CODE = "attendre_torch/machine_code.py"

ORACLE = "memory/test_oracle.py::test_stream_equals_oracle"
LAYER_ORACLE = "layer/test_oracle.py::test_layer_equals_oracle"
NOTHING_LOST = "memory/test_capacity.py::test_nothing_lost_nothing_twice"
SOFTMAX = "memory/test_retrieval.py::test_attend_is_softmax_over_retrieved"
LARGE = "memory/test_large_steps.py::test_pooled_weights_equal_brute_force"
GATHER = "memory/test_retrieval.py::test_gather_is_threshold"

KERNEL_MUTANTS = (
    # where values may be read
    Mutant(
        "eager: refused entries are written all the same",
        NUMPY,
        "if not everywhere:",
        "if not write.any():",
        NOTHING_LOST,
    ),
    Mutant(
        "eager: a sum of squares that is not finite passes for finite",
        NUMPY,
        "if not np.dot(flat, flat) < below * below:",
        "if np.isnan(flat[:1]).any():",
        "memory/test_nan.py::test_broken_entries_are_refused",
    ),
    Mutant(
        "eager: the K-th largest is one place off",
        NUMPY,
        "place = x.shape[-1] - k\n",
        "place = min(x.shape[-1] - k + 1, x.shape[-1] - 1)\n",
        f"{ORACLE}[lru-and-lfu]",
    ),
    Mutant(
        "eager: ties are broken only if all rows have some",
        SELECTION,
        "if bool(xp.any(number > k)):",
        "if bool(xp.all(number > k)):",
        GATHER,
    ),
    Mutant(
        "eager: the order of entries is looked up in the first row alone",
        SELECTION,
        "order[..., 1:] >= order[..., :-1]",
        "order[:1, 1:] >= order[:1, :-1]",
        "memory/test_queue.py::test_queue_equals_oracle[fifo]",
    ),
    Mutant(
        "eager: sums of logits leave the bias out",
        SUMS,
        "if not pairs.is_plain or pairs.near is not None:",
        "if pairs.near is not None:",
        f"{LAYER_ORACLE}[lra]",
    ),
    Mutant(
        "eager: slots at the edge are counted by two terms",
        PARTS,
        "near = near & ~_within(distance, later)",
        "near = near & near",
        f"{LAYER_ORACLE}[lfa]",
    ),
    Mutant(
        "eager: of equals the newcomer is refused",
        NUMPY,
        "((new_primary == held) & (new_order > since))",
        "((new_primary == held) & (new_order < since))",
        "memory/test_ties.py::test_equal_scores_are_first_in_first_out",
    ),
    Mutant(
        "eager: no snap",
        NUMPY,
        "np.where(same < np.inf, same.astype(score.dtype), start)[..., 0]",
        "start[..., 0]",
        "memory/test_ties.py::test_two_stored_scores_tie_with_the_newcomer",
    ),
    Mutant(
        "eager: the halves of a rotation have one sign",
        NUMPY,
        "np.subtract(left * cosine, right * sine, out=rotated[..., :half])",
        "np.add(left * cosine, right * sine, out=rotated[..., :half])",
        "positions/test_schemes.py::test_scheme_equals_brute_force[rope]",
    ),
    Mutant(
        "eager: empty slots are attended to",
        NUMPY,
        "weights = masked_softmax(rows, visible_pairs(pairs))",
        "weights = masked_softmax(rows, None)",
        f"{ORACLE}[fifo-and-sinks]",
    ),
    Mutant(
        "eager: sums count queries that come before an entry",
        NUMPY,
        "if len(pairs.terms) > 1 or pairs.causal or",
        "if len(pairs.terms) > 1 or",
        "memory/test_chunks.py::test_chunking_changes_nothing_for_lfa_without_eviction",
    ),
    # machine code
    Mutant(
        "machine code: the best newcomers meet the best slots",
        ADMIT,
        "best = np.argsort(-theirs)",
        "best = np.argsort(theirs)",
        f"{ORACLE}[scores]",
        "torch",
    ),
    Mutant(
        "machine code: ties among stored entries broken the other way round",
        ADMIT,
        "(np.int64(order[i]) + np.int64(LAST))",
        "(np.int64(LAST) - np.int64(order[i]))",
        f"{ORACLE}[lru-and-lfu]",
        "torch",
    ),
    Mutant(
        "machine code: sample instead of population sigma",
        ADMIT,
        "sqrt(squares / x.size)",
        "sqrt(squares / max(x.size - 1, 1))",
        f"{ORACLE}[lra]",
        "torch",
    ),
    Mutant(
        "machine code: no snap",
        ADMIT,
        "if abs(x[i] - start) <= near and x[i] < same:",
        "if abs(x[i] - start) < 0 and x[i] < same:",
        "memory/test_ties.py::test_two_stored_scores_tie_with_the_newcomer",
        "torch",
    ),
    Mutant(
        "machine code: of entries equal to the K-th the newest go",
        TOP_K,
        "age[place[i]] < oldest[row]",
        "age[place[i]] > oldest[row]",
        GATHER,
        "numba",
    ),
    Mutant(
        "machine code: what may not be attended to is only unlikely",
        TOP_K,
        "scratch[i] = scratch[i] if flags[i] else -_INFINITY",
        "scratch[i] = scratch[i] if flags[i] else np.float32(-2)",
        f"{ORACLE}[lru-and-lfu]",
        "numba",
    ),
    Mutant(
        "machine code: a query without an entry gets NaN",
        TOP_K,
        "            output[row] = 0\n",
        "            output[row] = np.nan\n",
        f"{ORACLE}[lru-and-lfu]",
        "numba",
    ),
    Mutant(
        "machine code: the exponential series is one digit off",
        TOP_K,
        "p = p * r + np.float32(1 / 6)",
        "p = p * r + np.float32(1 / 5)",
        SOFTMAX,
        "numba",
    ),
    Mutant(
        "machine code: the last values are not added up",
        TOP_K,
        "for i in range(whole, count):",
        "for i in range(whole, count - 1):",
        SOFTMAX,
        "numba",
    ),
    # PyTorch
    Mutant(
        "torch: of equal similarities the older entry comes first",
        TORCH,
        "torch.add(order, bits.to(torch.int64), alpha=2**32)",
        "torch.add(-1 - order, bits.to(torch.int64), alpha=2**32)",
        "memory/test_oracle.py::test_retrieved_equals_oracle",
        "torch",
    ),
    Mutant(
        "torch: a part without a key has a share in the output",
        TORCH,
        "total = torch.where(_some(allowed)[..., 0], total, -torch.inf)",
        "total = torch.where(_some(allowed)[..., 0], total, total)",
        "positions/test_clamp_ties.py::test_long_memories_equal_brute_force",
        "torch",
    ),
    Mutant(
        "torch: flags of one query head are used for all",
        TORCH,
        "    if allowed.shape[1:3] != (1, 1):\n",
        "    if allowed.shape[1:3] == (0, 0):\n",
        "layer/test_attention.py::test_large_causal_layer_is_full_causal_attention",
        "torch",
    ),
    Mutant(
        "torch: a slot keeps what it held though an entry takes it",
        TORCH,
        "values = torch.where(flags, entries, held.reshape(entries.shape))",
        "values = torch.where(~flags, entries, held.reshape(entries.shape))",
        NOTHING_LOST,
        "torch",
    ),
    Mutant(
        "torch: parts are joined in equal shares",
        TORCH,
        "share = torch.sigmoid(more - total).nan_to_num_(0.0)",
        "share = torch.sigmoid(total - total).nan_to_num_(0.0)",
        "positions/test_clamp_ties.py::test_long_memories_equal_brute_force",
        "torch",
    ),
    Mutant(
        "torch: the halves of a rotation have one sign",
        TORCH,
        "left * cosine - right * sine",
        "left * cosine + right * sine",
        "positions/test_schemes.py::test_scheme_equals_brute_force[rope]",
        "torch",
    ),
    Mutant(
        "torch: machine code writes into a state that was not given away",
        TORCH_CODE,
        "if donate and axis == 2",
        "if axis == 2",
        "memory/test_state.py::test_input_state_is_unchanged",
        "torch",
    ),
    Mutant(
        "torch: causal sums leave out the query at the key's own position",
        TORCH_SUMS,
        "torch.searchsorted(ordered, at.flatten(1).contiguous())",
        "torch.searchsorted(ordered, at.flatten(1).contiguous(), right=True)",
        "layer/test_transforms.py::test_compiled_step_equals_eager[summed]",
        "torch",
    ),
    Mutant(
        "torch: pooled weights of a query leave out the key at its own position",
        TORCH_POOLING,
        'side="right"',
        'side="left"',
        f"{LARGE}[sum-per head]",
        "torch",
    ),
    Mutant(
        "torch: pooled weights stay in the order of positions",
        TORCH_POOLING,
        "torch.empty_like(pooled).scatter_(-1, order, pooled)",
        "pooled.clone()",
        f"{LARGE}[sum-shared]",
        "torch",
    ),
    Mutant(
        "torch: sorted weights mix values that are not sorted",
        TORCH_POOLING,
        'wide(_taken("value", value[row, head], slots))',
        "wide(value[row, head])",
        f"{LARGE}[sum-shared]",
        "torch",
    ),
    Mutant(
        "torch: all heads have the keys of the first",
        TORCH_POOLING,
        "_taken(name, term.key[row, head], slots)",
        "_taken(name, term.key[row, 0], slots)",
        f"{LARGE}[sum-per head]",
        "torch",
    ),
    Mutant(
        "torch: keys that come later have a logit of 0",
        TORCH_POOLING,
        "masked_fill_(hidden, -torch.inf)",
        "masked_fill_(hidden, 0.0)",
        f"{LARGE}[sum-shared]",
        "torch",
    ),
    Mutant(
        "torch: a query that sees nothing is not left out",
        TORCH_POOLING,
        "if hidden is not None and whole == 0:",
        "if hidden is not None and whole < 0:",
        f"{LARGE}[sum-per head]",
        "torch",
    ),
    Mutant(
        "torch: pooled weights count invalid queries",
        TORCH_POOLING,
        "torch.where(valid, weight, 0.0).to(kind)",
        "weight.to(kind)",
        f"{LARGE}[sum-shared]",
        "torch",
    ),
    Mutant(
        "torch: the largest weight may be that of an invalid query",
        TORCH_POOLING,
        "kept = weights if factor is None else weights * factor[:, None, None]",
        "kept = weights",
        f"{LARGE}[max-per head]",
        "torch",
    ),
    Mutant(
        "torch: the mean weight is divided by invalid queries too",
        TORCH_POOLING,
        "pooled /= allowed_pairs(pairs).sum(3)",
        "pooled /= visible_pairs(pairs).sum(3)",
        f"{LARGE}[mean-per head]",
        "torch",
    ),
    # JAX
    Mutant(
        "jax: a cosine has the sign of the sine",
        JAX_ROTATION,
        "below = ((quarter + 1) & 2) != 0,",
        "below = (quarter & 2) != 0,",
        f"{LARGE}[max-shared]",
        "jax",
    ),
    Mutant(
        "jax: quarter turns are taken for half turns",
        JAX_ROTATION,
        "is_odd = (quarter & 1) == 1",
        "is_odd = (quarter & 1) == 2",
        f"{LARGE}[max-shared]",
        "jax",
    ),
    Mutant(
        "jax: causal sums leave out the query at the key's own position",
        JAX_SUMS,
        "sorted_at[:, None, :, None] < at[:, :, None, :]",
        "sorted_at[:, None, :, None] <= at[:, :, None, :]",
        "layer/test_transforms.py::test_compiled_step_equals_eager[summed]",
        "jax",
    ),
    Mutant(
        "jax: ties among stored entries broken the other way round",
        JAX,
        "lax.sort((primary, order, index), num_keys=2)",
        "lax.sort((primary, -order, index), num_keys=2)",
        f"{ORACLE}[lru-and-lfu]",
        "jax",
    ),
    Mutant(
        "jax: the K-th largest is the one above it",
        JAX,
        "enough = number >= k",
        "enough = number > k",
        GATHER,
        "jax",
    ),
    Mutant(
        "jax: refused entries are written all the same",
        JAX,
        "values = jnp.where(written, entries, displaced)",
        "values = jnp.where(written | ~written, entries, displaced)",
        NOTHING_LOST,
        "jax",
    ),
)
