"""A reader without a limit: its memories grow with the input, and nothing is ever evicted."""

from __future__ import annotations

from typing import Any

from attendre_core.backend import Array
from attendre_core.memory.state import grown
from attendre_core.policies import FIFO
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.architectures.base import Params, Part
from attendre_core.zoo.reader import Hidden, Reader, States
from attendre_core.zoo.stacks import ModelStack, full_stack

__all__ = ["GrowingReader"]

_FIRST_SIZE = 512


class GrowingReader(Reader):
    """Full causal attention, chunk by chunk."""

    def __init__(
        self, part: Part, params: Params, library: str, dtype: str, chunk: int = 256
    ) -> None:
        memory = MemoryConfig(policy=FIFO(), kv_size=chunk, chunk=chunk, positions="model")
        super().__init__(part, params, memory, library, dtype, causal=True)
        self._size = _FIRST_SIZE

    def stack(self, length: int) -> ModelStack:
        """Return layers that hold at least ``length`` positions."""
        while self._size < length:
            self._size *= 2
        return full_stack(self.part, self._size, self.library)

    def read(
        self, state: States, tokens: Any, position: Any, valid: Any, *, donate: bool = True
    ) -> tuple[States, Hidden]:
        """Make room for the chunk and read it."""
        # Rows may be at different places; the memory counts the entries of the fullest one.
        self.stack(int(position.max()) + 1)
        return super().read(self.fitted(state), tokens, position, valid, donate=donate)

    def fitted(self, state: States) -> States:
        """Give states as many slots as the layers have now."""
        missing = self._size - state[0].kv.key.shape[2]
        if missing <= 0:
            self._size = max(self._size, state[0].kv.key.shape[2])
            return state
        return tuple(part._replace(kv=grown(part.kv, missing)) for part in state)

    def filled(self, entries: list[tuple[Array, Array]], valid: Array) -> States:
        """Make states that hold the entries of a whole input, as if it had been read."""
        self._size = max(int(valid.shape[1]), 1)
        stack = self.stack(self._size)
        states = []
        for layer, state, (key, value) in zip(
            stack.layers, self.start(valid.shape[0]), entries, strict=True
        ):
            kv, _ = layer.kv_memory.insert(state.kv, key, value, valid=valid)
            states.append(state._replace(kv=kv))
        return tuple(states)
