"""Read one text with several memories and record each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import system
from attendre_core.evaluation.tracing.record import PolicyTrace, TextTrace
from attendre_core.evaluation.tracing.recorder import Recorder
from attendre_core.evaluation.tracing.words import Naming, one_line, pieces_of
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.generate import log_softmax
from attendre_core.zoo.model import Model
from attendre_core.zoo.stream import Stream

__all__ = ["trace_text"]

#: Number of likeliest next words to keep.
_NEXT = 3
#: Tokens read between two reports of progress.
_PIECE = 64


def trace_text(
    model: Model,
    tokens: Sequence[int],
    memories: Mapping[str, MemoryConfig],
    *,
    layers: Sequence[int] | None = None,
    naming: Naming | None = None,
    words: Sequence[str] | None = None,
    title: str = "",
    answer: str | None = None,
    full: bool = False,
    on_read: Callable[[int], object] | None = None,
) -> TextTrace:
    """Read a text with each memory and record what it holds.

    Parameters
    ----------
    model
        The model; its own memory setting is ignored.
    tokens
        Token ids of the text.
    memories
        Memories by the names to show for them.
    layers
        Numbers of the layers to record; None records all.
    naming
        Returns the text to show for each token; None uses the model's tokenizer.
    words
        What was read, a word for each token, if ``naming`` cannot tell it from the tokens.
    title
        Title of the trace.
    answer
        The right next word, if it is known.
    full
        True adds full attention to the memories, as ``"full"``.
    on_read
        Called with the number of tokens just read, for a progress bar.

    Examples
    --------
    >>> import attendre_core as at
    >>> from attendre_core.evaluation import load_tiny
    >>> from attendre_core.evaluation.tasks import LookAhead, word
    >>> (document,) = LookAhead().documents(seed=0, count=1, chunks=(4, 4))
    >>> trace = trace_text(
    ...     load_tiny("prefix-lm"), document.tokens, {"MT": at.preset("MT", 32, chunk=16)},
    ...     naming=lambda tokens: [word(token) for token in tokens],
    ... )
    >>> layer = trace.policies[0].layers[0]
    >>> layer.survivors.tolist() == list(range(32, 64)), layer.map().shape
    (True, (4, 64))
    """
    ids = [int(token) for token in tokens]
    if not ids:
        raise ConfigError("trace: the text has no tokens, expected at least one.")
    if full:
        chunk = next(iter(memories.values())).chunk if memories else 64
        whole = system("full", chunk, chunk=chunk).memory_for(len(ids), causal=model.causal)
        memories = {**memories, "full": whole}
    if not memories:
        raise ConfigError("trace: no memories, expected at least one, e.g. at.preset('MT', 256).")
    count = model.reading_part.layers
    wanted = tuple(range(count)) if layers is None else tuple(sorted(set(layers)))
    for number in wanted:
        if not 0 <= number < count:
            raise ConfigError(
                f"trace: layer {number} does not exist; the model has layers 0 to {count - 1}."
            )
    if words is not None and len(words) != len(ids):
        raise ConfigError(f"trace: there are {len(words)} words, expected {len(ids)}, one a token.")
    names = naming or (lambda some: pieces_of(model.text, some))
    traces = []
    for name, memory in memories.items():
        recorder = Recorder(len(ids), wanted, model.reading_part.window)
        stream = model.with_memory(memory).stream(observer=recorder)
        for start in range(0, len(ids), _PIECE):
            stream.feed(ids[start : start + _PIECE])
            if on_read is not None:
                on_read(len(ids[start : start + _PIECE]))
        stream.finish()
        layers_seen, steps = recorder.layer_traces(), recorder.step + 1
        # Predicting the next word comes last, because it is not a step of reading.
        traces.append(
            PolicyTrace(
                name, memory, layers_seen, steps, _next_words(model, stream, names),
                full and name == "full",
            )
        )  # fmt: skip
    return TextTrace(title, tuple(names(ids) if words is None else words), tuple(traces), answer)


def _next_words(model: Model, stream: Stream, naming: Naming) -> tuple[tuple[str, float], ...]:
    """Return the likeliest next words with their probabilities; none for an encoder."""
    if model.architecture.kind == "encoder":
        return ()
    logits = np.asarray(model.backend.to_numpy(stream.next_logits()), dtype=np.float64)[0]
    checks.finite_logits("trace", logits)
    share = np.exp(log_softmax(logits))
    best = np.argsort(-share, kind="stable")[:_NEXT]
    words = [one_line(naming([int(token)])[0]) or f"token {token}" for token in best]
    return tuple(zip(words, share[best].tolist(), strict=True))
