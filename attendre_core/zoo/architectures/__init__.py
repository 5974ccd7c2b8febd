"""Which architecture a configuration asks for: one line each."""

from __future__ import annotations

from attendre_core.errors import CheckpointError
from attendre_core.zoo.architectures.base import Architecture
from attendre_core.zoo.architectures.bert import Bert
from attendre_core.zoo.architectures.ctranslate import CTranslate
from attendre_core.zoo.architectures.deberta import Deberta
from attendre_core.zoo.architectures.distilbert import DistilBert
from attendre_core.zoo.architectures.electra import Electra
from attendre_core.zoo.architectures.eurobert import EuroBert
from attendre_core.zoo.architectures.gemma import Gemma
from attendre_core.zoo.architectures.llama import Llama
from attendre_core.zoo.architectures.marian import Marian
from attendre_core.zoo.architectures.modernbert import ModernBert
from attendre_core.zoo.architectures.mpnet import MPNet
from attendre_core.zoo.architectures.nomic_bert import NomicBert
from attendre_core.zoo.architectures.palm import Cohere, Falcon
from attendre_core.zoo.architectures.roberta import Roberta
from attendre_core.zoo.architectures.t5 import T5
from attendre_core.zoo.architectures.t5_encoder import T5Encoder, is_encoder
from attendre_core.zoo.config import RawConfig

__all__ = ["ARCHITECTURES", "architecture_of"]

#: ``model_type`` of a configuration to the class that reads it.
ARCHITECTURES: dict[str, type[Architecture]] = {
    "bert": Bert,
    "camembert": Roberta,
    "cohere": Cohere,
    "ctranslate2": CTranslate,
    "deberta-v2": Deberta,
    "distilbert": DistilBert,
    "electra": Electra,
    "eurobert": EuroBert,
    "falcon": Falcon,
    "gemma3": Gemma,
    "gemma3_text": Gemma,
    "llama": Llama,
    "marian": Marian,
    "mistral": Llama,
    "modernbert": ModernBert,
    "mpnet": MPNet,
    "mt5": T5,
    "nomic_bert": NomicBert,
    "qwen2": Llama,
    "qwen3": Llama,
    "roberta": Roberta,
    "t5": T5,
    "xlm-roberta": Roberta,
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
    if ARCHITECTURES[kind] is T5 and is_encoder(config):
        return T5Encoder.from_config(config)
    return ARCHITECTURES[kind].from_config(config)
