"""Are halves of one article closer than halves of two? Chunks that are averaged, and memories.

``python article_halves.py TEXT MODEL OUT`` cuts the articles of a file like WikiText's (headings as
``= Title =``) into two halves, embeds every half with each system, and appends a line to OUT for
each: of every article the cosine of its halves, and the mean cosine of its first half to the second
halves of all others. What OUT has already is not measured again. With a learned table of positions,
a rule behind ``@`` says which row a position gets: ``last`` repeats the last one, ``wrap`` starts
again, as `Bert` does, ``half`` goes on in the second half of the table.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

import attendre_core as at
from attendre_core.backend import Array, backend_of
from attendre_core.evaluation.intervals import difference, mean
from attendre_core.evaluation.tasks.embedding import specials
from attendre_core.zoo.architectures.bert import Bert

SYSTEMS = (
    "chunks@510", "chunks@254", "attendre:512@last", "attendre:512@wrap", "attendre:512@half",
    "attendre:256@last", "attendre:256@wrap", "full@last", "full@wrap",
)  # fmt: skip
RULES: dict[str, Callable[[Array, int], Array]] = {
    "last": lambda position, rows: position * (position < rows) + (rows - 1) * (position >= rows),
    "wrap": lambda position, rows: position % rows,
    "half": lambda position, rows: backend_of(position).xp.where(
        position < rows, position, rows // 2 + position % (rows // 2)
    ),
}


@dataclass(frozen=True)
class Ruled(Bert):
    """A BERT with another rule for positions beyond its table."""

    rule: str = "last"

    def embed(self, params: Any, tokens: Array, position: Array, *types: Array) -> Array:
        """Embed each token at the row that the rule names."""
        return super().embed(params, tokens, RULES[self.rule](position, self.positions), *types)


def halves(model: at.Model, file: Path, length: int, count: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, first and second half of articles, without special tokens."""
    parts = re.split(r"\n = ([^=\n]+) = \n", "\n" + file.read_text(encoding="utf-8"))
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        ids = model.tokens(body, special=False)[: 2 * length]
        if len(ids) == 2 * length and count:
            count -= 1
            yield name, ids[:length], ids[length:]


def vectors(model: at.Model, system: str, rows: list[list[int]], batch: int) -> Any:
    """Return one vector of length one for each row."""
    before, after = specials(model)
    name, _, rule = system.partition("@")
    if name == "chunks":
        size, found = int(rule), []
        for row in rows:
            cut = [row[start : start + size] for start in range(0, len(row), size)]
            pieces = [[*before, *piece, *after] for piece in cut]
            embedded = model.embed(pieces, "mean", normalize=True, batch_size=batch)
            found.append(
                np.asarray(model.backend.to_numpy(embedded), dtype=np.float64).mean(axis=0)
            )
        result = np.stack(found)
    else:
        own = {f.name: getattr(model.architecture, f.name) for f in fields(model.architecture)}
        ruled = at.Model(
            Ruled(**own, rule=rule), model.params, library=model.library,
            memory=None if name == "full" else name,
        )  # fmt: skip
        whole = [[*before, *row, *after] for row in rows]
        embedded = ruled.embed(whole, "mean", batch_size=batch)
        result = np.asarray(model.backend.to_numpy(embedded), dtype=np.float64)
    return result / np.linalg.norm(result, axis=1, keepdims=True)


def table(records: list[dict[str, Any]]) -> str:
    """Compare every system with the first: gap between own and other halves, paired."""
    lines = ["| system | n | same | other | gap | against the first |", "|---|---|---|---|---|---|"]
    gaps = [np.subtract(one["same"], one["other"]) for one in records]
    for one, gap in zip(records, gaps, strict=True):
        paired = difference(gap, gaps[0])
        same, other = np.mean(one["same"]), np.mean(one["other"])
        lines.append(
            f"| {one['system']} | {len(gap)} | {same:.3f} | {other:.3f} | {mean(gap).value:.3f} | "
            f"{paired.value:+.3f} [{paired.low:+.3f}, {paired.high:+.3f}] |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS))
    parser.add_argument("--tokens", type=int, default=1024, help="of each half")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--backend", default="numpy")
    given = parser.parse_args()
    model = at.load(given.model, backend=given.backend)
    articles = list(halves(model, given.text, given.tokens, given.pairs))
    names, first, second = zip(*articles, strict=True)
    same_run = {"tokens": given.tokens, "articles": list(names)}
    lines = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() else []
    done = {one["system"]: one for one in map(json.loads, lines) if same_run.items() <= one.items()}
    for system in given.systems:
        if system not in done:
            found = vectors(model, system, [*first, *second], given.batch)
            cosine = found[: len(names)] @ found[len(names) :].T
            same = np.diag(cosine)
            other = (cosine.sum(axis=1) - same) / max(len(names) - 1, 1)
            scores = {"same": same.round(5).tolist(), "other": other.round(5).tolist()}
            done[system] = {"system": system, **same_run, **scores}
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[system]) + "\n")
        print(table([done[system] for system in given.systems if system in done]), flush=True)


if __name__ == "__main__":
    main()
