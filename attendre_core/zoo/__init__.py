"""Models: written once, loaded from real checkpoints, run on any backend in bounded memory."""

from attendre_core.zoo.loading import load
from attendre_core.zoo.model import Model
from attendre_core.zoo.stream import Stream

__all__ = ["Model", "Stream", "load"]
