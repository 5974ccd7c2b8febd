"""A trace in a terminal: a coarse survival map, and the words that are still in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attendre_core.cli.terminal import Terminal
from attendre_core.evaluation.tracing.coarse import coarse_map, steps_of_rows
from attendre_core.evaluation.tracing.record import (
    AHEAD,
    HELD,
    REFUSED,
    LayerTrace,
    PolicyTrace,
    TextTrace,
)

__all__ = ["lines_of", "tell"]

#: Rows of a map, lines of text, words of context beside what is kept, and the longest gap that is
#: shown in full.
_ROWS, _LINES, _BESIDE, _GAP = 10, 8, 2, 6


def tell(trace: TextTrace, answer: str | None) -> None:
    """Print what happened in the highest layer; ``answer`` is the right next word, if known."""
    terminal = Terminal()
    shades = terminal.choose("░▒▓█", "-+*#")
    print(terminal.paint(trace.title, "bold"))
    print(
        f"layer {trace.policies[0].layers[-1].layer}; a map has a row per step and a column for a "
        f"few tokens: {shades} some to all of them in memory,\n"
        f"{terminal.choose('·', '.')} evicted, x refused, blank not read yet; 'word @7' is the "
        "word at position 7\n"
    )
    for policy in trace.policies:
        for line in lines_of(trace, policy, policy.layers[-1], terminal):
            print(line)
        print()
    if answer is not None:
        print(_verdict(trace, answer) + "\n")


def _verdict(trace: TextTrace, answer: str) -> str:
    """Say which policies led to the right answer."""
    right = [policy.name for policy in trace.policies if policy.next_words[0][0] == answer]
    wrong = [policy.name for policy in trace.policies if policy.name not in right]
    found = f"{answer} is found with {', '.join(right)}" if right else f"{answer} is not found"
    return f"{found}; not with {', '.join(wrong)}." if right and wrong else f"{found}."


def lines_of(
    trace: TextTrace, policy: PolicyTrace, layer: LayerTrace, terminal: Terminal
) -> Iterator[str]:
    """Yield the lines that tell about one policy in one layer."""
    counts = layer.counts()
    told = (
        f"{counts['held']:,} of {len(trace.words):,} tokens in memory, {counts['evicted']:,} "
        f"evicted, {counts['refused']:,} refused"
    )
    yield f"{terminal.paint(policy.name, 'bold')}  {told}"
    if policy.next_words:
        found = [f"{_clean(w) or '(no text)'} {100 * p:.0f} %" for w, p in policy.next_words]
        likely = sum(p >= 0.005 for _, p in policy.next_words)
        yield f"  likeliest next: {', '.join(found[: max(likely, 1)])}"
    yield from (f"  {line}" for line in _strongest(trace, layer))
    wide = max(40, min(terminal.columns, 110))
    yield from (f"  {line}" for line in _map(layer, wide - 14, terminal))
    yield from (f"  {line}" for line in _text(trace, layer, wide - 2, terminal))


def _strongest(trace: TextTrace, layer: LayerTrace) -> Iterator[str]:
    found = layer.attended
    if found is None or not found.position.size:
        return
    best = [i for i in np.argsort(-found.mean, kind="stable")[:4] if found.mean[i] >= 0.005]
    if not best:
        return
    words = ", ".join(
        f"{_word(trace, int(found.position[i]))} {100 * float(found.mean[i]):.0f} %" for i in best
    )
    yield f"last query: {words}"


def _word(trace: TextTrace, position: int) -> str:
    """Name a token and its place."""
    piece = trace.words[position]
    return f"{_clean(piece) or ('(space)' if piece else '(no text)')} @{position}"


def _map(layer: LayerTrace, wide: int, terminal: Terminal) -> Iterator[str]:
    """Yield rows of steps; the darker, the more of a column's tokens are in memory."""
    shades = terminal.choose("░▒▓█", "-+*#")
    nothing = terminal.choose("·", ".")
    share = coarse_map(layer, _ROWS, wide)
    steps = steps_of_rows(layer.steps, share.shape[1])
    digits = len(str(layer.steps - 1))
    for row, step in enumerate(steps.tolist()):
        cells = []
        for column in range(share.shape[2]):
            held = float(share[HELD, row, column])
            if held > 0:
                shade = shades[min(int(held * len(shades)), len(shades) - 1)]
                cells.append(terminal.paint(shade, "green"))
            elif share[AHEAD, row, column] == 1:
                cells.append(" ")
            elif share[REFUSED, row, column] > 0.5:
                cells.append(terminal.paint("x", "red"))
            else:
                cells.append(terminal.paint(nothing, "dim"))
        yield f"step {step:>{digits}} {''.join(cells)}".rstrip()


def _text(trace: TextTrace, layer: LayerTrace, wide: int, terminal: Terminal) -> Iterator[str]:
    """Yield the text around what is in memory at the end; brackets where there is no colour."""
    kept = np.zeros(len(trace.words), dtype=bool)
    kept[layer.survivors] = True
    line, room, lines = "", wide, 0
    for words, held, start, glued in _runs(trace, kept):
        if glued and line.endswith(" "):
            line, room = line[:-1], room + 1
        for number, word in enumerate(words):
            first, last = number == 0, number == len(words) - 1
            shown = word
            if held and not terminal.colour:
                shown = f"{'[' if first else ''}{word}{']' if last else ''}"
            if len(shown) + 1 > room and line:
                yield line.rstrip()
                line, room, lines = "", wide, lines + 1
                if lines == _LINES:
                    rest = int(kept[start:].sum())
                    yield terminal.paint(
                        f"and about {rest:,} more tokens in memory: see the page", "dim"
                    )
                    return
            painted = terminal.paint(shown, "green") if held else terminal.paint(shown, "dim")
            line += painted + " "
            room -= len(shown) + 1
    if line:
        yield line.rstrip()


def _runs(trace: TextTrace, kept: NDArray[np.bool_]) -> Iterator[tuple[list[str], bool, int, bool]]:
    """Yield words, whether they are in memory, where they begin, whether within a word.

    Long gaps are cut.
    """
    edges = np.flatnonzero(np.diff(kept.astype(np.int8))) + 1
    bounds = [0, *edges.tolist(), len(kept)]
    for start, stop in pairwise(bounds):
        text = "".join(trace.words[start:stop])
        glued = start > 0 and not text[:1].isspace() and not trace.words[start - 1][-1:].isspace()
        words = _clean(text).split()
        if not words:
            continue
        held = bool(kept[start])
        if not held and len(words) > _GAP:
            before = words[:_BESIDE] if start else []
            after = words[-_BESIDE:] if stop < len(kept) else []
            words = [*before, "...", *after]
        yield words, held, start, glued


def _clean(text: str) -> str:
    """Take out what a terminal would obey: a text may hold anything."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())
