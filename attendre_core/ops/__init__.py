"""What the array-API standard lacks and a memory needs.

Each op has one plain body in standard functions; a backend may bring a faster kernel of the same
name (`attendre_core.backend.op`), and `attendre_core.force_generic` turns kernels off.
"""

from attendre_core.ops.admission import admit, mean_less_deviations
from attendre_core.ops.attention import (
    attend_top_k,
    attention,
    logits_of,
    masked_softmax,
    mix,
)
from attendre_core.ops.counting import count_true, finite_entries, running_count
from attendre_core.ops.layers import erf, linear, rms_norm, rotate_halves, silu
from attendre_core.ops.lookup import take_rows
from attendre_core.ops.pairs import (
    Pairs,
    Term,
    allowed_pairs,
    attend,
    grouped,
    logits,
    sum_logits,
    ungrouped,
    visible_pairs,
)
from attendre_core.ops.selection import (
    among_top_k,
    approximate_threshold,
    approximate_top_k,
    bounded,
    kth_largest,
    lowest,
    select_top_k,
    top_k,
    top_k_threshold,
)
from attendre_core.ops.slots import fill, gather_slots, push_slots, write_slots

__all__ = [
    "Pairs",
    "Term",
    "admit",
    "allowed_pairs",
    "among_top_k",
    "approximate_threshold",
    "approximate_top_k",
    "attend",
    "attend_top_k",
    "attention",
    "bounded",
    "count_true",
    "erf",
    "fill",
    "finite_entries",
    "gather_slots",
    "grouped",
    "kth_largest",
    "linear",
    "logits",
    "logits_of",
    "lowest",
    "masked_softmax",
    "mean_less_deviations",
    "mix",
    "push_slots",
    "rms_norm",
    "rotate_halves",
    "running_count",
    "select_top_k",
    "silu",
    "sum_logits",
    "take_rows",
    "top_k",
    "top_k_threshold",
    "ungrouped",
    "visible_pairs",
    "write_slots",
]
