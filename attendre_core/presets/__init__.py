"""Systems by name, and the settings that make a model's memories.

A name is ``NAME[+option...][:size]``, such as ``LRA-sum+softmax+c=0:1024`` or
``attendre-causal:64MiB``. It means the same system in `preset`, in ``at.load(memory=...)`` and in
every command.
"""

from attendre_core.presets.adapting import adapted
from attendre_core.presets.config import MemoryConfig
from attendre_core.presets.grammar import ParsedName
from attendre_core.presets.naming import canonical
from attendre_core.presets.options import OPTIONS, Option
from attendre_core.presets.sizes import memory_for, recommended
from attendre_core.presets.systems import (
    CONTROL_PRESETS,
    KEY_PRESETS,
    OTHER_PRESETS,
    OWN_PRESETS,
    PAPER_PRESETS,
    PRESETS,
    SCORE_PRESETS,
    TIER_PRESETS,
    parse,
    preset,
)

__all__ = [
    "CONTROL_PRESETS",
    "KEY_PRESETS",
    "OPTIONS",
    "OTHER_PRESETS",
    "OWN_PRESETS",
    "PAPER_PRESETS",
    "PRESETS",
    "SCORE_PRESETS",
    "TIER_PRESETS",
    "MemoryConfig",
    "Option",
    "ParsedName",
    "adapted",
    "canonical",
    "memory_for",
    "parse",
    "preset",
    "recommended",
]
