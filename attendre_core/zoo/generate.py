"""Generate text from the logits of the last token: greedy, sampled, or by beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from attendre_core import checks
from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.zoo.architectures.base import EncoderDecoder
from attendre_core.zoo.sampling import Chooser, Sampling, candidates, log_softmax
from attendre_core.zoo.writer import Writer

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["OnToken", "Sampling", "cut_text", "generate", "log_softmax"]

#: Called with the row, the new token, and the text of the row so far.
OnToken = Callable[[int, int, str], None]


def generate(
    model: Model,
    start: Callable[[int], tuple[Writer, Any]],
    max_new_tokens: int = 32,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    beams: int = 1,
    length_penalty: float = 1.0,
    stop: Sequence[str] = (),
    on_token: OnToken | None = None,
) -> list[list[int]]:
    """Continue every row of what was read, and return the new token ids of each row.

    Parameters
    ----------
    start
        Called with the maximum number of tokens; returns a writer and the logits of the first
        token, (batch, vocabulary), on the device.
    max_new_tokens, temperature, top_p, top_k, seed, beams, length_penalty, stop, on_token
        As in `Model.generate`.
    """
    where = "Model.generate"
    sampling = Sampling(temperature, top_p, top_k)
    checks.whole_number(where, "max_new_tokens", max_new_tokens, least=1, hint="32 is the default.")
    checks.whole_number(where, "beams", beams, least=1, hint="1 is no beam search.")
    if beams > 1 and temperature:
        raise ConfigError(
            f"{where}: beams is {beams} and temperature {temperature}. Beams look for the "
            "likeliest text: leave the temperature at 0."
        )
    architecture = model.architecture
    if architecture.kind == "encoder":
        raise ConfigError(f"{where}: an encoder writes nothing. Use encode.")
    ending = Ending(
        max_new_tokens, model.end, tuple(stop), None if model.tokenizer is None else model.text
    )
    never = architecture.never if isinstance(architecture, EncoderDecoder) else ()
    if stop:
        model.require_tokenizer("generate")
    writer, logits = start(max_new_tokens)
    if beams > 1:
        return _by_beams(writer, logits, ending, beams, length_penalty, never)
    choose = Chooser(model.library, sampling, seed, never)
    return _by_rows(writer, logits, ending, choose, on_token)


def cut_text(text: str, stop: Sequence[str]) -> str:
    """Cut a text before the first of the strings that end it.

    Examples
    --------
    >>> cut_text("one. two. three", [".", "two"])
    'one'
    """
    places = [text.find(word) for word in stop if word in text]
    return text[: min(places)] if places else text


@dataclass(frozen=True)
class Ending:
    """When a text ends.

    Attributes
    ----------
    limit
        Maximum number of new tokens.
    end
        Token ids that end a text and are not part of it.
    stop
        Strings that end a text, which is cut before them.
    decode
        Turns token ids into text; needed for ``stop``.
    """

    limit: int
    end: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens; empty without a tokenizer."""
        return "" if self.decode is None else self.decode(tokens)

    def stopped(self, tokens: Sequence[int]) -> bool:
        """Whether the text contains one of the strings that end it."""
        return bool(self.stop) and any(word in self.text(tokens) for word in self.stop)


def next_ids(writer: Writer, choose: Chooser, ids: Array, active: Any) -> Array:
    """Write a token to each active row and choose the next ones, all on the device.

    Parameters
    ----------
    ids
        int32, (batch,): the tokens, on the device.
    active
        NumPy, (batch,): which rows go on.
    """
    return choose(writer.step(ids, active))


def _by_rows(
    writer: Writer, logits: Array, ending: Ending, choose: Chooser, on_token: OnToken | None
) -> list[list[int]]:
    """Continue every row until it ends; ``logits`` are those of the next token, (batch, vocab)."""
    rows: list[list[int]] = [[] for _ in range(logits.shape[0])]
    active = np.ones(len(rows), dtype=bool)
    ids = choose(logits)
    for step in range(ending.limit):
        # One token id per row: nothing else comes back from the device.
        tokens = np.asarray(backend_of(ids).to_numpy(ids)).tolist()
        for row in np.flatnonzero(active).tolist():
            token = tokens[row]
            if token in ending.end:
                active[row] = False
                continue
            rows[row].append(token)
            if on_token is not None:
                # The last bytes may be the beginning of a character that is not complete yet.
                so_far = ending.text(rows[row]).rstrip("\N{REPLACEMENT CHARACTER}")
                on_token(row, token, so_far)
            active[row] = not ending.stopped(rows[row])
        if not active.any() or step + 1 == ending.limit:
            break
        ids = next_ids(writer, choose, ids, active)
    return rows


@dataclass
class _Beams:
    """The finished beams of one text, best first."""

    width: int
    penalty: float
    done: list[tuple[float, list[int]]] = field(default_factory=list)

    def add(self, total: float, tokens: list[int], length: int) -> None:
        """Add a finished text and keep the best ones."""
        self.done.append((total / max(length, 1) ** self.penalty, tokens))
        self.done.sort(key=lambda pair: -pair[0])
        del self.done[self.width :]

    def is_over(self, best_alive: float, length: int) -> bool:
        """Whether no unfinished beam can beat the worst finished one."""
        if len(self.done) < self.width:
            return False
        return bool(self.done[-1][0] >= best_alive / max(length, 1) ** self.penalty)


def _by_beams(
    writer: Writer,
    logits: Array,
    ending: Ending,
    width: int,
    penalty: float,
    never: tuple[int, ...],
) -> list[list[int]]:
    """Continue every row with the likeliest text that a search with ``width`` beams finds.

    Parameters
    ----------
    logits
        Of the next token, (batch, vocabulary), on the device.
    penalty
        Sums of log-probabilities are divided by length ** penalty.
    never
        Token ids that are never chosen.
    """
    batch, vocabulary = logits.shape
    model, count = writer.model, width * (1 + max(len(ending.end), 1))
    every = np.repeat(np.arange(batch), width)
    writer.reorder(every)
    logits = model.backend.xp.take(logits, model.array(every), axis=0)
    texts: list[list[list[int]]] = [[[] for _ in range(width)] for _ in range(batch)]
    totals = np.full((batch, width), -np.inf)
    totals[:, 0] = 0.0
    beams = [_Beams(width, penalty) for _ in range(batch)]
    over = np.zeros(batch, dtype=bool)
    for step in range(ending.limit):
        chances, ids = (
            each.reshape(batch, width, -1)
            for each in candidates(model.library, logits, count, never)
        )
        scores = totals[:, :, None] + chances
        places = np.arange(width)[:, None] * vocabulary + ids
        source = np.zeros((batch, width), dtype=np.int64)
        tokens = np.zeros((batch, width), dtype=np.int32)
        for row in np.flatnonzero(~over).tolist():
            flat, place = scores[row].reshape(-1), places[row].reshape(-1)
            kept: list[tuple[float, int, int, list[int]]] = []
            for one in np.lexsort((place, -flat))[:count].tolist():
                total = float(flat[one])
                beam, token = divmod(int(place[one]), vocabulary)
                text = texts[row][beam]
                if total == -np.inf:
                    continue
                if token in ending.end:
                    if len(kept) < width:
                        beams[row].add(total, text, step + 1)
                    continue
                if len(kept) == width:
                    break
                if ending.stopped([*text, token]):
                    beams[row].add(total, [*text, token], step + 1)
                    continue
                kept.append((total, beam, token, [*text, token]))
            if not kept or beams[row].is_over(kept[0][0], step + 1):
                over[row] = True
                continue
            totals[row] = -np.inf
            for i, (total, beam, token, text) in enumerate(kept):
                totals[row, i], source[row, i], tokens[row, i] = total, beam, token
                texts[row][i] = text
        if over.all() or step + 1 == ending.limit:
            break
        writer.reorder((np.arange(batch)[:, None] * width + source).reshape(-1))
        logits = writer.step(model.array(tokens.reshape(-1)), np.repeat(~over, width))
    for row in range(batch):
        if not over[row]:
            for i in range(width):
                if totals[row, i] > -np.inf:
                    beams[row].add(float(totals[row, i]), texts[row][i], len(texts[row][i]))
    return [b.done[0][1] if b.done else [] for b in beams]
