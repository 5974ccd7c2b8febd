"""`probe` of layers and stacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from attendre_core import checks
from attendre_core.backend import Array
from attendre_core.errors import ConfigError
from attendre_core.joint.beside import Beside
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.policies.base import Policy, Stored
from attendre_core.positions.base import Encoding
from attendre_core.positions.in_cache import InCache

__all__ = ["ProbedLayer", "ProbedStack", "probe_block"]

State = TypeVar("State")


class ProbedLayer:
    """What a layer with a key-value memory needs to be probed."""

    kv_memory: KeyValueMemory
    top_k: int | None
    causal: bool
    encoding: Encoding

    def probe(
        self,
        state: State,
        query: Array,
        key: Array | None = None,
        value: Array | None = None,
        position: Array | None = None,
        valid: Array | None = None,
        *,
        document: Array | None = None,
        encoding_params: Any = None,
        policy: Policy | None = None,
        policy_params: Any = None,
    ) -> tuple[State, Array]:
        """Let queries attend and the policy score what they attend to; insert nothing.

        The queries do not wait. Of the state, only the scores, which entries were observed, and
        the policy's own state change: positions, entries and waiting queries are as before.

        Parameters
        ----------
        query
            (batch, seq, heads, head_dim).
        key, value
            (batch, seq, kv_heads, dim): the probe's own tokens, which its queries see beside the
            memory as they see stored ones (a causal layer: their past); None: the memory alone.
        position, valid
            As in `Chunk`; None continues counting from what was read.
        document
            int32, (batch, seq): attend only to stored entries of the same document.
        encoding_params, policy_params
            As in `step`.
        policy
            Scores the entries this time, in place of the memory's policy, which ranks them later
            as it ranks its own scores. It may not have a state of its own.

        Returns
        -------
        state
            With updated scores.
        output
            (batch, seq, heads, value_dim).

        Examples
        --------
        >>> import numpy as np
        >>> import attendre_core as at
        >>> layer = at.AttendreLayer(at.KeyValueMemory(2, at.LRA("sum", score="softmax")))
        >>> state = layer.init(batch=1, heads=1, head_dim=2)
        >>> read = np.asarray([[[[1.0, 0.0]], [[0.0, 1.0]]]], dtype=np.float32)
        >>> state, _ = layer.step(state, at.Chunk(read, read, read))
        >>> state, output = layer.probe(state, 9 * read[:, 1:])
        >>> sorted(zip(state.kv.position[0].tolist(), state.kv.score[0].round(2).tolist()))
        [(0, 0.0), (1, 1.0)]
        >>> state.kv.clock.tolist()
        [2]
        """
        where, kv = "AttendreLayer.probe", state.kv  # type: ignore[attr-defined]
        if (key is None) != (value is None):
            raise ConfigError(f"{where}: give keys and values of the probe's tokens, or neither.")
        if key is not None and isinstance(self.encoding, InCache):
            raise ConfigError(
                f"{where}: in-cache positions count what is stored, and the probe's own tokens are "
                "not. Use the model's positions, or probe with queries alone."
            )
        if position is None:
            position = checks.numbered(kv.clock, valid, query)
        memory = self.kv_memory
        if policy is not None:
            if policy.init(Stored(*kv[:10])) is not None:
                raise ConfigError(
                    f"{where}: policy is {policy!r}, which keeps a state of its own. Probe with "
                    "one that only observes, such as LRA('max', score='softmax')."
                )
            memory = replace(memory, policy=policy)
        beside = None if key is None or value is None else Beside(key, value, valid, position)
        seen, output = memory.attend(
            kv, query, position, valid, self.top_k, self.causal, encoding=self.encoding,
            encoding_params=encoding_params, policy_params=policy_params, document=document,
            beside=beside,
        )  # fmt: skip
        kv = kv._replace(score=seen.score, observed=seen.observed)
        if policy is None:
            kv = kv._replace(policy_state=seen.policy_state)
        return state._replace(kv=kv), output  # type: ignore[attr-defined]


def probe_block(
    layer: ProbedLayer,
    block: Any,
    state: State,
    flow: tuple[Array, Array, Array],
    *,
    policy: Policy | None = None,
    stored: bool = False,
    donate: bool = False,
) -> tuple[State, Array]:
    """Send a probe, (x, position, valid), through one layer: project, attend, finish.

    ``donate`` tells those who compile this that ``state`` will not be used again.
    """
    x, position, valid = flow
    params = getattr(block, "encoding_params", None)
    query, key, value = block.project(x, position)
    if stored:
        key = value = None
    state, attended = layer.probe(
        state, query, key, value, position, valid, encoding_params=params, policy=policy
    )
    return state, block.finish(attended, x)


class ProbedStack:
    """What a stack of layers needs to be probed."""

    layers: tuple[Any, ...]
    run_layer: Callable[..., Any]

    def probe(
        self,
        state: tuple[State, ...],
        blocks: Sequence[Any],
        x: Array,
        position: Array | None = None,
        valid: Array | None = None,
        *,
        policy: Policy | None = None,
        stored: bool = False,
        donate: bool = False,
    ) -> tuple[tuple[State, ...], Array]:
        """Send a probe through all layers, which attend and score and insert nothing.

        Its tokens see each other beside each layer's memory. No query waits: a layer above a Q
        memory holds what came out of the layers below, and that is what the probe sees of it.

        Parameters
        ----------
        state, blocks, x, position, valid
            As in `Stack.step`.
        policy
            As in `AttendreLayer.probe`.
        stored
            The memories hold these tokens already, so they are asked again: each layer is probed
            with their queries alone.
        donate
            The caller will not use ``state`` again.

        Returns
        -------
        state
            With updated scores.
        x
            (batch, seq, C): the output of the last layer.
        """
        shape = (x.shape[0], x.shape[1])
        valid = checks.flags("Stack.probe", "valid", valid, shape, x, default=True)
        if position is None:
            first: Any = state[0]
            position = checks.numbered(first.kv.clock, valid, x)
        states = []
        for layer, block, part in zip(self.layers, blocks, state, strict=True):
            part, x = self.run_layer(
                probe_block, layer, block, part, (x, position, valid),
                policy=policy, stored=stored, donate=donate,
            )  # fmt: skip
            states.append(part)
        return tuple(states), x
