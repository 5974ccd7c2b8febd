"""Which architecture a configuration asks for: one line each."""

from __future__ import annotations

from attendre_core.errors import CheckpointError
from attendre_core.zoo.architectures.base import Architecture
from attendre_core.zoo.architectures.bert import Bert
from attendre_core.zoo.architectures.ctranslate import CTranslate
from attendre_core.zoo.architectures.gemma import Gemma
from attendre_core.zoo.architectures.llama import Llama
from attendre_core.zoo.architectures.marian import Marian
from attendre_core.zoo.architectures.modernbert import ModernBert
from attendre_core.zoo.architectures.palm import Cohere, Falcon
from attendre_core.zoo.architectures.t5 import T5
from attendre_core.zoo.config import RawConfig

__all__ = ["ARCHITECTURES", "architecture_of"]

#: ``model_type`` of a configuration to the class that reads it.
ARCHITECTURES: dict[str, type[Architecture]] = {
    "bert": Bert,
    "cohere": Cohere,
    "ctranslate2": CTranslate,
    "falcon": Falcon,
    "gemma3": Gemma,
    "gemma3_text": Gemma,
    "llama": Llama,
    "marian": Marian,
    "mistral": Llama,
    "modernbert": ModernBert,
    "mt5": T5,
    "qwen2": Llama,
    "qwen3": Llama,
    "t5": T5,
}


def architecture_of(config: RawConfig) -> Architecture:
    """Return the architecture that a configuration describes."""
    kind = config.word("model_type")
    if kind not in ARCHITECTURES:
        raise CheckpointError(
            f"{config.where}: model_type is {kind[:80]!r}, expected one of "
            f"{', '.join(sorted(ARCHITECTURES))}. A new architecture is one file and one line in "
            "attendre_core/zoo/architectures/__init__.py."
        )
    return ARCHITECTURES[kind].from_config(config)
