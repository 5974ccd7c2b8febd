"""Ask a stream without making the question a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attendre_core.backend import Array
from attendre_core.checks import within_range
from attendre_core.errors import ConfigError
from attendre_core.policies import Attention, Policy, Stored
from attendre_core.zoo.alone import alone
from attendre_core.zoo.full_attention import compiled_length
from attendre_core.zoo.labels import Label, Labels
from attendre_core.zoo.reader import Hidden, Reader, States
from attendre_core.zoo.tokens import is_single, padded, rows_of

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["ProbedStream"]


@dataclass(frozen=True)
class _Mass(Policy):
    """The score is the weight that the queries of a step give an entry, over all heads."""

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Add up the weights."""
        return attention.pool("weights")


class ProbedStream:
    """What a stream does when it is asked, and not fed."""

    model: Model
    batch: int
    _reader: Reader
    _states: States
    _read: Any
    _pending: list[list[int]]
    _labels: Labels
    _asked: list[list[int]] | None

    def _advance(self, rows: list[list[int]]) -> Hidden:
        raise NotImplementedError

    def _full_chunks(self) -> Iterator[Hidden]:
        raise NotImplementedError

    @alone
    def probe(self, *tokens: Any, policy: Policy | None = None) -> Hidden:
        """Let tokens attend to what was read, and the policies score it; insert nothing.

        The tokens come after all that was fed and see each other, but none of them is kept: the
        memories hold the same entries, and what is fed next gets the positions it would have had.
        What waits for a full chunk is read first. Layers above waiting queries do not hold the
        last positions yet; `finish` lets them in.

        Parameters
        ----------
        tokens
            A text or token ids for all rows, or a list of one for each row. Several are read one
            after another: ``stream.probe("Repeat the text:", block)``.
        policy
            Scores the entries this time, in place of the memory's policy; see
            `AttendreLayer.probe`.

        Returns
        -------
        Hidden
            Hidden states of the tokens, with their positions, padded at the end.

        Examples
        --------
        >>> import attendre_core as at
        >>> from attendre_core.evaluation import load_tiny
        >>> stream = load_tiny("prefix-lm", memory="LRA-sum+softmax:32").stream()
        >>> stream.feed([1, 2, 3])
        >>> hidden = stream.probe([4, 5])
        >>> hidden.position.tolist(), stream.lengths
        ([[3, 4]], (3,))
        """
        self._asked = self._question(tokens)
        self._read_pending()
        self._states, hidden = self._probed(self._asked, self._states, policy, donate=True)
        return hidden

    @alone
    def attention_by(
        self, kind: str, *tokens: Any
    ) -> dict[Label, float] | list[dict[Label, float]]:
        """Return the share of the attention of some tokens that goes to each label.

        Nothing changes, not even scores. What was fed without a label, what is not in the memories
        any more, and the tokens themselves get the rest.

        Parameters
        ----------
        kind
            What was named when it was fed: ``stream.feed(text, document="a")``.
        tokens
            As in `probe`; without them, those of the last probe ask.

        Returns
        -------
        dict
            Shares by label, the mean over layers, heads and tokens; the least attended comes
            first, so that the order is that in which attention sorting reads them again. A list of
            them for a stream of several rows.
        """
        rows = self._question(tokens) if tokens else self._asked
        if rows is None:
            raise ConfigError(
                "Stream.attention_by: nothing was asked yet. Give the tokens whose attention "
                f"counts, as in stream.attention_by({kind!r}, question), or call probe first."
            )
        self._read_pending()
        xp, numpy = self.model.backend.xp, self.model.backend.to_numpy
        empty = tuple(
            state._replace(kv=state.kv._replace(score=xp.zeros_like(state.kv.score)))
            for state in self._states
        )
        states, _ = self._probed(rows, empty, _Mass(), donate=False)
        results: list[dict[Label, float]] = []
        for number, row in enumerate(rows):
            shares = dict.fromkeys(
                (label for label, *_ in self._labels.spans("attention_by", kind, number)), 0.0
            )
            whole = len(states) * self._reader.part.heads * max(len(row), 1)
            for state in states:
                held = (state.kv.position, state.kv.score, state.kv.valid)
                at, score, valid = (np.asarray(numpy(array[number, ...])) for array in held)
                for label, first, last in self._labels.spans("attention_by", kind, number):
                    here = valid & (first <= at) & (at < last)
                    shares[label] += float(score[here].sum(dtype=np.float64)) / whole
            results.append(dict(sorted(shares.items(), key=lambda item: item[1])))
        return results[0] if self.batch == 1 else results

    # ---------------------------------------------------------------- inside

    def _question(self, tokens: tuple[Any, ...]) -> list[list[int]]:
        """Return the rows of a probe, which are not empty."""
        where, vocabulary = "Stream.probe", self._reader.part.vocabulary
        joined: list[list[int]] = [[] for _ in range(self.batch)]
        for given in tokens:
            rows = rows_of(where, given, vocabulary, lambda text: self.model.tokens(text, False))
            if is_single(given):
                rows = rows * self.batch
            if len(rows) != self.batch:
                raise ConfigError(
                    f"{where}: {len(rows)} rows of tokens, expected {self.batch}, or one for all."
                )
            for row, more in zip(joined, rows, strict=True):
                row.extend(more)
        if not any(joined):
            raise ConfigError(f"{where}: there are no tokens to ask with. Give at least one.")
        return joined

    def _read_pending(self) -> list[Hidden]:
        """Read what waits, also for a full chunk."""
        outputs = list(self._full_chunks())
        if any(self._pending):
            outputs.append(self._advance([list(row) for row in self._pending]))
        return outputs

    def _probed(
        self, rows: list[list[int]], states: States, policy: Policy | None, *, donate: bool
    ) -> tuple[States, Hidden]:
        longest = max(map(len, rows))
        tokens, valid = padded(rows, compiled_length(self.model.library, longest))
        position = self._read[:, None] + np.cumsum(valid, axis=1, dtype=np.int32) - 1
        within_range("Stream.probe", int(position.max()))
        position = np.where(valid, position, 0).astype(np.int32)
        states, hidden = self._reader.probe(
            states, tokens, position, valid, policy=policy, donate=donate
        )
        x, at, real = hidden
        return states, Hidden(x[:, :longest, ...], at[:, :longest], real[:, :longest])
