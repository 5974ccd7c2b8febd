"""Cache layers of transformers that hold a memory of fixed size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import cache_utils
from transformers.cache_utils import CacheLayerMixin

from attendre_core.checks import within_range
from attendre_core.errors import ConfigError, StateError
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import Chunk, LayerState
from attendre_core.layer.trace import StepTrace
from attendre_core.positions.base import Encoding
from attendre_core.positions.in_cache import InCache
from attendre_core.positions.lm_infinite import LMInfinite
from attendre_core.positions.none import NoPosition
from attendre_core.positions.rope import RoPE
from attendre_core.presets import MemoryConfig
from attendre_core.tiers.spec import with_scale
from attendre_core.tree import tree_map
from attendre_torch.cache.given import Given, Pairwise, pairwise_of
from attendre_torch.cache.held import no_way_back
from attendre_torch.cache.interface import ASKED, UPDATED, Asked, Seen
from attendre_torch.cache.spreading import group_for
from attendre_torch.heads import HeadGroup, check_agreement, head_group
from attendre_torch.states import writable

__all__ = ["HybridMemoryLayer", "MemoryLayer"]


class MemoryLayer(CacheLayerMixin):  # type: ignore[misc]
    """The cache of one attention layer: a memory of fixed size.

    ``update`` only notes that keys and values arrived and hands them back; the attention function
    then inserts them and attends, because a policy needs the queries, too.

    Parameters
    ----------
    number
        Of the layer in the model.
    memory
        Settings of the memories.
    trace
        Whether to record what every step inserts and evicts.
    siblings
        All layers of the cache, if some of the model's layers use the keys of others.

    Attributes
    ----------
    seen
        Number of tokens that arrived, padding included.
    state
        Of the memory; None before the first token.
    rope
        How the model rotates queries and keys; None if it does not, or it is not known.
    trained
        How many positions the model was trained on; None if it is not known.
    head_group
        The processes over which the model is spread by heads; None = it is whole.
    """

    is_sliding = False
    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(
        self,
        number: int,
        memory: MemoryConfig,
        trace: bool = False,
        siblings: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self.number, self.memory, self._traced = number, memory, trace
        self._siblings = siblings
        self.rope: RoPE | None = None
        self.trained: int | None = None
        self.head_group: HeadGroup | None = None
        self._clear()

    def _clear(self) -> None:
        self.seen = 0
        self.state: LayerState | None = None
        self.layer: AttendreLayer | None = None
        self.steps: list[StepTrace] = []
        self._arrived: Tensor | None = None
        self._waiting = False
        self.is_initialized = False
        #: Whether keys are held without positions, or as the model rotated them.
        self.plain = False
        #: The state after each piece of the last call, for layers that share its keys.
        self._snapshots: list[LayerState] = []

    # ---------------------------------------------------------------- what transformers calls

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the state is made when the first queries arrive."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Note that keys and values (batch, kv_heads, seq, dim) arrived, and hand them back."""
        self.check_attended()
        self.seen += key_states.shape[2]
        self._arrived = None if self._siblings is None else key_states
        self._waiting = True
        UPDATED.set(self)
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Return how many tokens arrived, padding included; not how many are held."""
        return self.seen

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Return the sizes of a mask over everything that arrived."""
        count = query_length if isinstance(query_length, int) else query_length.shape[0]
        if count == 0:
            raise ConfigError(
                f"AttendreCache: the cache has read {self.seen} tokens, and there is none after "
                "them. Pass the whole text, what was read and written before included, or call "
                "cache.reset() to start another one."
            )
        ASKED.set(Asked(self, count, self.seen + count))
        return self.seen + count, 0

    def get_max_length(self) -> int:
        """Return -1: there is no maximum length of the input."""
        return -1

    def get_max_cache_shape(self) -> int:
        """Return -1: there is no maximum length of the input."""
        return -1

    def reset(self) -> None:
        """Forget everything."""
        self._clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make row ``beam_idx[i]`` row i."""
        self._map(lambda leaf: leaf.index_select(0, beam_idx.to(leaf.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        self._map(lambda leaf: leaf[indices.to(leaf.device), ...])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        self._map(lambda leaf: leaf.repeat_interleave(repeats, dim=0))

    def offload(self) -> None:
        """Move the memory to the CPU."""
        self._map(lambda leaf: leaf.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        """Do nothing: the memory follows the keys that arrive."""

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to remove tokens: what they evicted cannot come back."""
        if tokens_to_remove:
            raise no_way_back()

    def activate_past_recording(self) -> None:
        """Refuse: see `crop`."""
        raise no_way_back()

    # ---------------------------------------------------------------- what the interface calls

    def source_of(self, key: Tensor) -> MemoryLayer | None:
        """Return the layer that the keys of an attention call arrived at; None if there is none.

        It is this one, updated last, or one whose keys several layers of the model use.
        """
        if self._waiting:
            return self
        for layer in self._siblings or ():
            if getattr(layer, "_arrived", None) is key:
                return layer  # type: ignore[no-any-return]
        return None

    def present(self, mask: Tensor | None, count: int) -> Tensor | None:
        """Return which of the ``count`` tokens that come next are real; None = all."""
        if mask is None:
            return None
        if mask.ndim != 2 or mask.shape[1] < self.seen + count:
            raise ConfigError(
                f"AttendreCache: attention_mask has shape {tuple(mask.shape)}, but {self.seen} "
                f"tokens were read before these {count}, so (batch, {self.seen + count}) is "
                "expected. The mask covers everything read so far; leave it out if nothing is "
                "padded."
            )
        flags = mask[:, self.seen : self.seen + count].to(torch.bool)
        if not torch.compiler.is_compiling() and flags.device.type == "cpu" and bool(flags.all()):
            return None
        return flags

    def attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        position_bias: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Insert what arrived, in pieces of the memory's chunk, and attend to what is held.

        Parameters
        ----------
        query, key, value
            (batch, heads, seq, dim), as the model made them.
        mask
            `Seen`, a mask over everything that arrived, or None.
        scaling, softcap, s_aux, position_bias
            Of the model's attention: factor of the logits, their limit, the logit of a sink per
            head, and a bias over everything that arrived.

        Returns
        -------
        Tensor
            (batch, seq, heads, value_dim).
        """
        if dropout and module.training:
            raise ConfigError(
                f"AttendreCache: {type(module).__name__} drops {dropout:.0%} of its attention "
                "weights in training, which a memory cannot do. Set the attention dropout of the "
                "model's config to 0, or call model.eval()."
            )
        if s_aux is not None and self.memory.top_k is not None:
            raise ConfigError(
                f"AttendreCache: {type(module).__name__} has sinks of its own, which cannot be "
                "combined with top_k. Use top_k=None, which attends to all that is held."
            )
        own, self._waiting = self._waiting, False
        group = group_for(self.head_group, module, query)
        count = key.shape[2]
        start = self.seen - count
        within_range("AttendreCache", self.seen - 1)
        valid = mask.valid if isinstance(mask, Seen) else None
        left_out = count - query.shape[2]
        if left_out:  # layers that share keys may compute the last tokens alone
            query = pad(query, (0, 0, left_out, 0))
            mask = pad(mask, (0, 0, left_out, 0)) if isinstance(mask, Tensor) else mask
            asked = torch.arange(count, device=query.device) >= left_out
            valid = asked.expand(len(query), count) if valid is None else valid & asked
        pairwise = None
        if position_bias is not None or isinstance(mask, Tensor):
            pairwise = pairwise_of(mask, position_bias, count, self.seen)
            valid = pairwise.present(start) if valid is None else valid
        chunk = Chunk(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), valid=valid
        )
        given = Given(self._scheme(), softcap, s_aux is not None, pairwise is not None)
        layer = self._layer_with(scaling, given.simplest)
        if self.state is None:
            self.state = layer.init(like=chunk, chunk=self.memory.chunk)
        elif self.state.kv.key.device != key.device:
            self._map(lambda leaf: leaf.to(key.device))
        self.state = writable(self.state)
        if own:
            self._snapshots = []
        outputs = []
        length = self.memory.chunk
        if layer.kv_memory.present == "compete":
            length = min(length, layer.kv_memory.size)
        for number, first in enumerate(range(0, count, length)):
            piece = _piece(chunk, first, min(first + length, count))
            state = self.state if own else self._snapshots[number]
            with head_group(group):
                output = self._step(layer, state, piece, start + first, own, s_aux, pairwise)
            check_agreement(group, layer.kv_memory, self.state.kv)
            outputs.append(output)
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return output[:, left_out:].contiguous()

    def _layer_with(self, scaling: float | None, encoding: Encoding) -> AttendreLayer:
        """Return the layer; a new one only if something changed."""
        if self.layer is None or (self.layer.kv_memory.scale, self.layer.encoding) != (
            scaling,
            encoding,
        ):
            self.layer = AttendreLayer(
                kv_memory=with_scale(self.memory.kv_memory(self.number), scaling),
                top_k=self.memory.top_k_of(self.number),
                causal=True,
                trace=self._traced,
                encoding=encoding,
            )
        return self.layer

    def _step(
        self,
        layer: AttendreLayer,
        state: LayerState,
        chunk: Chunk,
        start: int,
        own: bool,
        sink: Tensor | None,
        pairwise: Pairwise | None,
    ) -> Tensor:
        """Step the memory with one piece; ``own`` is False if its keys were inserted already."""
        count = chunk.key.shape[1]
        position = None
        if pairwise is not None:
            index = torch.arange(start, start + count, dtype=torch.int32, device=chunk.key.device)
            position = index.expand(chunk.key.shape[0], count)
            pairwise = pairwise.rows(start, count, chunk.valid)
        if self.plain and self.rope is not None:
            flags = torch.ones_like(chunk.key[:, :, 0, 0], dtype=torch.int32)
            flags = flags if chunk.valid is None else chunk.valid.to(torch.int32)
            flags = flags.cumsum(1, dtype=torch.int32)
            # Keys that were inserted already are counted already.
            clock = state.kv.clock[:, None] if own else state.kv.clock[:, None] - flags[:, -1:]
            at = (clock + flags - 1)[:, :, None]
            query, key = (_turned_back(self.rope, x, at) for x in (chunk.query, chunk.key))
            chunk = chunk._replace(query=query, key=key)
        chunk = chunk._replace(position=position)
        params = (None, sink, pairwise)
        if not own:  # a layer that shares the keys of another one
            kv, output = layer.kv_memory.attend(
                state.kv, chunk.query, position, chunk.valid, layer.top_k, True,
                encoding=layer.encoding, encoding_params=params,
            )  # fmt: skip
            if state is self.state:  # the last piece; its scores count
                self.state = self._snapshots[-1] = LayerState(kv, None)
            return output
        donate = self._siblings is None and not torch.is_grad_enabled()
        self.state, out = layer.step(state, chunk, encoding_params=params, donate=donate)
        if self._siblings is not None:
            self._snapshots.append(self.state)
        if out.trace is not None:
            self.steps.append(tree_map(torch.Tensor.detach, out.trace))
        return out.value

    def check_attended(self) -> None:
        """Raise if keys and values arrived, but the model did not let us attend."""
        if self._waiting:
            raise StateError(
                f"AttendreCache: the model attends by itself in layer {self.number}, not through "
                "the attention implementation that the cache set, so its outputs are wrong. "
                "Was set_attn_implementation called since the cache was made? Make a new cache."
            )

    # ---------------------------------------------------------------- positions

    def _scheme(self) -> Encoding:
        """Return the position scheme, taking the model's rotation off where it is another one."""
        settings = self.memory.positions
        if self.rope is None or (settings == "model" and not self.memory.compresses):
            return NoPosition()
        numbered = settings == "in-cache"
        beyond = settings != "model" and self.trained is not None and self.seen > self.trained
        tiers = (tier.memory.policy for tier in self.memory.tiers)
        compared = self.memory.compresses or any(
            getattr(policy, "compares_keys", False)
            for policy in (self.memory.policy_of(self.number), *tiers)
        )
        if not self.plain and (numbered or beyond or compared):
            self.plain = True
            if self.state is not None:
                kv = self.state.kv
                at = kv.position if kv.position.ndim == 3 else kv.position[:, None, :]
                self.state = LayerState(kv._replace(key=_turned_back(self.rope, kv.key, at)), None)
        if not self.plain:
            return NoPosition()
        if not (numbered or beyond):
            return self.rope
        return InCache(self.rope) if numbered else LMInfinite(self.trained or 0, rope=self.rope)

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state = tree_map(change, self.state)


#: Layers with states of linear attention, alone and beside keys and values; transformers before
#: 5.3, which kvpress needs, has none.
_Linear: Any = getattr(cache_utils, "LinearAttentionLayer", object)
_LinearAndFull: Any = getattr(cache_utils, "LinearAttentionAndFullAttentionLayer", object)


class HybridMemoryLayer(MemoryLayer, _LinearAndFull):  # type: ignore[misc]
    """A memory beside the states of linear attention, which are of fixed size anyway.

    Parameters
    ----------
    number, memory, trace
        As in `MemoryLayer`.
    like
        The layer that it replaces.
    """

    def __init__(self, number: int, memory: MemoryConfig, trace: bool, like: Any) -> None:
        MemoryLayer.__init__(self, number, memory, trace)
        self.__dict__.update(like.__dict__)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Make the states of linear attention; those of the memory are made later."""
        if kwargs:
            _Linear.lazy_initialization(self, **kwargs)

    def reset(self) -> None:
        """Forget everything."""
        _Linear.reset(self)
        MemoryLayer.reset(self)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make row ``beam_idx[i]`` row i."""
        _Linear.reorder_cache(self, beam_idx)
        MemoryLayer.reorder_cache(self, beam_idx)


def _turned_back(rope: RoPE, x: Tensor, position: Tensor) -> Tensor:
    """Take the rotation off queries or keys."""
    exact = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    rotated: Tensor = rope.rotate(exact, -position)
    return rotated.to(x.dtype)


def _piece(chunk: Chunk, first: int, last: int) -> Chunk:
    if first == 0 and last == chunk.key.shape[1]:
        return chunk
    piece: Chunk = tree_map(lambda leaf: leaf[:, first:last], chunk)
    return piece
