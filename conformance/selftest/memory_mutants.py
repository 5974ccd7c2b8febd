"""Seeded mistakes in memories: who enters, who goes, what a row is."""

from __future__ import annotations

from mutant import Mutant

ATTENTION = "attendre_core/memory/attention.py"
CHUNK = "attendre_core/memory/chunk.py"
INITIAL = "attendre_core/policies/initial_score.py"
INSERTING = "attendre_core/memory/inserting.py"
INSERTION = "attendre_core/memory/insertion.py"
NUMPY = "attendre_core/builtin_backends.py"
ORACLE = "memory/test_oracle.py::test_stream_equals_oracle"
QUEUE = "attendre_core/memory/data_only.py"
READING = "attendre_core/memory/reading.py"
ROWS = "attendre_core/memory/rows.py"
SELECTION = "attendre_core/ops/selection.py"
TIES = "attendre_core/policies/ties.py"

MEMORY_MUTANTS = (
    # ties
    Mutant(
        "eviction ties: the newer entry goes first",
        INSERTION,
        "(come.order > old.order)",
        "(come.order < old.order)",
        "memory/test_ties.py::test_equal_scores_are_first_in_first_out",
    ),
    Mutant(
        "ties among stored entries broken the other way round",
        NUMPY,
        "key = (bits << 32) + (order.astype(np.int64) + 2**31)",
        "key = (bits << 32) + (2**31 - 1 - order.astype(np.int64))",
        f"{ORACLE}[lru-and-lfu]",
    ),
    Mutant(
        "generic ranking ignores the order of arrival",
        SELECTION,
        "ranked = xp.take_along_axis(primary, by_order, axis=-1)",
        "return xp.argsort(primary, axis=-1, stable=True)[..., :count]",
        "memory/test_retrieval.py::test_kernels_equal_the_generic_path",
    ),
    Mutant(
        "top-K ties: the older entry wins",
        SELECTION,
        "newest_first = xp.argsort(-order, axis=-1, stable=True)",
        "newest_first = xp.argsort(order, axis=-1, stable=True)",
        f"{ORACLE}[lru-and-lfu]",
    ),
    Mutant(
        "top-K ties: all entries equal to the K-th are taken",
        SELECTION,
        "fits = tied & (recency < _tie_cut(tied, wanted, recency))",
        "fits = tied",
        "memory/test_retrieval.py::test_gather_is_threshold",
    ),
    Mutant(
        "retrieved ties: the older entry comes first",
        READING,
        "xp.broadcast_to(-view.order, logits.shape)",
        "xp.broadcast_to(view.order, logits.shape)",
        "memory/test_oracle.py::test_retrieved_equals_oracle",
    ),
    Mutant(
        "random ties ignore the seed",
        TIES,
        "state = (self.seed * 7919 + 12345) % 32749",
        "state = 12345",
        "memory/test_ties.py::test_random_ties_depend_on_the_seed",
    ),
    # the initial score
    Mutant(
        "empty slots counted in mu and sigma",
        INITIAL,
        "counted = stored.valid & ~stored.pinned\n        number",
        "counted = (stored.valid | ~stored.valid) & ~stored.pinned\n        number",
        f"{ORACLE}[lra]",
    ),
    Mutant(
        "pinned entries counted in mu and sigma",
        INITIAL,
        "counted = stored.valid & ~stored.pinned\n        number",
        "counted = stored.valid\n        number",
        f"{ORACLE}[other-options]",
    ),
    Mutant(
        "sample instead of population sigma",
        INITIAL,
        "sigma = xp.sqrt(_sum(among((below - mean) ** 2)) / number)",
        "sigma = xp.sqrt(_sum(among((below - mean) ** 2)) / (number - 1 + (number == 1)))",
        f"{ORACLE}[lfa]",
    ),
    Mutant(
        "mu + c*sigma instead of mu - c*sigma",
        INITIAL,
        "start = highest + (mean - self.sigmas * sigma)",
        "start = highest + (mean + self.sigmas * sigma)",
        f"{ORACLE}[lra]",
    ),
    Mutant(
        "no snap: rounding decides whether the newcomer ties",
        INITIAL,
        "return xp.where(same < math.inf, same, start)",
        "return start",
        "memory/test_ties.py::test_two_stored_scores_tie_with_the_newcomer",
    ),
    Mutant(
        "quantile one rank too high",
        INITIAL,
        "here = rank == (k - 1)[..., None]",
        "here = rank == xp.minimum(k, number - 1)[..., None]",
        f"{ORACLE}[initial-scores]",
    ),
    Mutant(
        "the score given at insertion is ignored",
        INSERTING,
        "    if new.scored:\n        return new\n",
        "",
        "memory/test_oracle.py::test_given_scores_equal_oracle",
    ),
    # padding
    Mutant(
        "the clock counts padding",
        CHUNK,
        "clock=state.clock + (seq if whole else count_true(valid, axis=1))",
        "clock=state.clock + seq",
        "memory/test_rows.py::test_chunk_of_padding_changes_nothing",
    ),
    Mutant(
        "arrival numbers count padding",
        CHUNK,
        "number = running_count(valid)",
        "number = running_count(valid | ~valid)",
        "memory/test_rows.py::test_amount_of_padding_changes_nothing",
    ),
    Mutant(
        "padding entries enter the memory",
        CHUNK,
        "enter = valid & finite",
        "enter = finite | ~valid",
        "memory/test_oracle.py::test_stream_equals_oracle[scores]",
    ),
    Mutant(
        "padding queries score",
        READING,
        "usable = valid & finite",
        "usable = finite",
        f"{ORACLE}[lfa]",
    ),
    Mutant(
        "LFA's latest position counts padding queries",
        ATTENTION,
        "present = xp.max(xp.where(valid, position, xp.full_like(position, NO_QUERY)), axis=-1)",
        "present = xp.max(position, axis=-1)",
        "memory/test_rows.py::test_contents_of_padding_change_nothing",
    ),
    Mutant(
        "LRA-last takes the last query even if it is padding",
        ATTENTION,
        "which = xp.max(xp.where(self.valid, number, none), axis=-1, keepdims=True)",
        "which = xp.max(xp.where(self.valid | ~self.valid, number, none), axis=-1, keepdims=True)",
        f"{ORACLE}[lra]",
    ),
    # what is evicted
    Mutant(
        "evicted entries are all called valid",
        INSERTING,
        "        valid=gone,\n        aux=tree_of(new.aux",
        "        valid=gone | ~gone,\n        aux=tree_of(new.aux",
        "memory/test_capacity.py::test_nothing_lost_nothing_twice",
    ),
    Mutant(
        "refused entries are forgotten",
        NUMPY,
        "back.append(np.where(written, displaced, entries))",
        "back.append(displaced)",
        "memory/test_capacity.py::test_nothing_lost_nothing_twice",
    ),
    Mutant(
        "one slot is never given away",
        INSERTION,
        "pairs = min(count, slots)",
        "pairs = max(1, min(count, slots) - 1)",
        f"{ORACLE}[fifo-and-sinks]",
    ),
    Mutant(
        "pinned entries are not protected",
        INSERTION,
        "    pinned = stored.pinned\n",
        "    pinned = stored.pinned & ~stored.pinned\n",
        "memory/test_capacity.py::test_pinned_are_never_evicted",
    ),
    Mutant(
        "pin ranges end one position early",
        CHUNK,
        "(position >= start) & (position < stop)",
        "(position >= start) & (position < stop - 1)",
        "memory/test_capacity.py::test_pinned_are_never_evicted",
    ),
    Mutant(
        "one sink too few",
        INSERTION,
        "(stored.arrival < policy.sinks)",
        "(stored.arrival < policy.sinks - 1)",
        "memory/test_capacity.py::test_sinks_are_never_evicted",
    ),
    Mutant(
        "the protected window is one entry short",
        INSERTION,
        "recent = stored.arrival >= first",
        "recent = stored.arrival > first",
        "memory/test_capacity.py::test_recent_window_is_never_evicted",
    ),
    Mutant(
        "visible: the present chunk competes before it was seen",
        "attendre_core/memory/key_value.py",
        'if self.present == "visible":\n            return insert_visible',
        'if self.present == "never":\n            return insert_visible',
        "memory/test_capacity.py::test_own_chunk_is_visible",
    ),
    Mutant(
        "visible: a broken entry is dropped",
        INSERTING,
        "refused = None if checks.may_read(new.valid) else new.broken",
        "refused = None",
        "memory/test_nan.py::test_nothing_is_lost_when_entries_break",
    ),
    Mutant(
        "visible: the worst stays in the stead of a broken entry",
        INSERTION,
        "slot = lowest(stored.primary, stored.order, count)\n    active",
        "slot = xp.flip(lowest(stored.primary, stored.order, count), axis=-1)\n    active",
        "memory/test_nan.py::test_the_best_stays_in_the_stead_of_a_broken_one",
    ),
    Mutant(
        "visible: padding is written as it stands",
        CHUNK,
        "key=blank(self.key),",
        "key=self.key,",
        "memory/test_nan.py::test_broken_padding_changes_nothing",
    ),
    Mutant(
        "visible: the cut happens even if nothing arrives",
        INSERTING,
        "room, new.count > 0, refused)",
        "room, new.count >= 0, refused)",
        "memory/test_rows.py::test_chunk_of_padding_changes_nothing",
    ),
    Mutant(
        "visible: the initial score counts entries that were just cut",
        INSERTING,
        "stored._replace(valid=survives)",
        "stored",
        f"{ORACLE}[visible]",
    ),
    Mutant(
        "admitted share: refused entries are not counted",
        INSERTING,
        "refusals = state.refusals + count_true(gone & late, axis=axes)",
        "refusals = state.refusals",
        "memory/test_oracle.py::test_admitted_share_equals_oracle",
    ),
    # states and rows
    Mutant(
        "insert writes into the state it was given",
        NUMPY,
        "changed = array if donate else array.copy()",
        "changed = array",
        "memory/test_state.py::test_input_state_is_unchanged",
    ),
    Mutant(
        "reset forgets the clock",
        ROWS,
        "result: State = tree_map(chosen, state, empty)",
        "result: State = tree_map(chosen, state, empty)._replace(clock=state.clock)",
        "memory/test_rows.py::test_reset_row_is_a_fresh_row",
    ),
    Mutant(
        "reorder leaves the scores where they are",
        ROWS,
        "result: State = tree_map(lambda leaf: xp.take(leaf, index, axis=0), state)",
        "result: State = tree_map(lambda leaf: xp.take(leaf, index, axis=0), state)"
        "._replace(score=state.score)",
        "memory/test_rows.py::test_reorder_takes_rows_with_everything",
    ),
    Mutant(
        "NaN guard removed: broken entries are stored",
        CHUNK,
        "enter = valid & finite",
        "enter = valid",
        "memory/test_nan.py::test_broken_entries_are_refused",
    ),
    Mutant(
        "broken queries are used",
        READING,
        "usable = valid & finite",
        "usable = valid",
        "memory/test_nan.py::test_broken_queries_score_nothing",
    ),
    # the queue
    Mutant(
        "the queue holds one entry less: the delay is off by one",
        QUEUE,
        "plan = plan_exchange(stored, offered)",
        "plan = plan_exchange(Rank(stored.primary[..., 1:], stored.order[..., 1:]), offered)",
        "memory/test_queue.py::test_delay_is_exactly_n_in_order",
    ),
    Mutant(
        "the queue hands entries back newest first",
        QUEUE,
        "order = lowest(rank.primary, rank.order, seq)",
        "order = xp.flip(lowest(rank.primary, rank.order, seq), axis=-1)",
        "memory/test_queue.py::test_delay_is_exactly_n_in_order",
    ),
    Mutant(
        "the queue gives everything in slot order",
        QUEUE,
        "order = lowest(None, state.arrival, self.size)",
        "order = lowest(None, state.arrival * 0, self.size)",
        "memory/test_queue.py::test_queue_equals_oracle[fifo]",
    ),
)
