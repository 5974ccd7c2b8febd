"""attendre-core on PyTorch: modules, models that train, and the backend with its kernels."""

from typing import TYPE_CHECKING

from attendre_core.lazy import lazy_names
from attendre_torch.adapter import backend

if TYPE_CHECKING:
    from attendre_torch.attention import AttendreAttention, AttentionOutput
    from attendre_torch.compiling import compiled_step
    from attendre_torch.hugging_face import TransformersModel, from_transformers
    from attendre_torch.states import detach
    from attendre_torch.streaming import Streaming
    from attendre_torch.trainable import Segment, TrainableModel

# Imported when first asked for: the backend alone is needed more often.
__getattr__ = lazy_names(
    globals(),
    {
        "attendre_torch.attention": ("AttendreAttention", "AttentionOutput"),
        "attendre_torch.compiling": ("compiled_step",),
        "attendre_torch.hugging_face": ("TransformersModel", "from_transformers"),
        "attendre_torch.states": ("detach",),
        "attendre_torch.streaming": ("Streaming",),
        "attendre_torch.trainable": ("Segment", "TrainableModel"),
    },
)

__all__ = [
    "AttendreAttention",
    "AttentionOutput",
    "Segment",
    "Streaming",
    "TrainableModel",
    "TransformersModel",
    "backend",
    "compiled_step",
    "detach",
    "from_transformers",
]
