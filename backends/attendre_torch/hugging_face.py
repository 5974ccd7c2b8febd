"""Use a loaded transformers model with memories of fixed size.

transformers itself is neither imported nor changed: the model's configuration gives the
architecture, and its ``state_dict`` the weights, which are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from attendre_core.backend import backend
from attendre_core.checks import dtype_name
from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.architectures import ARCHITECTURES, architecture_of
from attendre_core.zoo.architectures.base import Architecture, EncoderDecoder, Params
from attendre_core.zoo.chat_template import ChatTemplate
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.generate import OnToken
from attendre_core.zoo.generation_config import end_tokens, new_tokens, wishes_of
from attendre_core.zoo.heads import Head, head_of
from attendre_core.zoo.loading.checkpoint import Stored, load_parameters
from attendre_core.zoo.model import Model
from attendre_torch.plain_models import plain_model, plain_tensors

__all__ = ["TransformersModel", "from_transformers"]


def from_transformers(
    model: Any,
    memory: MemoryConfig | str | int | None = None,
    *,
    tokenizer: Any = None,
    attention: Literal["causal", "prefix"] | None = None,
) -> TransformersModel:
    """Use a model that transformers has loaded with memories of fixed size.

    Parameters
    ----------
    model
        A ``PreTrainedModel`` of a type that `attendre_core.zoo` supports, e.g. Llama, Mistral,
        Qwen2, Qwen3, Gemma 3, T5 or BERT, compiled or not. Tested with transformers 5.21 up
        to, but not including, 6.
    memory
        The memories, as in `attendre_core.load`; None is full attention.
    tokenizer
        A tokenizer of transformers, for text in and out; None = token ids only.
    attention
        ``"prefix"`` lets a decoder read its prompt in both directions.

    Returns
    -------
    TransformersModel
        A `Model` that shares its parameters with ``model``: training one changes the other. It
        generates as ``model.generation_config`` says.

    Raises
    ------
    CheckpointError
        If the type of model is not supported, or it has adapters, is quantised or offloaded. All
        of these work with `AttendreCache`.
    """
    model = plain_model(model)
    checkpoint = _LoadedModel(model)
    kind = checkpoint.config.word("model_type")
    if kind not in ARCHITECTURES:
        raise CheckpointError(
            f"from_transformers: {checkpoint.where} has model_type {kind!r}, expected one of "
            f"{', '.join(sorted(ARCHITECTURES))}. For any other causal LM, use "
            "AttendreCache(model, memory)."
        )
    architecture = architecture_of(checkpoint.config)
    head = head_of(checkpoint, architecture)
    try:
        params, dtype = load_parameters(
            checkpoint, architecture, backend("torch"), "auto", progress=False, head=head
        )
    except CheckpointError as error:
        raise CheckpointError(
            f"from_transformers: {checkpoint.where} does not hold what the architecture needs. "
            f"Pass the class with its output head, such as LlamaForCausalLM. ({error})"
        ) from error
    return TransformersModel(
        architecture,
        params,
        memory=memory,
        dtype=dtype,
        tokenizer=None if tokenizer is None else _Tokenizer(tokenizer),
        attention=attention,
        generation_config=getattr(model, "generation_config", None),
        chat_template=_template_of(tokenizer),
        head=head,
    )


class TransformersModel(Model):
    """A `Model` that shares its parameters with a transformers model; see `from_transformers`.

    Attributes
    ----------
    generation_config
        The model's own, which `generate` follows; None for models that do not generate.
    """

    def __init__(
        self,
        architecture: Architecture,
        params: Params,
        *,
        memory: MemoryConfig | str | int | None,
        dtype: str,
        tokenizer: Any = None,
        attention: Literal["causal", "prefix"] | None = None,
        generation_config: Any = None,
        chat_template: ChatTemplate | None = None,
        head: Head | None = None,
    ) -> None:
        super().__init__(
            architecture, params, memory=memory, library="torch", dtype=dtype,
            tokenizer=tokenizer, attention=attention, chat_template=chat_template, head=head,
        )  # fmt: skip
        self.generation_config = generation_config
        self._end: tuple[int, ...] | None = None

    @property
    def end(self) -> tuple[int, ...]:
        """Token ids that end a text: those of ``generation_config``, unless set here."""
        if self._end is not None:
            return self._end
        if self.generation_config is None:
            return self.architecture.end
        return end_tokens(self.generation_config)

    @end.setter
    def end(self, tokens: tuple[int, ...]) -> None:
        self._end = tuple(tokens)

    def with_memory(self, memory: MemoryConfig | str | int | None) -> TransformersModel:
        """Return the same model, parameters shared, with another memory or none."""
        return TransformersModel(
            self.architecture, self.params, memory=memory, dtype=self.dtype,
            tokenizer=self.tokenizer, attention=self.attention,
            generation_config=self.generation_config, chat_template=self.chat_template,
            head=self.head,
        )  # fmt: skip

    def generate(
        self,
        prompt: Any = None,
        max_new_tokens: int | None = None,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
        beams: int | None = None,
        length_penalty: float | None = None,
        stop: Sequence[str] | None = None,
        on_token: OnToken | None = None,
        input_ids: Any = None,
        attention_mask: Any = None,
        **transformers: Any,
    ) -> Any:
        """Continue a prompt, or answer it, like `Model.generate`.

        Arguments that are None are taken from ``generation_config``: ``max_new_tokens`` (or
        ``max_length``, which includes the prompt; 20 if neither is set), ``do_sample`` with
        ``temperature``, ``top_p`` and ``top_k``, ``num_beams``, ``length_penalty``,
        ``stop_strings``, ``eos_token_id``. A temperature of 0 turns sampling off.

        Raises
        ------
        ConfigError
            If the configuration sets something that is not supported, such as a repetition
            penalty; the message says how to continue without it.
        """
        given: dict[str, Any] = {
            "temperature": temperature, "top_p": top_p, "top_k": top_k, "beams": beams,
            "length_penalty": length_penalty, "stop": None if stop is None else tuple(stop),
        }  # fmt: skip
        if input_ids is not None or transformers:
            changed = {name: value for name, value in given.items() if value is not None}
            return super().generate(
                prompt, max_new_tokens, **changed, seed=seed, on_token=on_token,
                input_ids=input_ids, attention_mask=attention_mask, **transformers,
            )  # fmt: skip
        never = self.architecture.never if isinstance(self.architecture, EncoderDecoder) else ()
        own = wishes_of(self.generation_config, never)
        if temperature == 0 or (temperature is None and (beams or 1) > 1):
            own = own._replace(temperature=0.0, top_p=1.0, top_k=None)
        chosen = own._replace(**{name: v for name, v in given.items() if v is not None})
        if max_new_tokens is None:
            max_new_tokens = new_tokens(self.generation_config, lambda: self._read_before(prompt))
        return super().generate(
            prompt, max_new_tokens, **chosen._asdict(), seed=seed, on_token=on_token
        )

    def _read_before(self, prompt: Any) -> int:
        """Return how many tokens ``max_length`` includes before the first new one."""
        if isinstance(self.architecture, EncoderDecoder):
            return 1
        return max(len(row) for row in self._rows("generate", prompt))


class _LoadedModel:
    """A model in memory with the interface of a checkpoint."""

    def __init__(self, model: Any) -> None:
        self.where = type(model).__name__
        settings = {**model.config.to_dict(), "architectures": [self.where]}
        self.config = RawConfig(settings, f"config of {self.where}")
        self._tensors = plain_tensors(model)
        _check_device(self.where, self._tensors)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if it does not exist."""
        found = self._tensors.get(name)
        return None if found is None else tuple(found.shape)

    def read(self, name: str) -> Stored:
        """Return a tensor itself, not a copy."""
        tensor = self._tensors[name]
        return Stored(tensor, dtype_name(tensor.dtype))


class _Tokenizer:
    """A tokenizer of transformers with the interface of the zoo."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Convert a text to token ids; ``special`` adds those around a text."""
        options = {} if special else {"add_special_tokens": False}
        return [int(token) for token in self._inner.encode(text, **options)]

    def decode(self, tokens: list[int]) -> str:
        """Convert token ids to text, without special ones."""
        return str(self._inner.decode(tokens, skip_special_tokens=True))


def _template_of(tokenizer: Any) -> ChatTemplate | None:
    """Return the chat template of a tokenizer of transformers; None if it has none."""
    found = getattr(tokenizer, "chat_template", None)
    named: dict[str, Any] = found if isinstance(found, dict) else {"default": found}
    default = named.get("default", next(iter(named.values()), None))
    if default is None:
        return None
    tokens = {
        name: str(text)
        for name, text in tokenizer.special_tokens_map.items()
        if isinstance(text, str)
    }
    return ChatTemplate(default, tokens, dict(named), type(tokenizer).__name__)


def _check_device(where: str, tensors: dict[str, Tensor]) -> None:
    """Refuse weights that are spread over devices."""
    found = {str(tensor.device) for tensor in tensors.values()}
    if len(found) > 1:
        raise ConfigError(
            f"from_transformers: the weights of {where} are on {', '.join(sorted(found))}, "
            "expected one device. Move the whole model to one, with model.to(...)."
        )
