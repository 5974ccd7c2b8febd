"""Seeded mistakes in memories: who enters, who goes, what a row is."""

from __future__ import annotations

from mutant import Mutant

ADMIT = "attendre_core/ops/admission.py"
ARRIVALS = "attendre_core/memory/arrivals.py"
ATTEND = "attendre_core/memory/attend.py"
BATCH = "attendre_core/memory/batch.py"
CHECKS = "attendre_core/checks.py"
INITIAL_SCORE = "attendre_core/policies/initial_score.py"
KEY_VALUE = "attendre_core/memory/key_value.py"
NUMPY_KERNELS = "attendre_core/eager/numpy_kernels.py"
QUEUE = "attendre_core/memory/queue.py"
RANKING = "attendre_core/memory/admission.py"
ROOM = "attendre_core/memory/room.py"
SELECTION = "attendre_core/ops/selection.py"
SLOTS = "attendre_core/ops/slots.py"
TIES = "attendre_core/policies/ties.py"
VIEW = "attendre_core/policies/view.py"
ORACLE = "memory/test_oracle.py::test_stream_equals_oracle"

MEMORY_MUTANTS = (
    # ties
    Mutant(
        "eviction ties: the newer entry goes first",
        ADMIT,
        "(new_order > since)",
        "(new_order < since)",
        "memory/test_ties.py::test_equal_scores_are_first_in_first_out",
        "strict",
    ),
    Mutant(
        "ties among stored entries broken the other way round",
        NUMPY_KERNELS,
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
        "strict",
    ),
    Mutant(
        "top-K ties: all entries equal to the K-th are taken",
        SELECTION,
        "fits = tied & (recency < _tie_cut(tied, wanted, recency))",
        "fits = tied",
        "memory/test_retrieval.py::test_gather_is_threshold",
        "strict",
    ),
    Mutant(
        "retrieved ties: the older entry comes first",
        ATTEND,
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
        INITIAL_SCORE,
        "mean_less_deviations(stored.score, stored.valid & ~stored.pinned,",
        "mean_less_deviations(stored.score, ~stored.pinned,",
        f"{ORACLE}[lra]",
    ),
    Mutant(
        "pinned entries counted in mu and sigma",
        INITIAL_SCORE,
        "mean_less_deviations(stored.score, stored.valid & ~stored.pinned,",
        "mean_less_deviations(stored.score, stored.valid,",
        f"{ORACLE}[other-options]",
    ),
    Mutant(
        "sample instead of population sigma",
        ADMIT,
        "sigma = xp.sqrt(total(among((below - mean) ** 2)) / number)",
        "sigma = xp.sqrt(total(among((below - mean) ** 2)) / (number - 1 + (number == 1)))",
        f"{ORACLE}[lfa]",
        "strict",
    ),
    Mutant(
        "mu + c*sigma instead of mu - c*sigma",
        ADMIT,
        "(mean - deviations * sigma)",
        "(mean + deviations * sigma)",
        f"{ORACLE}[lra]",
        "strict",
    ),
    Mutant(
        "no snap: rounding decides whether the newcomer ties",
        ADMIT,
        "start = xp.where(same < math.inf, same, start)",
        "start = start",
        "memory/test_ties.py::test_two_stored_scores_tie_with_the_newcomer",
        "strict",
    ),
    Mutant(
        "quantile one rank too high",
        INITIAL_SCORE,
        "here = rank == (k - 1)[..., None]",
        "here = rank == xp.minimum(k, number - 1)[..., None]",
        f"{ORACLE}[initial-scores]",
    ),
    Mutant(
        "the score given at insertion is ignored",
        RANKING,
        "    if new.scored:\n        return new\n",
        "",
        "memory/test_oracle.py::test_given_scores_equal_oracle",
    ),
    # padding
    Mutant(
        "the clock counts padding",
        RANKING,
        "state.clock + (key.shape[1] if full else ops.count_true(valid, axis=1))",
        "state.clock + key.shape[1]",
        "memory/test_rows.py::test_chunk_of_padding_changes_nothing",
    ),
    Mutant(
        "arrival numbers count padding",
        CHECKS,
        "arrival, full = numbered(state.clock, valid, key), valid is None",
        "arrival, full = numbered(state.clock, None, key), valid is None",
        "memory/test_rows.py::test_amount_of_padding_changes_nothing",
    ),
    Mutant(
        "padding entries enter the memory",
        CHECKS,
        "enter = valid & enter\n",
        "enter = ~valid | enter\n",
        f"{ORACLE}[scores]",
    ),
    Mutant(
        "padding queries score",
        ATTEND,
        "usable = finite if full else valid & finite",
        "usable = finite",
        f"{ORACLE}[lfa]",
    ),
    Mutant(
        "LFA's latest position counts padding queries",
        VIEW,
        "self._present = xp.max(xp.where(self.valid, position, NO_QUERY), axis=-1)",
        "self._present = xp.max(position, axis=-1)",
        "memory/test_rows.py::test_contents_of_padding_change_nothing",
    ),
    Mutant(
        "LRA-last takes the last query even if it is padding",
        VIEW,
        "xp.where(self.valid, number, number - queries)",
        "xp.where(self.valid | ~self.valid, number, number - queries)",
        f"{ORACLE}[lra]",
    ),
    # what is evicted
    Mutant(
        "evicted entries are all called valid",
        RANKING,
        "return EvictedEntries(key, value, position, valid, aux, *rest)",
        "return EvictedEntries(key, value, position, valid | True, aux, *rest)",
        "memory/test_capacity.py::test_nothing_lost_nothing_twice",
    ),
    Mutant(
        "refused entries are forgotten",
        SLOTS,
        "gone.append(xp.where(_aligned_flags(write, axis, held.ndim), held, entries))",
        "gone.append(held)",
        "memory/test_capacity.py::test_nothing_lost_nothing_twice",
    ),
    Mutant(
        "one slot is never given away",
        ADMIT,
        "return slot, higher & (new_primary > -math.inf)",
        "return slot, higher & (new_primary > -math.inf) & (slot > 0)",
        f"{ORACLE}[fifo-and-sinks]",
        "strict",
    ),
    Mutant(
        "pinned entries are not protected",
        RANKING,
        "    pinned = entries.pinned\n",
        "    pinned = entries.pinned & ~entries.pinned\n",
        "memory/test_capacity.py::test_pinned_are_never_evicted",
    ),
    Mutant(
        "pin ranges end one position early",
        CHECKS,
        "(position >= first) & (position < stop)",
        "(position >= first) & (position < stop - 1)",
        "memory/test_capacity.py::test_pinned_are_never_evicted",
    ),
    Mutant(
        "one sink too few",
        RANKING,
        "(arrival < sinks)",
        "(arrival < sinks - 1)",
        "memory/test_capacity.py::test_sinks_are_never_evicted",
    ),
    Mutant(
        "the protected window is one entry short",
        RANKING,
        "recent = arrival >= first",
        "recent = arrival > first",
        "memory/test_capacity.py::test_recent_window_is_never_evicted",
    ),
    Mutant(
        "visible: the present chunk competes before it was seen",
        KEY_VALUE,
        'return make_room if self.present == "visible" else compete',
        'return make_room if self.present == "never" else compete',
        "memory/test_capacity.py::test_own_chunk_is_visible",
    ),
    Mutant(
        "visible: a broken entry is dropped",
        ROOM,
        "return Exchange(cleared(new, slot, slots), slot, write, state.chunk_start)",
        "new = new._replace(valid=new.enter)\n"
        "    return Exchange(cleared(new, slot, slots), slot, write, state.chunk_start)",
        "memory/test_nan.py::test_nothing_is_lost_when_entries_break",
    ),
    Mutant(
        "visible: the worst stays instead of a broken entry",
        ROOM,
        "place = xp.where(broken, room, numbers(room, before)) - before",
        "place = xp.where(broken, before, room - numbers(room, before) + before) - 1",
        "memory/test_nan.py::test_the_best_stays_instead_of_a_broken_one",
    ),
    Mutant(
        "visible: padding is written as it is",
        ARRIVALS,
        "key=blank(new.key),",
        "key=new.key,",
        "memory/test_nan.py::test_broken_padding_changes_nothing",
    ),
    Mutant(
        "visible: the cut happens even if nothing arrives",
        ROOM,
        "some = xp.reshape(new.count > 0,",
        "some = xp.reshape(new.count >= 0,",
        "memory/test_rows.py::test_chunk_of_padding_changes_nothing",
    ),
    Mutant(
        "visible: the initial score counts entries that were just cut",
        ROOM,
        "stored._replace(valid=survives)",
        "stored",
        f"{ORACLE}[visible]",
    ),
    Mutant(
        "admitted share: refused entries are not counted",
        "attendre_core/eager/numpy_kernels.py",
        "refusals + count_true(late, axis=axes)",
        "refusals",
        "memory/test_oracle.py::test_admitted_share_equals_oracle",
    ),
    # states and rows
    Mutant(
        "insert writes into the state it was given",
        NUMPY_KERNELS,
        "changed = array if donate else array.copy()",
        "changed = array",
        "memory/test_state.py::test_input_state_is_unchanged",
    ),
    Mutant(
        "reset forgets the clock",
        BATCH,
        "result: State = tree_map(chosen, state, empty)",
        "result: State = tree_map(chosen, state, empty)._replace(clock=state.clock)",
        "memory/test_rows.py::test_reset_row_is_a_fresh_row",
    ),
    Mutant(
        "reorder leaves the scores where they are",
        BATCH,
        "result: State = tree_map(lambda leaf: xp.take(leaf, index, axis=0), state)",
        "result: State = tree_map(lambda leaf: xp.take(leaf, index, axis=0),"
        " state)._replace(score=state.score)",
        "memory/test_rows.py::test_reorder_takes_rows_with_everything",
    ),
    Mutant(
        "NaN guard removed: broken entries are stored",
        CHECKS,
        'enter = finite_rows(where, "key", key, valid, (0, 1))',
        "enter = valid == valid",
        "memory/test_nan.py::test_broken_entries_are_refused",
    ),
    Mutant(
        "broken queries are used",
        ATTEND,
        "usable = finite if full else valid & finite",
        "usable = valid",
        "memory/test_nan.py::test_broken_queries_score_nothing",
    ),
    # the queue
    Mutant(
        "the queue keeps its oldest entry: the delay is off by one",
        QUEUE,
        "primary, order = self._rank(tuple(records), clock)",
        "primary, order = self._rank(tuple(records), clock)\n"
        "        order = xp.concat([order[:, :1] + 10**6, order[:, 1:]], axis=1)",
        "memory/test_queue.py::test_delay_is_exactly_n_in_order",
    ),
    Mutant(
        "the queue hands entries back newest first",
        QUEUE,
        "kept, gone = ops.push_slots(stored, new, primary, order)",
        "kept, gone = ops.push_slots(stored, new, primary, order)\n"
        "        gone = [xp.flip(x, axis=1) for x in gone]",
        "memory/test_queue.py::test_delay_is_exactly_n_in_order",
    ),
    Mutant(
        "the queue gives everything in slot order",
        QUEUE,
        "order = ops.lowest(None, state.arrival, self.size)",
        "order = ops.lowest(None, state.arrival * 0, self.size)",
        "memory/test_queue.py::test_queue_equals_oracle[scored]",
    ),
)
