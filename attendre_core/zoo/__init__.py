"""Models: written once, loaded from real checkpoints, run on any backend in bounded memory."""

from attendre_core.zoo.answer import Answer
from attendre_core.zoo.chat import Chat
from attendre_core.zoo.head_sizes import head_sizes
from attendre_core.zoo.loading import load
from attendre_core.zoo.model import Model
from attendre_core.zoo.pipelines import pipeline
from attendre_core.zoo.stream import Stream

__all__ = ["Answer", "Chat", "Model", "Stream", "head_sizes", "load", "pipeline"]
