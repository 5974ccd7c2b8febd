"""Memories of fixed size for transformers over arbitrarily long input.

Written once against the Python array API; runs on NumPy, PyTorch, JAX and any other library
with a backend. Importing this package imports neither PyTorch nor JAX.
"""

from typing import TYPE_CHECKING

from attendre_core import errors, ops
from attendre_core.backend import (
    Backend,
    available_backends,
    backend,
    backend_of,
    force_generic,
    namespace_of,
    register_backend,
)
from attendre_core.checks import value_checks
from attendre_core.errors import (
    CheckpointError,
    ChunkTooLongWarning,
    ConfigError,
    DTypeError,
    FrozenMemoryWarning,
    LibraryMixError,
    NonFiniteError,
    ShapeError,
    StateError,
)
from attendre_core.lazy import lazy_names
from attendre_core.memory import (
    Attention,
    Data,
    DataOnlyMemory,
    DataOnlyState,
    Entries,
    EvictedData,
    EvictedEntries,
    KeyValueMemory,
    KeyValueState,
    MemoryReport,
    RetrievedEntries,
)
from attendre_core.policies import (
    FIFO,
    H2O,
    LFA,
    LFU,
    LRA,
    LRU,
    TOVA,
    AttentionSink,
    Clip,
    ConstantScore,
    InitialScore,
    Policy,
    QuantileScore,
    QuotaScore,
    RandomTies,
    Shift,
    Stored,
)

if TYPE_CHECKING:
    from attendre_core.conversion import (
        convert,
    )
    from attendre_core.layer import (
        AttendreLayer,
        Block,
        Chunk,
        EncoderOutputMemory,
        Eviction,
        LayerOutput,
        LayerState,
        Stack,
        StackOutput,
        StepTrace,
        Trace,
        cross_attention,
    )
    from attendre_core.positions import (
        NTK,
        ALiBi,
        Encoding,
        InCache,
        Interpolation,
        LearnedPositions,
        Llama3Scaling,
        LMInfinite,
        NoPosition,
        RoPE,
        T5Bias,
        Window,
        YaRN,
    )
    from attendre_core.presets import (
        PRESETS,
        MemoryConfig,
        preset,
    )
    from attendre_core.zoo import (
        Model,
        Stream,
        load,
    )

# Imported when first asked for.
__getattr__ = lazy_names(
    globals(),
    {
        "attendre_core.layer": (
            "AttendreLayer",
            "Block",
            "Chunk",
            "EncoderOutputMemory",
            "Eviction",
            "LayerOutput",
            "LayerState",
            "Stack",
            "StackOutput",
            "StepTrace",
            "Trace",
            "cross_attention",
        ),
        "attendre_core.positions": (
            "NTK",
            "ALiBi",
            "Encoding",
            "InCache",
            "Interpolation",
            "LearnedPositions",
            "Llama3Scaling",
            "LMInfinite",
            "NoPosition",
            "RoPE",
            "T5Bias",
            "Window",
            "YaRN",
        ),
        "attendre_core.presets": (
            "PRESETS",
            "MemoryConfig",
            "preset",
        ),
        "attendre_core.conversion": ("convert",),
        "attendre_core.zoo": (
            "Model",
            "Stream",
            "load",
        ),
    },
)

__version__ = "0.1.0.dev0"

__all__ = [  # noqa: RUF022 - grouped by subject
    # policies
    "FIFO",
    "H2O",
    "LFA",
    "LFU",
    "LRA",
    "LRU",
    "TOVA",
    "AttentionSink",
    "Policy",
    "Stored",
    # their settings
    "Clip",
    "ConstantScore",
    "InitialScore",
    "QuantileScore",
    "QuotaScore",
    "RandomTies",
    "Shift",
    # memories
    "Attention",
    "Data",
    "DataOnlyMemory",
    "DataOnlyState",
    "Entries",
    "EvictedData",
    "EvictedEntries",
    "KeyValueMemory",
    "KeyValueState",
    "MemoryReport",
    "RetrievedEntries",
    # layers
    "AttendreLayer",
    "Block",
    "Chunk",
    "EncoderOutputMemory",
    "Eviction",
    "LayerOutput",
    "LayerState",
    "Stack",
    "StackOutput",
    "StepTrace",
    "Trace",
    "cross_attention",
    # positions
    "ALiBi",
    "Encoding",
    "InCache",
    "Interpolation",
    "LMInfinite",
    "LearnedPositions",
    "Llama3Scaling",
    "NTK",
    "NoPosition",
    "RoPE",
    "T5Bias",
    "Window",
    "YaRN",
    # the paper's systems
    "PRESETS",
    "MemoryConfig",
    "preset",
    # models
    "Model",
    "Stream",
    "load",
    # array libraries
    "Backend",
    "available_backends",
    "backend",
    "backend_of",
    "convert",
    "force_generic",
    "namespace_of",
    "ops",
    "register_backend",
    # what can go wrong
    "CheckpointError",
    "ChunkTooLongWarning",
    "ConfigError",
    "DTypeError",
    "FrozenMemoryWarning",
    "LibraryMixError",
    "NonFiniteError",
    "ShapeError",
    "StateError",
    "errors",
    "value_checks",
]
