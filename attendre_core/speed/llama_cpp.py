"""llama.cpp as a peer, through the package xllamacpp, which needs no compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from attendre_core.speed.timing import seconds, thread_count

__all__ = ["LlamaCpp"]

#: Only errors are logged.
_QUIET = 1


class LlamaCpp:
    """A GGUF model in llama.cpp, with a cache that holds everything.

    The server of llama.cpp runs inside this process, so its processor time is counted. It keeps
    what it has read: a prompt that continues the last one is read from where that ended.

    Parameters
    ----------
    file
        The model.
    context
        The largest number of tokens in the cache.
    chunk
        Tokens in a batch.
    """

    def __init__(self, file: Path, context: int, chunk: int) -> None:
        package: Any = import_module("xllamacpp")
        params = package.CommonParams()
        params.model.path = str(file)
        params.n_ctx, params.n_batch, params.n_ubatch = context, chunk, chunk
        params.n_parallel, params.warmup, params.verbosity = 1, False, _QUIET
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = thread_count()
        self._server = package.Server(params)

    def read(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Read the part of a prompt that continues the last one."""
        return self.written(tokens, 0)

    def written(self, tokens: Sequence[int], count: int) -> dict[str, Any]:
        """Read a prompt and write this many tokens after it; return what llama.cpp counted."""
        answer = self._server.handle_completions(
            {
                "prompt": list(tokens), "n_predict": count, "max_tokens": count,
                "temperature": 0.0, "cache_prompt": True, "ignore_eos": True,
            }
        )  # fmt: skip
        timings: dict[str, Any] = answer["timings"]
        return timings

    def seconds_per_token(self, tokens: Sequence[int], count: int) -> float:
        """Return the time to write one token after a prompt that was read already."""

        def writing(number: int) -> Callable[[], Any]:
            return lambda: self.written(tokens, number)

        # Both read the last token of the prompt again.
        return (seconds(writing(1 + count)) - seconds(writing(1))) / count
