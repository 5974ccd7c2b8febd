"""Write what encoders were measured on into the guide: run it as a script, without arguments.

Each table is between two comments, ``<!-- begin NAME -->`` and ``<!-- end NAME -->``, and comes
from the file NAME.jsonl in ``encoders`` beside this file: scores of queries or documents, none of
their texts. A test compares both.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from html import escape
from pathlib import Path
from types import ModuleType

from attendre_core.evaluation.controls import label_of
from attendre_core.evaluation.intervals import ENOUGH, difference, mean
from attendre_core.evaluation.sweep import Measured, Table, read_results
from attendre_core.evaluation.sweep.summary import cost_of

HERE = Path(__file__).parent
PAGE = HERE.parent / "guides" / "encoders.md"
BLOCK = re.compile(r"(<!-- begin ([\w.-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
BASELINE = "pieces"
MINUS = "\N{MINUS SIGN}"
DRAWN = PAGE.with_name("entity.svg")
ALT = "An entity across the end of a piece, and which systems found it"


def example(name: str = "far_entities") -> ModuleType:
    """Return the example that trains a tagger, or ``"far_answers"``, which trains a reranker."""
    folder = str(HERE.parent / "examples")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def entities() -> str:
    """Return the table of the tagging task."""
    lines = (HERE / "encoders" / "entities.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    text: str = example().table({one["system"]: one["documents"] for one in records})
    return text


def reranking() -> str:
    """Return the table of the reranking task."""
    lines = (HERE / "encoders" / "reranking.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    text: str = example("far_answers").table({one["system"]: one["queries"] for one in records})
    return text


def articles() -> str:
    """Return the table of halves of articles."""
    lines = (HERE / "encoders" / "articles.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    gaps = [[a - b for a, b in zip(r["same"], r["other"], strict=True)] for r in records]
    rows, strong = [], set()
    for number, (record, own) in enumerate(zip(records, gaps, strict=True)):
        means = (record["same"], record["other"], own)
        cells = [record["system"], str(len(own)), *(f"{mean(one).value:.2f}" for one in means)]
        gap = difference(own, gaps[0])
        cells.append(_signed(*gap[:3]) if number else "")
        if number and len(own) >= ENOUGH and (gap.low > 0 or gap.high < 0):
            strong.add((number, len(cells) - 1))
        rows.append(cells)
    head = ["system", "n", "same article", "other article", "gap", f"{MINUS} chunks"]
    return Table(head, rows, frozenset(strong)).markdown()


def finding(name: str) -> str:
    """Return the table of a task of finding documents."""
    _, measured = read_results(HERE / "encoders" / f"{name}.jsonl")
    base = next(one for one in measured if one.cell.policy == BASELINE)
    rows, strong = [], set()
    for number, one in enumerate(measured):
        cells = [_name(one), str(len(one.scores))]
        for metric in ("ndcg", "ndcg_best"):
            own, other = (list(m.column(metric).values()) for m in (one, base))
            value, gap = mean(own), difference(own, other)
            cells.append(f"{value.value:.2f} ({value.low:.2f} to {value.high:.2f})")
            if one is base:
                cells.append("")
                continue
            if gap.excludes_zero and len(own) >= ENOUGH:
                strong.add((number, len(cells)))
            cells.append(_signed(gap.value, gap.low, gap.high))
        cells += [f"{one.mean('bytes') / 2**20:.1f}", f"{cost_of(one, base):.2f}"]
        rows.append(cells)
    head = ["system", "n", "one vector", f"{MINUS} pieces", "best piece", f"{MINUS} pieces"]
    return Table([*head, "MiB", "cost"], rows, frozenset(strong)).markdown()


def _name(one: Measured) -> str:
    waits = f", N = {one.cell.q}" if one.cell.q else ""
    size = f", M = {one.cell.kv}{waits}" if one.cell.kv else ""
    return f"{label_of(one.cell.policy)}{size}"


def _signed(*numbers: float) -> str:
    value, low, high = (f"{number:+.2f}".replace("-", MINUS) for number in numbers)
    return f"{value} ({low} to {high})"


def picture() -> str:
    """Return the picture of an entity, as it is shown and as text."""
    drawn = (HERE / "encoders" / "picture.txt").read_text(encoding="utf-8")
    return f"![{ALT}](entity.svg)\n\n```text\n{drawn}```"


def svg(drawn: str) -> str:
    """Draw the text picture of `far_entities`: words, the cut, and a box for each bracket.

    It has a ground of its own, so it reads alike in the light and in the dark.
    """
    *rows, _, told = drawn.rstrip("\n").split("\n")
    names, lines = [row[:36].strip() for row in rows], [row[36:] for row in rows]
    width, height = 330 + 8 * max(map(len, lines)), 62 + 30 * len(rows)
    cut = 314 + 8 * lines[0].index("|") + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="monospace" font-size="13" aria-label="{escape(ALT)}">',
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
        f'<line x1="{cut}" y1="14" x2="{cut}" y2="{height - 42}" stroke="#b00020" '
        'stroke-width="2" stroke-dasharray="5 4"/>',
    ]
    for number, (name, line) in enumerate(zip(names, lines, strict=True)):
        y = 32 + 30 * number
        if number:
            parts.append(f'<text x="16" y="{y}" fill="#333333">{escape(name)}</text>')
        for word in re.finditer(r"[^\s|]+" if number == 0 else r"\[(\w+)-*\]", line):
            x, long = 314 + 8 * word.start(), 8 * len(word[0])
            if number == 0:
                parts.append(f'<text x="{x}" y="{y}" textLength="{long}">{escape(word[0])}</text>')
                continue
            colour = "#e8f0e8" if number == 1 else "#cfe3ff"
            parts.append(
                f'<rect x="{x}" y="{y - 17}" width="{long}" height="24" rx="4" fill="{colour}" '
                f'stroke="#335577"/><text x="{x + 8}" y="{y}">{word[1]}</text>'
            )
    parts.append(f'<text x="16" y="{height - 18}" fill="#333333">{escape(told)} '
                 "The dashed line is where pieces end.</text>")  # fmt: skip
    return "\n".join([*parts, "</svg>"]) + "\n"


def log() -> str:
    """Return the resident memory of `attendre tag` over a long log."""
    told = json.loads((HERE / "encoders" / "log.json").read_text(encoding="utf-8"))
    rows = [
        [f"{second / 60:g}", f"{spans:,}", f"{size:.0f}"] for second, spans, size in told["rows"]
    ]
    words = f"{told['words']:,} words, {told['spans']:,} spans, {told['wrong_places']} of them"
    return f"{words} at a wrong place.\n\n" + Table(["minute", "spans", "MiB"], rows).markdown()


def table(name: str) -> str:
    """Return the table of a block."""
    others = {"articles": articles, "entities": entities, "log": log, "picture": picture,
              "reranking": reranking}  # fmt: skip
    return others[name]() if name in others else finding(name)


def written(text: str) -> str:
    """Return the page with all its tables as the records say."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{table(match[2])}\n\n{match[3]}", text)


def main() -> None:
    """Write the page and its picture."""
    text = (HERE / "encoders" / "picture.txt").read_text(encoding="utf-8")
    DRAWN.write_text(svg(text), encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
