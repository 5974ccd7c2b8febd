"""Position schemes: one a file. Keys are stored as they are; a scheme is applied on reading."""

from typing import TYPE_CHECKING

from attendre_core.lazy import lazy_names
from attendre_core.positions.base import Encoded, Encoding, Pairing, Piece, Pieces

if TYPE_CHECKING:
    from attendre_core.positions.alibi import ALiBi, alibi_slopes
    from attendre_core.positions.in_cache import InCache
    from attendre_core.positions.learned import LearnedPositions
    from attendre_core.positions.lm_infinite import LMInfinite
    from attendre_core.positions.none import NoPosition
    from attendre_core.positions.relative_table import T5Bias, bucket_of
    from attendre_core.positions.rope import RoPE
    from attendre_core.positions.scaling import NTK, Interpolation, Llama3Scaling, YaRN
    from attendre_core.positions.window import Window

__getattr__ = lazy_names(
    globals(),
    {
        "attendre_core.positions.alibi": (
            "ALiBi",
            "alibi_slopes",
        ),
        "attendre_core.positions.in_cache": ("InCache",),
        "attendre_core.positions.learned": ("LearnedPositions",),
        "attendre_core.positions.lm_infinite": ("LMInfinite",),
        "attendre_core.positions.none": ("NoPosition",),
        "attendre_core.positions.relative_table": (
            "T5Bias",
            "bucket_of",
        ),
        "attendre_core.positions.rope": ("RoPE",),
        "attendre_core.positions.scaling": (
            "NTK",
            "Interpolation",
            "Llama3Scaling",
            "YaRN",
        ),
        "attendre_core.positions.window": ("Window",),
    },
)

__all__ = [
    "NTK",
    "ALiBi",
    "Encoded",
    "Encoding",
    "InCache",
    "Interpolation",
    "LMInfinite",
    "LearnedPositions",
    "Llama3Scaling",
    "NoPosition",
    "Pairing",
    "Piece",
    "Pieces",
    "RoPE",
    "T5Bias",
    "Window",
    "YaRN",
    "alibi_slopes",
    "bucket_of",
]
