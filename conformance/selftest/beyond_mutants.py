"""Seeded mistakes in soft masks, entries beside a memory, and written slots."""

from __future__ import annotations

from mutant import Mutant

JOINT = "attendre_core/joint"
POLICIES = "attendre_core/policies/published"
WRITTEN = "attendre_core/written"
LEARNED = "beyond/test_learned.py"
BESIDE = "beyond/test_beside.py"
SLOTS = "beyond/test_written.py"

BEYOND_MUTANTS = (
    Mutant(
        "entries beside a memory take no weight from it",
        f"{JOINT}/beside.py",
        "pairs._replace(sink=sink)",
        "pairs._replace(sink=sink * 0 + _NOTHING)",
        f"{BESIDE}::test_beside_is_one_softmax",
    ),
    Mutant(
        "entries beside a memory are counted from another place",
        f"{JOINT}/beside.py",
        "position[:, None, :] - since",
        "position[:, None, :]",
        f"{BESIDE}::test_beside_is_one_softmax",
    ),
    Mutant(
        "padding beside a memory counts",
        f"{JOINT}/beside.py",
        "key_position=at[:, None, :], key_valid=valid[:, None, :]",
        "key_position=at[:, None, :], key_valid=valid[:, None, :] | True",
        f"{BESIDE}::test_invalid_entries_beside_change_nothing",
    ),
    Mutant(
        "the top K forget what is beside them",
        "attendre_core/policies/view.py",
        "if (sink := self._pairs.sink) is not None:",
        "if (sink := self._pairs.sink) is not None and self._top_k is None:",
        f"{BESIDE}::test_the_top_k_are_of_the_memory_and_all_beside_count",
    ),
    Mutant(
        "a soft mask is added, not its logarithm",
        f"{JOINT}/soft_mask.py",
        "bias = xp.log(xp.maximum(mask, xp.full_like(mask, _LEAST)))",
        "bias = xp.maximum(mask, xp.full_like(mask, _LEAST))",
        f"{LEARNED}::test_expire_span_is_its_formula",
    ),
    Mutant(
        "an entry that was masked out was not seen",
        f"{JOINT}/soft_mask.py",
        "result._seen = attention.seen",
        "result._seen = None",
        f"{LEARNED}::test_chunks_change_nothing_where_nothing_is_evicted",
    ),
    Mutant(
        "spans are evicted by length, not by what is left",
        f"{POLICIES}/expire_span.py",
        "return stored.score - xp.astype(stored.age, stored.score.dtype)",
        "return stored.score - 0 * xp.astype(stored.age, stored.score.dtype)",
        f"{LEARNED}::test_expire_span_is_its_formula",
    ),
    Mutant(
        "queries prune their own entry",
        f"{POLICIES}/context_pruning.py",
        "(at[:, None, :, None] > by_head",
        "(at[:, None, :, None] >= by_head",
        f"{LEARNED}::test_context_pruning_is_its_formula",
    ),
    Mutant(
        "what was pruned comes back in the next chunk",
        f"{POLICIES}/context_pruning.py",
        "return xp.minimum(left, stored.score)",
        "return xp.maximum(left, stored.score)",
        f"{LEARNED}::test_context_pruning_is_its_formula",
    ),
    Mutant(
        "a row of padding is written",
        f"{WRITTEN}/memory.py",
        "xp.where(some, written, state.slots)",
        "xp.where(some | True, written, state.slots)",
        f"{SLOTS}::test_padding_and_rows[memformer]",
    ),
    Mutant(
        "Memformer forgets nothing",
        f"{WRITTEN}/memformer.py",
        'return _unit(read + params["forget"][None, ...])',
        "return _unit(read)",
        f"{SLOTS}::test_each_writer_is_its_formula",
    ),
    Mutant(
        "a token summary counts padding",
        f"{WRITTEN}/token_turing.py",
        "flags.append(valid)",
        "flags.append(valid | True)",
        f"{SLOTS}::test_padding_and_rows[token-turing]",
    ),
    Mutant(
        "the gate of MART is the wrong way round",
        f"{WRITTEN}/mart.py",
        '(1.0 - gate) * xp.tanh(mixed("candidate")) + gate * slots',
        'gate * xp.tanh(mixed("candidate")) + (1.0 - gate) * slots',
        f"{SLOTS}::test_each_writer_is_its_formula",
    ),
    Mutant(
        "memory tokens of ICAE see later ones",
        f"{WRITTEN}/icae.py",
        "number[None, :] <= number[:, None]",
        "number[None, :] >= number[:, None] * 0",
        f"{SLOTS}::test_each_writer_is_its_formula",
    ),
)
