"""What transformers, accelerate and peft ask a model for besides calling it."""

from __future__ import annotations

from typing import Any

from attendre_core.errors import ConfigError
from attendre_core.zoo.architectures.base import EncoderDecoder
from attendre_core.zoo.model import Model

__all__ = ["LikeTransformers"]


class LikeTransformers:
    """Methods of a ``PreTrainedModel`` that training calls; transformers is not required."""

    checkpoint: bool
    _model: Model

    @property
    def loss_type(self) -> str | None:
        """Tells a Trainer that labels are shifted here: how many of them count."""
        return "ForCausalLM" if self._model.architecture.kind == "decoder" else None

    @property
    def config(self) -> Any:
        """A configuration of transformers with the sizes of the model, made anew each time."""
        try:
            from transformers import PretrainedConfig
        except ImportError as error:
            raise AttributeError("config: transformers is not installed.") from error
        part, end = self._model.reading_part, self._model.end
        both = isinstance(self._model.architecture, EncoderDecoder)
        made = PretrainedConfig(is_encoder_decoder=both, eos_token_id=list(end) or None)
        # No model of transformers: peft would look up which of its modules to adapt.
        made.model_type = "attendre"
        made.vocab_size, made.hidden_size = part.vocabulary, part.dim
        made.num_hidden_layers, made.num_attention_heads = part.layers, part.heads
        return made

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: Any = None, **options: Any
    ) -> None:
        """Recompute each layer's step in the backward pass; a Trainer calls this if asked to."""
        if options.get("every_n_layers", 1) != 1 or options.get("offload", False):
            raise ConfigError(
                f"TrainableModel: activation checkpointing was asked for with {options}, expected "
                "no options. Every layer is recomputed, and nothing is offloaded."
            )
        self.checkpoint = True

    def gradient_checkpointing_enable(self, *args: Any, **options: Any) -> None:
        """Do the same under the name that transformers used before."""
        options.pop("gradient_checkpointing_kwargs", None)
        self.activation_checkpointing_enable(**options)

    def prepare_inputs_for_generation(self, input_ids: Any, **options: Any) -> dict[str, Any]:
        """Return the arguments as they are; peft expects this method on a causal model."""
        return {"input_ids": input_ids, **options}
