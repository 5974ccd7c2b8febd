"""Generate text from the logits of the last token: greedy, sampled, or by beam search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attendre_core import checks
from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError, NonFiniteError
from attendre_core.zoo.architectures.base import EncoderDecoder
from attendre_core.zoo.pieces import Pieces, stop_strings
from attendre_core.zoo.sampling import Chooser, Sampling, candidates, log_softmax
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
        token, (batch, vocabulary), on the device.
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
        return _by_beams(*start(max_new_tokens), ending, beams, length_penalty, _never(model))
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
        choose = Chooser(model.library, sampling, seed, _never(model))
        yield from _by_rows(*start(max_new_tokens), ending, choose, decode)

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
    decode = None if model.tokenizer is None else model.text
    return Ending(max_new_tokens, model.end, stop_strings(stop), decode)


def _not_finite(row: int) -> NonFiniteError:
    return NonFiniteError(
        f"{_WHERE}: logits of row {row} are NaN or infinity, expected finite numbers: no token can "
        "be chosen. Look for such weights in the checkpoint, or take a wider dtype."
    )


def _never(model: Model) -> tuple[int, ...]:
    """Return the token ids that are never chosen."""
    architecture = model.architecture
    return architecture.never if isinstance(architecture, EncoderDecoder) else ()


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
    writer: Writer,
    logits: Array,
    ending: Ending,
    choose: Chooser,
    decode: Callable[[Sequence[int]], str] | None,
) -> Iterator[Written]:
    """Continue every row until it ends; ``logits`` are those of the next token, (batch, vocab)."""
    rows = [Pieces(decode, ending.stop) for _ in range(logits.shape[0])]
    active = np.ones(len(rows), dtype=bool)
    ids = choose(logits)
    for step in range(ending.limit):
        # One token id per row: nothing else comes back from the device.
        tokens = np.asarray(backend_of(ids).to_numpy(ids)).tolist()
        last = step + 1 == ending.limit
        for row in np.flatnonzero(active).tolist():
            token = tokens[row]
            if token < 0:
                raise _not_finite(row)
            if token in ending.end:
                active[row] = False
                yield Written(row, token, rows[row].rest(), end=True)
                continue
            piece = rows[row].add(token)
            active[row] = not rows[row].stopped
            yield Written(row, token, piece + rows[row].rest() if last else piece, end=False)
        if last or not active.any():
            break
        ids = next_ids(writer, choose, ids, active)


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
        broken = ~over & np.isnan(chances).any(axis=(1, 2))
        if broken.any():
            raise _not_finite(int(broken.argmax()))
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
