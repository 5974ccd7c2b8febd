"""A trace in a terminal: a coarse map of what survived, and the words still in memory."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attendre_core.cli.terminal import Terminal
from attendre_core.evaluation.tracing.coarse import coarse_map, steps_of_rows
from attendre_core.evaluation.tracing.labels import holds, short_names
from attendre_core.evaluation.tracing.record import (
    AHEAD,
    HELD,
    REFUSED,
    LayerTrace,
    PolicyTrace,
    TextTrace,
)
from attendre_core.evaluation.tracing.words import one_line

__all__ = ["lines_of", "print_trace"]

#: Rows of a map, and lines of text, at most.
_ROWS, _LINES = 10, 8
#: Gaps of more than `_GAP` words are shortened to `_BESIDE` words at either end.
_BESIDE, _GAP = 2, 6


def print_trace(trace: TextTrace) -> None:
    """Print what each memory answers, and what happened in its highest layer."""
    terminal = Terminal()
    shades = terminal.choose("░▒▓█", "-+*#")
    names, shared = short_names([policy.name for policy in trace.policies])
    _print_filled(trace.title, terminal, "bold")
    if shared:
        print(f"all memories: {shared}")
    _print_filled(
        f"Maps of layer {trace.policies[0].layers[-1].layer}: steps are rows, a column is a few "
        f"tokens; {shades} some to all of them in memory, {terminal.choose('·', '.')} evicted, "
        "x refused, blank not read yet.",
        terminal,
        "dim",
    )
    print()
    for policy, name in zip(trace.policies, names, strict=True):
        for line in lines_of(trace, policy, policy.layers[-1], terminal, name):
            print(line)
        print()
    if trace.answer is not None:
        _print_filled(_verdict(trace, names), terminal)
        print()


def _print_filled(text: str, terminal: Terminal, colour: str | None = None) -> None:
    for line in textwrap.wrap(text, _wide(terminal), break_on_hyphens=False):
        print(terminal.paint(line, colour) if colour else line)


def _wide(terminal: Terminal) -> int:
    return max(40, min(terminal.columns, 110))


def _verdict(trace: TextTrace, names: Sequence[str]) -> str:
    """Say with which memories the model found the right answer."""
    found = [policy.answers(trace.answer) for policy in trace.policies]
    right = [name for name, is_right in zip(names, found, strict=True) if is_right]
    wrong = [name for name, is_right in zip(names, found, strict=True) if not is_right]
    said = f"is found with {', '.join(right)}" if right else "is not found"
    verdict = f"{_clean(trace.answer or '')} {said}"
    return f"{verdict}; not with {', '.join(wrong)}." if right and wrong else f"{verdict}."


def lines_of(
    trace: TextTrace,
    policy: PolicyTrace,
    layer: LayerTrace,
    terminal: Terminal,
    name: str | None = None,
) -> Iterator[str]:
    """Yield the lines about one memory in one layer; ``name`` is shown for it."""
    counts = layer.counts()
    title = terminal.paint(policy.name if name is None else name, "bold")
    if policy.next_words:
        words = [f"{_clean(w) or '(no text)'} {100 * p:.0f} %" for w, p in policy.next_words]
        likely = sum(p >= 0.005 for _, p in policy.next_words)
        title += f"  {_mark(policy.answers(trace.answer), terminal)} "
        title += ", ".join(words[: max(likely, 1)])
    yield title
    if policy.full and layer.window is None:
        yield f"  holds {holds(policy, layer)}"
        return
    yield (
        f"  holds {holds(policy, layer)}, {counts['evicted']:,} evicted, "
        f"{counts['refused']:,} refused"
    )
    yield from (f"  {line}" for line in _strongest(trace, layer))
    wide = _wide(terminal)
    yield from (f"  {line}" for line in _map(layer, wide - 14, terminal))
    yield from (f"  {line}" for line in _text(trace, layer, wide - 2, terminal))


def _mark(right: bool | None, terminal: Terminal) -> str:
    """Say before an answer whether it is right, if that is known."""
    if right is None:
        return "next:"
    if right:
        return terminal.paint(terminal.choose("\N{CHECK MARK} right:", "right:"), "green")
    return terminal.paint(terminal.choose("\N{BALLOT X} wrong:", "wrong:"), "red")


def _strongest(trace: TextTrace, layer: LayerTrace) -> Iterator[str]:
    """Yield a line with the entries that the last query attended to most, if there are any."""
    attended = layer.attended
    if attended is None or not attended.position.size:
        return
    weights = attended.mean
    best = [i for i in np.argsort(-weights, kind="stable")[:4] if weights[i] >= 0.005]
    if not best:
        return
    words = ", ".join(
        f"{_word(trace, int(attended.position[i]))} {100 * float(weights[i]):.0f} %" for i in best
    )
    yield f"last query: {words}"


def _word(trace: TextTrace, position: int) -> str:
    """Return the word at a position, as in ``word @7``."""
    return f"{_clean(one_line(trace.words[position])) or '(no text)'} @{position}"


def _map(layer: LayerTrace, wide: int, terminal: Terminal) -> Iterator[str]:
    """Yield a line per step; a column is darker the more of its tokens are in memory."""
    shades = terminal.choose("░▒▓█", "-+*#")
    evicted = terminal.choose("·", ".")
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
                cells.append(terminal.paint(evicted, "dim"))
        yield f"step {step:>{digits}} {''.join(cells)}".rstrip()


def _text(trace: TextTrace, layer: LayerTrace, wide: int, terminal: Terminal) -> Iterator[str]:
    """Yield the text around the entries left at the end, which are in green or in brackets."""
    kept = np.zeros(len(trace.words), dtype=bool)
    kept[layer.survivors] = True
    line, left, lines = "", wide, 0
    for words, held, start, glued in _runs(trace, kept):
        if glued and line.endswith(" "):
            line, left = line[:-1], left + 1
        for number, word in enumerate(words):
            first, last = number == 0, number == len(words) - 1
            shown = word
            if held and not terminal.colour:
                shown = f"{'[' if first else ''}{word}{']' if last else ''}"
            if len(shown) + 1 > left and line:
                yield line.rstrip()
                line, left, lines = "", wide, lines + 1
                if lines == _LINES:
                    rest = int(kept[start:].sum())
                    yield terminal.paint(
                        f"and about {rest:,} more tokens in memory: see the page", "dim"
                    )
                    return
            painted = terminal.paint(shown, "green") if held else terminal.paint(shown, "dim")
            line += painted + " "
            left -= len(shown) + 1
    if line:
        yield line.rstrip()


def _runs(trace: TextTrace, kept: NDArray[np.bool_]) -> Iterator[tuple[list[str], bool, int, bool]]:
    """Yield runs of words that are all in memory, or all not; long gaps are shortened.

    Each run is its words, whether they are in memory, its first position, and whether it starts
    in the middle of a word.
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
    """Replace control characters by spaces: a text may hold anything, escape codes included."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())
