"""`AttendreCache`: a cache of transformers whose layers hold memories of fixed size."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from attendre_core.errors import ConfigError
from attendre_core.memory.report import MemoryReport
from attendre_core.policies.fifo import FIFO
from attendre_core.presets import MemoryConfig
from attendre_core.traces import Trace
from attendre_core.tree import tree_leaves
from attendre_torch.cache.attaching import attach, check_attached, check_watched, detach, innermost
from attendre_torch.cache.held import Held
from attendre_torch.cache.layers import MemoryLayer
from attendre_torch.cache.planning import layers_of, memory_of, reads_in_chunks
from attendre_torch.cache.rotation import read_one_token, rotations_of, trained_length
from attendre_torch.cache.saving import restore_layers, save_layers, tensors_of
from attendre_torch.cache.spreading import group_of_model

__all__ = ["AttendreCache", "bounded"]

#: Keeps keys as they arrive.
_ONE_TOKEN = MemoryConfig(FIFO(), kv_size=1, chunk=1, positions="model")


class AttendreCache(Cache):  # type: ignore[misc]
    """A cache of fixed size for any causal LM of transformers.

    Everything the model reads and writes goes through the memories, from the first token on, so
    the cache never grows. Layers with a sliding window keep the cache that transformers gives
    them, which holds just the window.

    Parameters
    ----------
    model
        A causal LM of transformers, with whatever adapters, quantised weights and devices it has.
        Its attention implementation is set to ours until `detach`; without this cache it still
        computes what it did before.
    memory
        As in `attendre_core.load`: ``1024``, ``"64MiB"``, ``"attendre-causal:1024"``, or a
        `MemoryConfig`.
    trace
        Whether to record what every step inserts and evicts, for `trace`.

    Examples
    --------
    >>> import torch, transformers
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    ...     num_attention_heads=4, num_key_value_heads=2, eos_token_id=None)
    >>> model = transformers.LlamaForCausalLM(config).eval()
    >>> cache = AttendreCache(model, "LRA-sum:16")
    >>> tokens = torch.arange(40)[None] % 64
    >>> out = model.generate(
    ...     tokens, past_key_values=cache, max_new_tokens=8, do_sample=False, pad_token_id=0)
    >>> cache.get_seq_length(), [report.used for report in cache.reports()]
    (47, [(16,), (16,)])
    """

    def __init__(
        self, model: Any, memory: MemoryConfig | str | int, *, trace: bool = False
    ) -> None:
        model = innermost(model)
        self.memory = memory_of(model.config.get_text_config(decoder=True), memory)
        super().__init__(layers=layers_of(model, self.memory, trace))
        self._model: weakref.ref[Any] = weakref.ref(model)
        group = group_of_model(model)
        for layer in self.memories.values():
            layer.head_group = group
        self._attached_first = self._attach(model)
        try:
            self._find_rotations(model)
        except BaseException:
            self._put_back()
            raise

    # ---------------------------------------------------------------- the model

    def attach(self, model: Any) -> None:
        """Let a model attend through this cache (again)."""
        self._attach(innermost(model))

    def _attach(self, model: Any) -> bool:
        chunk = self.memory.chunk if reads_in_chunks(model, self.layers) else None
        by_itself = any(isinstance(layer, Held) for layer in self.layers)
        return attach(model, chunk, through_us=bool(self.memories), by_itself=by_itself)

    def detach(self) -> None:
        """Give the model back the attention implementation that it had."""
        model = self._model()
        if model is not None:
            detach(model)

    def _put_back(self) -> None:
        """Detach, unless the model had been attached to another cache before this one."""
        if self._attached_first:
            self.detach()

    def _find_rotations(self, model: Any) -> None:
        """Tell the layers how the model rotates, if the memory's positions need it."""
        config = model.config.get_text_config(decoder=True)
        trained, settings = trained_length(config), self.memory.positions
        kept = settings == "model" or (settings == "clamp" and trained is None)
        if kept and not self.memory.compresses:
            return
        found = rotations_of(model, lambda: AttendreCache(model, _ONE_TOKEN), trained or 256)
        for number, layer in self.memories.items():
            layer.rope, layer.trained = found.get(number), trained
        if settings == "in-cache" and not found:
            raise ConfigError(
                f"AttendreCache: {self.memory.name} numbers what is held, but how "
                f"{type(model).__name__} applies positions to its keys is not known, so they "
                "cannot be changed. Use positions='model'."
            )

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take the keys and values of one layer; called by the model."""
        if isinstance(self.layers[layer_idx], MemoryLayer):
            check_attached(self._model())
        found: tuple[Tensor, Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return found

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        """Return the number of the first new token; called when the model makes its mask."""
        layer = self.layers[layer_idx] if layer_idx < len(self.layers) else None
        if not isinstance(layer, Held):
            return super().get_query_offset(layer_idx)
        check_watched(self._model())
        return layer.query_offset

    # ---------------------------------------------------------------- what it holds

    @property
    def memories(self) -> dict[int, MemoryLayer]:
        """The layers that hold a memory, by number."""
        return {
            number: layer
            for number, layer in enumerate(self.layers)
            if isinstance(layer, MemoryLayer)
        }

    @property
    def nbytes(self) -> int:
        """The bytes that the cache takes now, windows and recurrent states included."""
        return sum(x.nbytes for layer in self.layers for x in tree_leaves(tensors_of(layer)))

    def reports(self) -> list[MemoryReport]:
        """Return a report on the memory of each layer that has one."""
        return [
            layer.layer.kv_memory.report(layer.state.kv, warn_below=0.0)
            for layer in self.memories.values()
            if layer.state is not None and layer.layer is not None
        ]

    def trace(self) -> Trace:
        """Return what was inserted and evicted, step by step; layers without a memory are empty."""
        memories = self.memories
        if not any(layer.steps for layer in memories.values()):
            raise ConfigError(
                "AttendreCache.trace: nothing was recorded. Make the cache with trace=True."
            )
        trace = Trace([[] for _ in self.layers])
        for number, layer in memories.items():
            for step in layer.steps:
                trace.add(step, number)
        return trace

    # ---------------------------------------------------------------- saving

    def save(self, path: str | Path) -> None:
        """Save everything that is needed to continue in a safetensors file.

        The file is written under another name and then moved, so it is never incomplete. If the
        model's heads are spread over processes, each saves its own heads, in a file of its own.
        """
        save_layers(path, self.layers, self._known_model("save"), self.memory)

    def restore(self, path: str | Path) -> AttendreCache:
        """Continue from a file that `save` wrote with the same model and memory; returns itself."""
        model = self._known_model("restore")
        scratch = AttendreCache(model, self.memory)
        read_one_token(model, scratch)
        restore_layers(path, self.layers, scratch.layers, model, self.memory)
        return self

    def _known_model(self, what: str) -> Any:
        model = self._model()
        if model is None:
            raise ConfigError(f"AttendreCache.{what}: the model of this cache is gone.")
        return model


@contextmanager
def bounded(model: Any, memory: MemoryConfig | str | int) -> Iterator[AttendreCache]:
    """Bound the memory of everything that a model does inside a ``with`` block.

    Parameters
    ----------
    model, memory
        As in `AttendreCache`.

    Yields
    ------
    AttendreCache
        The cache. It starts anew whenever the model starts a new text; pass it as
        ``past_key_values`` to continue one.

    Examples
    --------
    >>> import torch, transformers
    >>> config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> with bounded(model, "AS:16") as cache:
    ...     out = model.generate(
    ...         torch.arange(40)[None], max_new_tokens=8, do_sample=False, pad_token_id=0)
    >>> cache.reports()[0].used, model.config._attn_implementation
    ((16,), 'sdpa')
    """
    inner = innermost(model)
    cache = AttendreCache(inner, memory)

    def use_cache(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given = kwargs.get("past_key_values")
        if given is None or (given is not cache and given.get_seq_length() == 0):
            if kwargs.get("use_cache") is False:
                return None
            cache.reset()
            return args, {**kwargs, "past_key_values": cache}
        return None

    hook = inner.register_forward_pre_hook(use_cache, with_kwargs=True)
    try:
        yield cache
    finally:
        hook.remove()
        cache._put_back()
