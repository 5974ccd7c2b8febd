"""Draws the pictures of the documentation: ``python docs/pictures.py``.

Each is drawn from a real run or from the records of the evaluation; a test draws them again and
compares. Colours are variables of the page, so that pictures follow its dark mode; alone, a picture
follows the settings of the system.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import attendre_core as at
from attendre_core.cli.demo_story import RULES, Story, kept_runs, read_story, words_of
from attendre_core.evaluation.tracing.record import HELD

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "results"))
FOLDER = HERE / "pictures"

_STYLE = """\
<style>
.drawn { --ink: #1c1b19; --soft: #6b6b6b; --line: #d5d5d5; --empty: #f0f0f0; --good: #0f6fb3;
  --bad: #b4501e; --third: #7a7a7a; --mark: #a87400; }
@media (prefers-color-scheme: dark) { .drawn { --ink: #e6e6e6; --soft: #a3a3a3; --line: #444;
  --empty: #26282b; --good: #5fb0ec; --bad: #f08c5a; --third: #9a9a9a; --mark: #f2c14e; } }
.picture .drawn { --ink: var(--color-foreground-primary); --soft: var(--color-foreground-secondary);
  --line: var(--color-background-border); --empty: var(--color-background-secondary);
  --good: var(--picture-good); --bad: var(--picture-bad); --third: var(--picture-third);
  --mark: var(--picture-mark); }
.drawn text { fill: var(--ink); font: 13px system-ui, sans-serif; }
.drawn .soft { fill: var(--soft); } .drawn .title { font-weight: 600; font-size: 14px; }
.drawn .good { fill: var(--good); } .drawn .bad { fill: var(--bad); }
.drawn .third { fill: var(--third); } .drawn .mark { fill: var(--mark); }
.drawn .empty { fill: var(--empty); } .drawn .line { stroke: var(--line); }
.drawn .cut { stroke: var(--mark); }
</style>"""


def drawing(width: int, height: int, parts: Iterable[str], words: str) -> str:
    """Return an SVG file; ``words`` say what it shows."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'class="drawn" style="max-width: {width}px" role="img" aria-label="{escape(words)}">'
    )
    return "\n".join([head, _STYLE, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Return a filled rectangle."""
    return (
        f'<rect x="{x:.5g}" y="{y:.5g}" width="{width:.5g}" height="{height:.5g}" class="{kind}"/>'
    )


def runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return begin and end of each run of True.

    Examples
    --------
    >>> runs(np.asarray([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def grid(
    x: float, y: float, cell: tuple[float, float], flags: NDArray[np.bool_], kind: str = "good"
) -> list[str]:
    """Draw a table of flags, runs along a row as one rectangle."""
    wide, tall = cell
    return [
        box(x + wide * begin, y + tall * row, wide * (end - begin), tall, kind)
        for row, line in enumerate(flags)
        for begin, end in runs(line)
    ]


# ---------------------------------------------------------------- eviction

#: Systems of the picture, each with as many entries.
SYSTEMS = {
    "MT": "The oldest goes first",
    "AS": "The oldest, but never the first four",
    "attendre": "What was attended to least",
}
SIZE, CHUNK = 32, 16


@cache
def survival(name: str) -> tuple[NDArray[np.bool_], int, bool]:
    """Read a document like those of the demo; return what is held, where the answer is, if right.

    Rows are steps, columns positions of the input; the first layer of the shipped model.
    """
    from attendre_core.evaluation import load_tiny, measure, system
    from attendre_core.evaluation.tasks import LookAhead

    model = load_tiny("prefix-lm")
    (document,) = LookAhead("single").documents(seed=5, count=1, chunks=(10, 10))
    tokens = [int(token) for token in document.tokens]
    found = system(name, kv_size=SIZE, q_size=SIZE // 2 if name == "attendre" else 0, top_k=CHUNK)
    right = bool(measure(model, [document], found).right[0])
    stream = model.with_memory(found.memory).stream()
    held = np.zeros((len(tokens) // CHUNK, len(tokens)), dtype=bool)
    for row, start in zip(held, range(0, len(tokens), CHUNK), strict=True):
        stream.feed(tokens[start : start + CHUNK])
        entries = stream.entries()[0]
        row[np.asarray(entries.position)[np.asarray(entries.valid)]] = True
    return held, tokens.index(int(document.answer)), right


def eviction() -> str:
    """Draw what three systems hold while they read one document."""
    cell, left, top = (3.4, 9.0), 8, 74
    parts = [
        text(
            left,
            20,
            f"One text of 160 tokens, read {CHUNK} at a time with room for {SIZE}",
            "title",
        ),
        text(
            left,
            40,
            "Across: the tokens. Down: the steps. Coloured: what the memory holds.",
            "soft",
        ),
    ]
    for name, rule in SYSTEMS.items():
        held, answer, right = survival(name)
        wide, tall = cell[0] * held.shape[1], cell[1] * len(held)
        verdict = (
            "answers the question \N{CHECK MARK}" if right else "has lost the answer \N{BALLOT X}"
        )
        kind = "good" if right else "bad"
        parts += [
            text(left, top, f"{name}: {rule.lower()}"),
            text(left + wide, top, verdict, kind, "end"),
            box(left, top + 8, wide, tall, "empty"),
            *grid(left, top + 8, cell, held, kind),
        ]
        x = left + cell[0] * (answer + 0.5)
        parts.append(
            f'<line x1="{x:g}" y1="{top + 4:g}" x2="{x:g}" y2="{top + 12 + tall:g}" class="cut" '
            'stroke-width="2" stroke-dasharray="4 3"/>'
        )
        top += int(tall) + 46
    parts.append(
        text(left, top - 14, "Dashed: the token that answers the question at the end.", "soft")
    )
    return drawing(
        int(2 * left + wide), top, parts,
        "Survival maps of three memories with room for 32 of 160 tokens. FIFO and attention sinks "
        "lose the token with the answer; the system attendre keeps it and answers the question.",
    )  # fmt: skip


# ---------------------------------------------------------------- the front page


@cache
def front_story() -> Story:
    """Let the shipped model read the English text of the demo, and 39 more like it."""
    from attendre_core.evaluation import load_tiny

    return read_story(
        load_tiny("prefix-lm"), list(RULES), chunk=CHUNK, top_k=CHUNK, seed=0, count=40
    )


#: A ground of its own, because a page that shows the file alone may be light or dark.
_CARD = """\
<style>
.drawn { --paper: #ffffff; } @media (prefers-color-scheme: dark) { .drawn { --paper: #17191c; } }
.picture .drawn { --paper: var(--color-background-primary); }
.drawn .paper { fill: var(--paper); stroke: var(--line); }
.drawn text { font-size: 15px; } .drawn .title { font-size: 17px; }
.drawn .name { font-weight: 600; } .drawn .words { font-size: 14px; }
</style>"""


def front() -> str:
    """Draw what four memories keep of an English text: maps, words, answers."""
    story = front_story()
    wide, left, row = 544.0, 14, 3.0
    told = len(story.trace.words)
    cell, y = wide / told, 30
    parts = [
        text(left, y, f"{told} words of English through memories of {2 * CHUNK}", "title"),
        text(left, y + 24, f"First:  {story.question}"),
        text(left, y + 44, f"Later:  {story.fact}"),
        text(left, y + 64, "At the end:  Answer:"),
    ]
    y += 98
    for policy in story.trace.policies:
        (layer,) = policy.layers
        held, right = layer.map() == HELD, bool(policy.answers(story.trace.answer))
        kind, tall = "good" if right else "bad", row * layer.steps
        sign = "\N{CHECK MARK}" if right else "\N{BALLOT X}"
        x = left + cell * (story.place + 0.5)
        parts += [
            text(left, y, policy.name, "name"),
            text(
                left + wide, y,
                f"{sign} {policy.next_words[0][0]}; {story.right[policy.name]} of {story.texts} "
                "such texts right", kind, "end",
            ),
            text(left, y + 19, RULES[policy.name], "soft"),
            box(left, y + 34, wide, tall, "empty"),
            *grid(left, y + 34, (cell, row), held, kind),
            f'<path d="M{x - 5:.5g} {y + 25:g}h10l-5 8z" class="mark"/>',
        ]  # fmt: skip
        y += 34 + int(tall) + 18
        kept = " \N{HORIZONTAL ELLIPSIS} ".join(words_of(kept_runs(story.trace, layer)))
        for line in textwrap.wrap(kept, 73, break_on_hyphens=False):
            words = text(left, y, line, "words")
            if story.place in layer.survivors:
                answer = str(story.trace.answer)
                words = words.replace(answer, f'<tspan class="name good">{answer}</tspan>', 1)
            parts.append(words)
            y += 18
        y += 20
    parts += [
        text(
            left, y - 2, "Across: the words. Down: time. Coloured: in memory. # the answer.", "soft"
        ).replace("#", '<tspan class="mark">\N{BLACK DOWN-POINTING SMALL TRIANGLE}</tspan>'),
        text(
            left, y + 18, f"The model has {_parameters():,} parameters and learned such questions.",
            "soft",
        ),
    ]  # fmt: skip
    y += 32
    card = (
        f'<rect x="0.5" y="0.5" width="{wide + 2 * left - 1:g}" height="{y - 1}" rx="8" '
        'class="paper"/>'
    )
    verdicts = ", ".join(
        f"{policy.name} {'answers' if policy.answers(story.trace.answer) else 'fails'}"
        for policy in story.trace.policies
    )
    return drawing(
        int(wide + 2 * left), y, [_CARD, card, *parts],
        f"What four memories of {2 * CHUNK} entries keep of {told} words: {verdicts}.",
    )  # fmt: skip


def _parameters() -> int:
    from attendre_core.evaluation.tiny.shipped import manifest

    return int(manifest()["models"]["prefix-lm"]["parameters"])


# ---------------------------------------------------------------- waiting


@cache
def attention_map(waiting: int, length: int = 48, chunk: int = 4) -> NDArray[np.bool_]:
    """Read a stream; row i says which positions query i attended to.

    The value of each position is a unit vector, so the output of a query is its weights.
    """
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 1, length, 1, 8), dtype=np.float32) * 0.3
    value = np.eye(length, dtype=np.float32)[None, :, None, :]
    queue = at.DataOnlyMemory(waiting) if waiting else None
    layer = at.AttendreLayer(at.KeyValueMemory(16, at.FIFO()), queue)
    state = layer.init(batch=1, heads=1, head_dim=8, value_dim=length)
    outputs = []
    for start in range(0, length, chunk):
        part = slice(start, start + chunk)
        state, out = layer.step(state, at.Chunk(query[:, part], key[:, part], value[:, part]))
        outputs.append(out)
    outputs.append(layer.flush(state)[1])
    return np.concatenate([out.value[0, out.valid[0], 0] for out in outputs]) > 0


def waiting() -> str:
    """Draw which positions queries attend to, at once and after waiting."""
    size, top, parts = 5.4, 66, []
    titles = {0: "At once: the past", 8: "After 8 positions: the future, too"}
    for number, (wait, title) in enumerate(titles.items()):
        seen = attention_map(wait)
        length, left = len(seen), 30 + 310 * number
        future = np.triu(seen, 1)
        parts += [
            text(left, top - 12, title),
            box(left, top, size * length, size * length, "empty"),
            *grid(left, top, (size, size), seen & ~future, "third"),
            *grid(left, top, (size, size), future, "good"),
            f'<line x1="{left}" y1="{top}" x2="{left + size * length:g}" '
            f'y2="{top + size * length:g}" class="cut" stroke-width="1.5"/>',
            text(
                left + size * length / 2,
                top + size * length + 18,
                "position attended to",
                "soft",
                "middle",
            ),
        ]
    middle = top + size * length / 2
    parts += [
        text(8, 20, "Queries that wait see what comes after them", "title"),
        f'<text x="18" y="{middle:g}" text-anchor="middle" class="soft" '
        f'transform="rotate(-90 18 {middle:g})">query</text>',
        text(30, top + size * length + 42, "Grey: its past.", "third"),
        text(130, top + size * length + 42, "Blue: its future, up to 8 positions.", "good"),
    ]
    return drawing(
        610, int(top + size * length + 54), parts,
        "Two maps of which positions each query attends to. Without waiting a query sees little "
        "beyond its own chunk; after waiting for 8 positions it sees as many of its future.",
    )  # fmt: skip


# ---------------------------------------------------------------- the evaluation


@cache
def _study() -> Any:
    from study_results import Study

    return Study()


def _frame(left: float, top: float, wide: float, tall: float) -> list[str]:
    """Draw the lines and numbers of a scale from 0 to 100 %."""
    parts = []
    for share in (0, 25, 50, 75, 100):
        y = top + tall * (1 - share / 100)
        parts += [
            f'<line x1="{left:g}" y1="{y:g}" x2="{left + wide:g}" y2="{y:g}" class="line"/>',
            text(left - 8, y + 4, f"{share}", "soft", "end"),
        ]
    return parts


def sizes() -> str:
    """Draw right answers against the size of the memory."""
    known = (16, 32, 64, 128, 256)
    left, top, wide, tall = 44, 50, 430, 240
    lines = {
        "attendre, waiting": ("good", lambda kv: _study().mean("attendre", kv, kv // 2)),
        "attendre": ("good", lambda kv: _study().mean("attendre", kv, 0)),
        "LFA-0, best c": ("third", lambda kv: _study().mean("LFA-0", kv, 0)),
        "AS (sinks)": ("mark", lambda kv: _study().mean("AS", kv, 0)),
        "MT (FIFO)": ("bad", lambda kv: _study().mean("MT", kv, 0)),
    }
    parts = [
        text(8, 20, "Right answers in %, by the size M of the memory", "title"),
        *_frame(left, top, wide, tall),
    ]
    taken: list[tuple[float, float]] = []
    for name, (kind, value) in lines.items():
        points = [
            (left + wide * i / (len(known) - 1), top + tall * (1 - share / 100))
            for i, kv in enumerate(known)
            if (share := value(kv)) is not None
        ]
        dashed = ' stroke-dasharray="5 4"' if name == "attendre" else ""
        path = " ".join(f"{x:.4g},{y:.4g}" for x, y in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke-width="2.5"{dashed} '
            f'style="stroke: var(--{kind})"/>'
        )
        parts += [f'<circle cx="{x:.4g}" cy="{y:.4g}" r="3.5" class="{kind}"/>' for x, y in points]
        # The name is where the line ends, below a name that is there already.
        x, y = points[-1]
        while any(abs(x - u) < 99 and abs(y - v) < 16 for u, v in taken):
            y += 1
        taken.append((x, y))
        parts.append(text(x + 10, y + 4, name, kind))
    parts += [
        text(left + wide * i / (len(known) - 1), top + tall + 20, f"{kv}", "soft", "middle")
        for i, kv in enumerate(known)
    ]
    return drawing(
        620, top + tall + 30, parts,
        "Right answers by memory size, mean of two models and four tasks: attendre with waiting "
        "queries is near 100 % at every size, LFA with the best c follows, sinks and FIFO are far "
        "below.",
    )  # fmt: skip


def _bars(
    title: str, words: str, rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]]
) -> str:
    """Draw groups of horizontal bars with their numbers."""
    longest = max(len(f"100 %  {label}") for _, bars in rows for label, _, _ in bars)
    left, wide = 26 + 8.6 * max(len(name) for name, _ in rows), 240
    y, parts = 34, [text(8, 20, title, "title")]
    for name, bars in rows:
        parts.append(text(left - 10, y + 9 * len(bars) + 8, name, "", "end"))
        for label, share, kind in bars:
            parts += [
                box(left, y + 3, wide, 14, "empty"),
                box(left, y + 3, wide * share / 100, 14, kind),
                text(left + wide + 8, y + 15, f"{share:.0f} %  {label}", "soft"),
            ]
            y += 18
        y += 10
    return drawing(int(left + wide + 16 + 8.4 * longest), y + 4, parts, words)


def gain() -> str:
    """Draw what waiting changes, by task."""
    rows = []
    for task, words in (("look-ahead", "looks ahead"), ("past-only", "past only")):
        for name in ("attendre", "LFA-0"):
            bars = [
                (label, share, kind)
                for q, label, kind in ((0, "at once", "third"), (16, "waiting", "good"))
                if (share := _study().mean(name, 32, q, (task,))) is not None
            ]
            rows.append((f"{name}, {words}", bars))
    return _bars(
        "What waiting changes: right answers in %, M = 32",
        "Right answers at once and after waiting. On tasks that look ahead, waiting takes attendre "
        "close to 100 %; on tasks with nothing to wait for it costs attendre nothing and LFA much.",
        rows,
    )


def start() -> str:
    """Draw right answers at the best c and at the paper's c."""
    found, rows = _study(), []
    for name in ("LRA-last", "LRA-max", "LRA-sum", "LFA-0", "LFA-1e-3"):
        share, let_in = (
            found.mean(name, 32, 0, papers_c=True, metric=metric)
            for metric in ("right", "admitted")
        )
        rows.append((name, [
            ("at the best c", found.mean(name, 32, 0), "good"),
            (f"at the paper's, {let_in:.0f} % let in", share, "bad"),
        ]))  # fmt: skip
    return _bars(
        "Where new entries start: right answers in %, M = 32",
        "Right answers of five policies at the best c and at the paper's c: with the paper's c few "
        "new entries get in, and a fraction of the answers is right.",
        rows,
    )


PICTURES: dict[str, Callable[[], str]] = {
    "front": front,
    "eviction": eviction,
    "waiting": waiting,
    "evaluation-sizes": sizes,
    "evaluation-waiting": gain,
    "evaluation-start": start,
}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
