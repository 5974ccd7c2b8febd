"""How much a text repeats itself, and how much it copies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["copied_share", "repeated_share"]

#: Runs of this many tokens are compared.
_RUN = 4


def repeated_share(tokens: Sequence[Hashable], run: int = _RUN) -> float:
    """Return the share of runs of tokens that occurred before in the same text; 0 if too short.

    It is one minus the measure that is often called distinct-4.

    Examples
    --------
    >>> repeated_share("abcdefgh"), repeated_share("abcdabcd"), repeated_share("aaaaaaaa")
    (0.0, 0.2, 0.8)
    """
    runs = _runs(tokens, run)
    return (len(runs) - len(set(runs))) / len(runs) if runs else 0.0


def copied_share(tokens: Sequence[Hashable], source: Sequence[Hashable], run: int = _RUN) -> float:
    """Return the share of runs of tokens that occur in another text; 0 if too short.

    Examples
    --------
    >>> copied_share("abcdxyz", "..abcd..")
    0.25
    """
    runs, known = _runs(tokens, run), set(_runs(source, run))
    return sum(one in known for one in runs) / len(runs) if runs else 0.0


def _runs(tokens: Sequence[Hashable], run: int) -> list[tuple[Hashable, ...]]:
    return [tuple(tokens[i : i + run]) for i in range(len(tokens) - run + 1)]
