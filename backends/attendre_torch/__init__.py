"""attendre-core on PyTorch: modules, trainable models, and the backend with its kernels."""

from attendre_core.lazy import attach

__getattr__, __dir__, __all__ = attach(globals())
del attach
