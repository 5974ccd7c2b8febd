"""Byte-pair encoding by scores, with bytes for what no piece covers: Llama 2 and llama2.c."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence

from attendre_core.zoo.tokenizers.base import Encoded, check_text

__all__ = ["ScoredTokenizer"]


class ScoredTokenizer:
    """Merge neighbours into the piece of the highest score, again and again.

    Parameters
    ----------
    pieces, scores
        The vocabulary. Of two merges with the same score the left one comes first.
    mergeable
        Ids of ordinary pieces; others are never the result of a merge.
    byte_ids
        Ids that stand for single bytes; a character that is no piece is spelled with them.
    space
        The character with which pieces write a space.
    prefix_space
        Whether a text begins with a space of its own, which is taken away again on decoding.
    special
        Ids that are left out of a text.
    whole
        Texts that are always one token.
    unknown
        Id for what cannot be written; None leaves it out.
    before, after
        Ids around a text.

    Examples
    --------
    >>> tokenizer = ScoredTokenizer(["a", "b", "ab"], [0.0, 0.0, 1.0], mergeable=range(3))
    >>> tokenizer.encode("aab"), tokenizer.decode([0, 2])
    ([0, 2], 'aab')
    """

    def __init__(
        self,
        pieces: Sequence[str],
        scores: Sequence[float],
        *,
        mergeable: Sequence[int],
        byte_ids: Mapping[int, int] | None = None,
        space: str = " ",
        prefix_space: bool = False,
        special: Sequence[int] = (),
        whole: Mapping[str, int] | None = None,
        unknown: int | None = None,
        before: Sequence[int] = (),
        after: Sequence[int] = (),
    ) -> None:
        self._pieces, self._space, self._prefix_space = list(pieces), space, prefix_space
        self._ids: dict[str, tuple[float, int]] = {}
        for number in mergeable:
            self._ids.setdefault(pieces[number], (float(scores[number]), number))
        self._byte_ids = dict(byte_ids or {})
        self._bytes = {number: byte for byte, number in self._byte_ids.items()}
        self._special, self._unknown = frozenset(special), unknown
        self._whole = {text: number for text, number in (whole or {}).items() if text}
        longest_first = sorted(self._whole, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._before, self._after = list(before), list(after)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return token ids; ``special`` adds those that the model expects around a text."""
        ids, _ = self.encode_with_offsets(text)
        return [*self._before, *ids, *self._after] if special else ids

    def encode_with_offsets(self, text: str) -> Encoded:
        """Return token ids without special ones, and where each is in the text, in characters."""
        check_text("tokens", text)
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        prefix, begin = " " if self._prefix_space else "", 0
        for part in self._split.split(text) if self._whole else [text]:
            end = begin + len(part)
            if part in self._whole:
                ids.append(self._whole[part])
                offsets.append((begin, end))
            elif part:
                place = begin - len(prefix)
                for piece in self._merged((prefix + part).replace(" ", self._space)):
                    written = self._written(piece)
                    span = max(place, begin), place + len(piece)
                    ids += written
                    offsets += [span] * len(written)
                    place += len(piece)
            begin = end
        return ids, offsets

    def decode(self, tokens: list[int]) -> str:
        """Return the text, without special tokens."""
        parts = []
        for token in tokens:
            if token in self._bytes:
                parts.append(bytes([self._bytes[token]]))
            elif token not in self._special and 0 <= token < len(self._pieces):
                parts.append(self._pieces[token].replace(self._space, " ").encode())
        text = b"".join(parts).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._prefix_space else text

    def _merged(self, text: str) -> list[str]:
        """Merge the characters of a text; parts are linked to their neighbours."""
        parts = list(text)
        before = list(range(-1, len(parts) - 1))
        behind = list(range(1, len(parts) + 1))
        # (minus the score, left part, length of the result): lengths tell outdated pairs.
        queue: list[tuple[float, int, int]] = []

        def propose(left: int) -> None:
            if left < 0 or behind[left] >= len(parts):
                return
            joined = parts[left] + parts[behind[left]]
            found = self._ids.get(joined)
            if found is not None:
                heapq.heappush(queue, (-found[0], left, len(joined)))

        for left in range(len(parts)):
            propose(left)
        while queue:
            _, left, length = heapq.heappop(queue)
            right = behind[left]
            gone = not parts[left] or right >= len(parts)
            if gone or len(parts[left]) + len(parts[right]) != length:
                continue
            parts[left] += parts[right]
            parts[right] = ""
            behind[left] = behind[right]
            if behind[right] < len(parts):
                before[behind[right]] = left
            propose(before[left])
            propose(left)
        return [part for part in parts if part]

    def _written(self, part: str) -> list[int]:
        found = self._ids.get(part)
        if found is not None:
            return [found[1]]
        spelled = [self._byte_ids.get(byte) for byte in part.encode("utf-8", errors="replace")]
        known = [number for number in spelled if number is not None]
        if len(known) == len(spelled):
            return known
        return [] if self._unknown is None else [self._unknown]
