"""Generate text from the logits of the last token: greedy, sampled, or by beam search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attendre_core import checks
from attendre_core.errors import ConfigError
from attendre_core.zoo.architectures.base import EncoderDecoder
from attendre_core.zoo.pieces import Pieces, stop_strings
from attendre_core.zoo.writer import Writer

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["OnToken", "Sampling", "Written", "generate", "log_softmax", "written"]

_WHERE = "Model.generate"
#: Called with the row, the new token, and the new piece of text.
OnToken = Callable[[int, int, str], None]


class Written(NamedTuple):
    """A token that was generated.

    Attributes
    ----------
    row, token
        The row that it belongs to, and its id.
    piece
        The text that is certain with it; see `Pieces`.
    end
        Whether it ends the text of its row and is not part of it.
    """

    row: int
    token: int
    piece: str
    end: bool


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
        token, (batch, vocabulary).
    max_new_tokens, temperature, top_p, top_k, seed, beams, length_penalty, stop, on_token
        As in `Model.generate`.
    """
    checks.whole_number(_WHERE, "beams", beams, least=1, hint="1 is no beam search.")
    if beams > 1:
        if temperature:
            raise ConfigError(
                f"{_WHERE}: beams is {beams} and temperature {temperature}. Beams look for the "
                "likeliest text: leave the temperature at 0."
            )
        ending = _ending(model, max_new_tokens, stop)
        return _by_beams(*start(max_new_tokens), ending, beams, length_penalty)
    rows: dict[int, list[int]] = {}
    for row, token, piece, end in written(
        model, start, max_new_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed,
        stop=stop, text=on_token is not None,
    ):  # fmt: skip
        rows.setdefault(row, [])
        if not end:
            rows[row].append(token)
        if on_token is not None and (piece or not end):
            on_token(row, token, piece)
    return [rows[row] for row in sorted(rows)]


def written(
    model: Model,
    start: Callable[[int], tuple[Writer, Any]],
    max_new_tokens: int = 32,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    stop: Sequence[str] = (),
    text: bool = True,
) -> Iterator[Written]:
    """Yield every token as it is chosen, the rows in turn; parameters as in `generate`.

    Settings are checked at once; reading and writing begin with the first token that is asked
    for.

    Parameters
    ----------
    text
        Whether pieces of text are wanted; without them, texts are decoded only for ``stop``.
    """
    sampling = Sampling(temperature, top_p, top_k)
    ending = _ending(model, max_new_tokens, stop)
    decode = ending.decode if text or stop else None

    def begun() -> Iterator[Written]:
        yield from _by_rows(*start(max_new_tokens), ending, sampling, seed, decode)

    return begun()


def _ending(model: Model, max_new_tokens: int, stop: Sequence[str]) -> Ending:
    checks.whole_number(
        _WHERE, "max_new_tokens", max_new_tokens, least=1, hint="32 is the default."
    )
    architecture = model.architecture
    if architecture.kind == "encoder":
        raise ConfigError(f"{_WHERE}: an encoder writes nothing. Use encode.")
    if stop:
        model.require_tokenizer("generate")
    return Ending(
        max_new_tokens, model.end, stop_strings(stop),
        architecture.never if isinstance(architecture, EncoderDecoder) else (),
        None if model.tokenizer is None else model.text,
    )  # fmt: skip


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Parameters
    ----------
    temperature
        0 always takes the likeliest token.
    top_p
        Sample only from the likeliest tokens whose probabilities add up to this.
    top_k
        Sample only from this many of the likeliest tokens; None = all.

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
        # The token that reaches top_p is included.
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
    """When a text ends.

    Attributes
    ----------
    limit
        Maximum number of new tokens.
    end
        Token ids that end a text and are not part of it.
    stop
        Strings that end a text, which is cut before them.
    never
        Token ids that are never chosen.
    decode
        Turns token ids into text; needed for ``stop``.
    """

    limit: int
    end: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    never: tuple[int, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens; empty without a tokenizer."""
        return "" if self.decode is None else self.decode(tokens)

    def stopped(self, tokens: Sequence[int]) -> bool:
        """Whether the text contains one of the strings that end it."""
        return bool(self.stop) and any(word in self.text(tokens) for word in self.stop)

    def without(self, logits: Any) -> Any:
        """Return logits under which tokens that are never chosen have no probability."""
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
    decode: Callable[[Sequence[int]], str] | None,
) -> Iterator[Written]:
    """Continue every row until it ends; ``logits`` are those of the next token, (batch, vocab)."""
    rows = [Pieces(decode, ending.stop) for _ in range(len(logits))]
    # Each row has its own generator, so that a text does not depend on its neighbours.
    chance = [np.random.default_rng((seed, row)) for row in range(len(rows))]
    active = np.ones(len(rows), dtype=bool)
    for step in range(ending.limit):
        tokens = np.zeros(len(rows), dtype=np.int32)
        logits = ending.without(logits)
        last = step + 1 == ending.limit
        for row in np.flatnonzero(active).tolist():
            token = sampling.choose(logits[row], chance[row])
            tokens[row] = token
            if token in ending.end:
                active[row] = False
                yield Written(row, token, rows[row].rest(), end=True)
                continue
            piece = rows[row].add(token)
            active[row] = not rows[row].stopped
            yield Written(row, token, piece + rows[row].rest() if last else piece, end=False)
        if last or not active.any():
            break
        logits = writer.write(tokens, active)


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
    writer: Writer, logits: Any, ending: Ending, width: int, penalty: float
) -> list[list[int]]:
    """Continue every row with the likeliest text that a search with ``width`` beams finds.

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
        # Tokens that are never chosen keep their share of the probability, as elsewhere.
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
