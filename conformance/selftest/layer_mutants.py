"""Seeded mistakes in layers, stacks, cross-attention and traces."""

from __future__ import annotations

from mutant import Mutant

BLOCK = "attendre_core/layer/block.py"
DECODING = "attendre_core/layer/decoding.py"
ENCODER_OUTPUT = "attendre_core/memory/encoder_output.py"
LAYER = "attendre_core/layer/attendre.py"
QUEUE = "attendre_core/memory/queue.py"
SPEC = "attendre_core/layer/spec.py"
STACK = "attendre_core/layer/stack.py"
TRACE = "attendre_core/layer/trace.py"

LAYER_MUTANTS = (
    # waiting
    Mutant(
        "the layer's delay is off by one: its queue keeps its oldest query",
        QUEUE,
        "primary, order = self._rank(tuple(records), clock)",
        "primary, order = self._rank(tuple(records), clock)\n"
        "        order = xp.concat([order[:, :1] + 10**6, order[:, 1:]], axis=1)",
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
        "kv, output = self._attend(kv, waiting, encoding_params, policy_params, record)",
        "_, output = self._attend(state.kv, waiting, encoding_params, policy_params, record)",
        "layer/test_oracle.py::test_layer_equals_oracle[first-in]",
    ),
    Mutant(
        "scores of queries are not given to the queue",
        LAYER,
        "score=chunk.query_score",
        "score=None",
        "layer/test_oracle.py::test_layer_equals_oracle[lra]",
    ),
    Mutant(
        "padding counts as a position",
        LAYER,
        "checks.numbered(state.kv.clock, chunk.valid, chunk.key)",
        "checks.numbered(state.kv.clock, None, chunk.key)",
        "layer/test_laws.py::test_positions_count_on_from_what_was_read",
    ),
    Mutant(
        "documents are ignored",
        LAYER,
        "**params, document=document\n",
        "**params, document=None\n",
        "layer/test_attention.py::test_documents_are_read_as_if_each_were_alone",
    ),
    Mutant(
        "a reset row keeps its waiting queries",
        SPEC,
        "queue = self.q_memory.reset(queue, rows)",
        "queue = queue",
        "layer/test_rows.py::test_reset_row_is_a_fresh_row",
    ),
    Mutant(
        "N = M is let through",
        SPEC,
        "if layer.delay >= size:",
        "if layer.delay > size:",
        "layer/test_mistakes.py::test_n_must_be_smaller_than_m",
    ),
    # decoding
    Mutant(
        "decoding does not hold on to the prefix",
        DECODING,
        "kv = kv._replace(pinned=kv.valid)",
        "kv = kv._replace(pinned=kv.valid & ~kv.valid)",
        "layer/test_decoding.py::test_prefix_is_never_evicted",
    ),
    Mutant(
        "decoding in visible mode starts before the last chunk has competed",
        DECODING,
        'if layer.kv_memory.present == "visible":',
        'if layer.kv_memory.present == "never":',
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
        BLOCK,
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
