"""attendre-core on PyTorch: how its tensors are recognised, and its kernels."""

from attendre_torch.adapter import backend

__all__ = ["backend"]
