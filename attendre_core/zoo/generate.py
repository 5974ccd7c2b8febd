"""From the logits of the last token to a text: greedily, sampled, or by beam search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.zoo.architectures.base import EncoderDecoder
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
    """Continue every row of what was read; the new token ids of each.

    Parameters
    ----------
    start
        Takes the most tokens there will be, and returns a writer and the logits of the first
        token, (batch, vocabulary).
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
        max_new_tokens, model.end, tuple(stop),
        architecture.never if isinstance(architecture, EncoderDecoder) else (),
        None if model.tokenizer is None else model.text,
    )  # fmt: skip
    if stop:
        model.require_tokenizer("generate")
    writer, logits = start(max_new_tokens)
    if beams > 1:
        return _by_beams(writer, logits, ending, beams, length_penalty)
    return _by_rows(writer, logits, ending, sampling, seed, on_token)


def cut_text(text: str, stop: Sequence[str]) -> str:
    """Cut a text before the first thing to stop at.

    Examples
    --------
    >>> cut_text("one. two. three", [".", "two"])
    'one'
    """
    places = [text.find(word) for word in stop if word in text]
    return text[: min(places)] if places else text


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Parameters
    ----------
    temperature
        0 always takes the likeliest token.
    top_p
        Only the likeliest tokens whose probabilities add up to this.
    top_k
        Only this many of the likeliest tokens; None = all.

    Examples
    --------
    >>> import numpy as np
    >>> Sampling().choose(np.asarray([0.0, 2.0, 1.0]), np.random.default_rng(0))
    1
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(
                f"generate: temperature is {self.temperature}, expected 0 (always the likeliest "
                "token) or a positive number such as 0.7."
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"generate: top_p is {self.top_p}, expected more than 0, at most 1.")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"generate: top_k is {self.top_k}, expected at least 1, or None.")

    def choose(self, logits: Any, rng: np.random.Generator) -> int:
        """Choose from logits (vocabulary,)."""
        if self.temperature == 0:
            return int(np.argmax(logits))
        order = np.argsort(-logits, kind="stable")
        if self.top_k is not None:
            order = order[: self.top_k]
        probability = np.exp(log_softmax(logits[order].astype(np.float64) / self.temperature))
        # The token that reaches top_p is still one of them.
        inside = np.cumsum(probability) - probability < self.top_p
        cumulative = np.cumsum(probability[inside])
        place = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
        return int(order[inside][min(place, len(cumulative) - 1)])


def log_softmax(logits: Any) -> Any:
    """Return log-probabilities along the last axis."""
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


@dataclass(frozen=True)
class Ending:
    """When a text is over.

    Attributes
    ----------
    limit
        New tokens at most.
    end
        Token ids that end a text; they are not part of it.
    stop
        Texts that end it; it is cut before them.
    never
        Token ids that must not be chosen.
    decode
        Turns token ids into text; needed for ``stop``.
    """

    limit: int
    end: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    never: tuple[int, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens, empty without a tokenizer."""
        return "" if self.decode is None else self.decode(tokens)

    def stopped(self, tokens: Sequence[int]) -> bool:
        """Whether the text contains something to stop at."""
        return bool(self.stop) and any(word in self.text(tokens) for word in self.stop)

    def without(self, logits: Any) -> Any:
        """Make what must not be chosen impossible."""
        if self.never:
            logits = np.array(logits)
            logits[..., list(self.never)] = -np.inf
        return logits


def _by_rows(
    writer: Writer,
    logits: Any,
    ending: Ending,
    sampling: Sampling,
    seed: int,
    on_token: OnToken | None,
) -> list[list[int]]:
    """Continue every row until it ends; ``logits`` are those of the next token, (batch, vocab)."""
    rows: list[list[int]] = [[] for _ in range(len(logits))]
    # Each row has its own numbers, so that a text does not depend on its neighbours.
    chance = [np.random.default_rng((seed, row)) for row in range(len(rows))]
    active = np.ones(len(rows), dtype=bool)
    for step in range(ending.limit):
        tokens = np.zeros(len(rows), dtype=np.int32)
        logits = ending.without(logits)
        for row in np.flatnonzero(active).tolist():
            token = sampling.choose(logits[row], chance[row])
            tokens[row] = token
            if token in ending.end:
                active[row] = False
                continue
            rows[row].append(token)
            if on_token is not None:
                # The last bytes may be the beginning of a character that is not there yet.
                so_far = ending.text(rows[row]).rstrip("\N{REPLACEMENT CHARACTER}")
                on_token(row, token, so_far)
            active[row] = not ending.stopped(rows[row])
        if not active.any() or step + 1 == ending.limit:
            break
        logits = writer.write(tokens, active)
    return rows


@dataclass
class _Beams:
    """The beams of one text: finished ones, best first, and the scores of those alive."""

    width: int
    penalty: float
    done: list[tuple[float, list[int]]] = field(default_factory=list)

    def add(self, total: float, tokens: list[int], length: int) -> None:
        """Keep a finished text if it is among the best."""
        self.done.append((total / max(length, 1) ** self.penalty, tokens))
        self.done.sort(key=lambda pair: -pair[0])
        del self.done[self.width :]

    def is_over(self, best_alive: float, length: int) -> bool:
        """Whether no beam that is alive can become better than the worst finished one."""
        if len(self.done) < self.width:
            return False
        return bool(self.done[-1][0] >= best_alive / max(length, 1) ** self.penalty)


def _by_beams(
    writer: Writer, logits: Any, ending: Ending, width: int, penalty: float
) -> list[list[int]]:
    """Continue every row with the likeliest text that ``width`` beams find.

    Parameters
    ----------
    logits
        Of the next token, (batch, vocabulary).
    penalty
        Sums of log-probabilities are divided by length ** penalty.
    """
    batch, vocabulary = logits.shape
    writer.reorder(np.repeat(np.arange(batch), width))
    texts: list[list[list[int]]] = [[[] for _ in range(width)] for _ in range(batch)]
    totals = np.full((batch, width), -np.inf)
    totals[:, 0] = 0.0
    logits = np.repeat(logits, width, axis=0)
    beams = [_Beams(width, penalty) for _ in range(batch)]
    over = np.zeros(batch, dtype=bool)
    for step in range(ending.limit):
        # What must not be chosen keeps its share of the probability, as others count it.
        chance = ending.without(log_softmax(logits.astype(np.float64)))
        scores = totals[:, :, None] + chance.reshape(batch, width, vocabulary)
        source = np.zeros((batch, width), dtype=np.int64)
        tokens = np.zeros((batch, width), dtype=np.int32)
        for row in np.flatnonzero(~over).tolist():
            flat = scores[row].reshape(-1)
            best = np.argsort(-flat, kind="stable")[: width * (1 + max(len(ending.end), 1))]
            kept: list[tuple[float, int, int, list[int]]] = []
            for place in best:
                beam, token = divmod(int(place), vocabulary)
                text = texts[row][beam]
                if flat[place] == -np.inf:
                    continue
                if token in ending.end:
                    if len(kept) < width:
                        beams[row].add(float(flat[place]), text, step + 1)
                    continue
                if len(kept) == width:
                    break
                if ending.stopped([*text, token]):
                    beams[row].add(float(flat[place]), [*text, token], step + 1)
                    continue
                kept.append((float(flat[place]), beam, token, [*text, token]))
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
        logits = writer.write(tokens.reshape(-1), np.repeat(~over, width))
    for row in range(batch):
        if not over[row]:
            for i in range(width):
                if totals[row, i] > -np.inf:
                    beams[row].add(float(totals[row, i]), texts[row][i], len(texts[row][i]))
    return [b.done[0][1] if b.done else [] for b in beams]
