"""What the array-API standard lacks and a memory needs.

Each op has a generic version in standard functions alone. A backend may bring a faster kernel
of the same name (`attendre_core.backend.Backend.kernels`); `attendre_core.force_generic` turns
the kernels off.
"""

from attendre_core.ops.attention import Part, attend_top_k, attention, attention_over
from attendre_core.ops.branches import all_true, choose, when
from attendre_core.ops.counting import count_true, running_count
from attendre_core.ops.erf import erf
from attendre_core.ops.finite import surely_finite
from attendre_core.ops.lookup import take_rows
from attendre_core.ops.selection import (
    approximate_top_k,
    bounded,
    kth_largest,
    lowest,
    select_top_k,
    top_k,
    top_k_threshold,
)
from attendre_core.ops.slots import exchange_slots, gather_slots, write_slots
from attendre_core.ops.softmax import masked_softmax

__all__ = [
    "Part",
    "all_true",
    "approximate_top_k",
    "attend_top_k",
    "attention",
    "attention_over",
    "bounded",
    "choose",
    "count_true",
    "erf",
    "exchange_slots",
    "gather_slots",
    "kth_largest",
    "lowest",
    "masked_softmax",
    "running_count",
    "select_top_k",
    "surely_finite",
    "take_rows",
    "top_k",
    "top_k_threshold",
    "when",
    "write_slots",
]
