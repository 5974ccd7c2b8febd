"""Seeded mistakes in layers, stacks, positions and traces, beside those of the memories."""

from __future__ import annotations

from mutants import MUTANTS, Mutant

ALIBI = "attendre_core/positions/alibi.py"
ENCODER_OUTPUT = "attendre_core/layer/encoder_output.py"
IN_CACHE = "attendre_core/positions/in_cache.py"
LAYER = "attendre_core/layer/attendre.py"
LM_INFINITE = "attendre_core/positions/lm_infinite.py"
QUEUE = "attendre_core/memory/data_only.py"
ROPE = "attendre_core/positions/rope.py"
SCALING = "attendre_core/positions/scaling.py"
SORTING = "attendre_core/memory/sorting.py"
STACK = "attendre_core/layer/stack.py"
T5 = "attendre_core/positions/relative_table.py"
TRACE = "attendre_core/layer/trace.py"

SCHEME = "positions/test_schemes.py::test_scheme_equals_brute_force"

LAYER_MUTANTS = (
    # waiting
    Mutant(
        "the layer's delay is off by one: its queue holds one query less",
        QUEUE,
        "plan = plan_exchange(stored, offered)",
        "plan = plan_exchange(Rank(stored.primary[..., 1:], stored.order[..., 1:]), offered)",
        "layer/test_waiting.py::test_delay_is_exactly_n",
    ),
    Mutant(
        "the residual stream does not wait with its query",
        LAYER,
        "return queue, _Waiting(*out)",
        "return queue, _Waiting(\n"
        "            (out.data[0], chunk.carry, *out.data[2:]), out.position, out.valid\n"
        "        )",
        "layer/test_waiting.py::test_everything_travels_with_its_query",
    ),
    Mutant(
        "queries attend with the positions of the keys that just came",
        LAYER,
        "return queue, _Waiting(*out)",
        "return queue, _Waiting(out.data, chunk.position, out.valid)",
        "layer/test_waiting.py::test_everything_travels_with_its_query",
    ),
    Mutant(
        "a flush leaves the queue full",
        LAYER,
        "return LayerState(kv, emptied._replace(clock=state.queue.clock)), outputs",
        "return LayerState(kv, state.queue), outputs",
        "layer/test_waiting.py::test_drain_equals_flush",
    ),
    Mutant(
        "drained from the end",
        LAYER,
        "for start in range(0, self.q_memory.size, length):",
        "for start in reversed(range(0, self.q_memory.size, length)):",
        "layer/test_waiting.py::test_drain_equals_flush",
    ),
    Mutant(
        "a drain forgets the last piece if it is short",
        LAYER,
        "for start in range(0, self.q_memory.size, length):",
        "for start in range(0, max(1, self.q_memory.size - length + 1), length):",
        "layer/test_waiting.py::test_drain_equals_flush",
    ),
    Mutant(
        "queries attend before the new chunk is inserted",
        LAYER,
        "kv, output = self._attend(kv, waiting, encoding_params, record)",
        "_, output = self._attend(state.kv, waiting, encoding_params, record)",
        "layer/test_oracle.py::test_layer_equals_oracle[first-in]",
    ),
    Mutant(
        "scores of queries are not given to the queue",
        LAYER,
        "score=chunk.query_score,",
        "score=None,",
        "layer/test_oracle.py::test_layer_equals_oracle[lra]",
    ),
    Mutant(
        "padding counts as a position",
        LAYER,
        "number = running_count(valid) - 1",
        "number = running_count(valid | ~valid) - 1",
        "layer/test_laws.py::test_positions_count_on_from_what_was_read",
    ),
    Mutant(
        "documents are ignored",
        LAYER,
        "            document=document,\n        )\n        return kv, LayerOutput(",
        "            document=None,\n        )\n        return kv, LayerOutput(",
        "layer/test_attention.py::test_documents_are_read_as_if_each_were_alone",
    ),
    Mutant(
        "a reset row keeps its waiting queries",
        LAYER,
        "queue = self.q_memory.reset(queue, rows)",
        "queue = queue",
        "layer/test_rows.py::test_reset_row_is_a_fresh_row",
    ),
    Mutant(
        "N = M is let through",
        LAYER,
        "if layer.delay >= size:",
        "if layer.delay > size:",
        "layer/test_mistakes.py::test_n_must_be_smaller_than_m",
    ),
    # decoding
    Mutant(
        "decoding does not hold on to the prefix",
        LAYER,
        "kv = kv._replace(pinned=kv.valid)",
        "kv = kv._replace(pinned=kv.valid & ~kv.valid)",
        "layer/test_decoding.py::test_prefix_is_never_evicted",
    ),
    Mutant(
        "decoding in visible mode starts before the last chunk has competed",
        LAYER,
        "kv, _ = self.kv_memory.settle(kv)",
        "kv, _ = kv, None",
        "layer/test_decoding.py::test_prefix_is_never_evicted[visible]",
    ),
    # stacks
    Mutant(
        "a drained layer skips the layer above it",
        STACK,
        "state, out = self._through(state, blocks, flow, i + 1, False)",
        "state, out = self._through(state, blocks, flow, i + 2, False)",
        "stack/test_attention.py::test_large_stack_is_an_ordinary_transformer[pre]",
    ),
    Mutant(
        "a block adds attention to another input than the one that waited",
        STACK,
        "x = block.finish(out.value, out.carry)",
        "x = block.finish(out.value, out.carry[:, ::-1])",
        "stack/test_attention.py::test_small_stack_equals_oracle",
    ),
    Mutant(
        "outputs are put at their position instead of their place in the input",
        STACK,
        "pieces = [(out.x, out.metadata[0], out.valid)",
        "pieces = [(out.x, out.position, out.valid)",
        "stack/test_run.py::test_run_gives_every_position_back_in_its_place",
    ),
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
    # cross-attention
    Mutant(
        "top-K cross-attention reads what is not valid",
        ENCODER_OUTPUT,
        "used = select_top_k(logits, allowed, top_k, numbers(slots, key))",
        "used = select_top_k(logits, allowed | ~allowed, top_k, numbers(slots, key))",
        "memory/test_encoder_output.py::test_top_k_cross_attention_reads_the_best_valid",
    ),
    Mutant(
        "borrowing: outputs whose position is gone lose their score",
        ENCODER_OUTPUT,
        "xp.where(known & state.valid, score, state.score)",
        "xp.where(state.valid, score, state.score)",
        "memory/test_encoder_output.py::test_scores_are_borrowed_from_the_last_layer",
    ),
    # trace
    Mutant(
        "trace: a displaced entry is called refused",
        TRACE,
        'since = before.clock if memory.present == "compete" else before.chunk_start',
        'since = before.chunk_start if memory.present == "compete" else before.clock',
        "layer/test_trace.py::test_when_evicted_agrees_with_a_replay",
    ),
    Mutant(
        "trace: the threshold counts entries that could not have gone",
        TRACE,
        "free = free & (after.arrival < clock - memory.protect_recent)",
        "free = free & (after.arrival < clock)",
        "layer/test_trace.py::test_reason_and_threshold_say_why",
    ),
    Mutant(
        "trace: padding is recorded as inserted",
        TRACE,
        "inserted=xp.where(valid, position, xp.full_like(position, -1)),",
        "inserted=xp.where(valid, position, position),",
        "layer/test_trace.py::test_survival_covers_every_position_once",
    ),
)

#: All mistakes: those of the memories, and these.
EVERY_MUTANT = MUTANTS + LAYER_MUTANTS
