"""Markdown from measured cells: every figure of README and docs comes from here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from attendre_core.evaluation import study
from attendre_core.evaluation.claims import Claim, claims
from attendre_core.evaluation.grid import Cell, Measured
from attendre_core.evaluation.intervals import Interval, difference
from attendre_core.evaluation.reading import admission, best, sentences
from attendre_core.evaluation.records import read_records
from attendre_core.evaluation.tables import Table, tables_of, with_interval, with_shares
from attendre_core.evaluation.tiny.models import manifest
from attendre_core.presets import OTHER_PRESETS, PAPER_PRESETS

HERE = Path(__file__).parent
MINUS = "\N{MINUS SIGN}"
#: Characters of a line of the demo.
WIDE = 100
SIZED_CONTROLS = ("first-M", "random", "pinned")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], *, figures: bool = True) -> str:
    """Return a table; all but the first column hold figures, unless told otherwise."""
    rule = ["---"] + ["--:" if figures else "---"] * (len(head) - 1)
    lines = [list(head), rule, *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


class Study:
    """Both parts of the study, as recorded."""

    def __init__(self, folder: Path = HERE) -> None:
        self.chosen = read_records(folder / "choosing.jsonl", study.CHOOSING.seed)
        cells = study.confirming_cells(self.chosen)
        self.confirmed = study.confirmed(folder / "confirming.jsonl", cells)
        self.best_c = study.best_sigmas(self.chosen)
        #: Of the first and of the second part, at the best c and at the paper's.
        self.choice_tables = _by_place(filter(self._has_best_c, self.chosen))
        self.tables = _by_place(filter(self._has_best_c, self.confirmed))
        self.paper_choice_tables = _by_place(filter(_has_papers_c, self.chosen))
        self.paper_tables = _by_place(filter(_has_papers_c, self.confirmed))
        self._gaps: dict[tuple[Cell, Cell], Interval] = {}

    def _has_best_c(self, m: Measured) -> bool:
        """Whether a cell has the c that was chosen, or none to choose."""
        if m.cell.sigmas is None or m.cell.system == study.PLAIN:
            return True
        return m.cell.sigmas == self.best_c.get((*m.cell[:4], m.cell.q_size > 0))

    def gap(self, one: Measured, other: Measured) -> Interval:
        """Return the difference of two confirmed cells, computed once."""
        cells = (one.cell, other.cell)
        if cells not in self._gaps:
            self._gaps[cells] = difference(one.outcome.right, other.outcome.right)
        return self._gaps[cells]

    @property
    def documents(self) -> int:
        """Documents behind each confirmed cell."""
        return int(self.confirmed[0].outcome.right.size)


def _has_papers_c(m: Measured) -> bool:
    """Whether a cell has the c that the paper would use, or none to choose."""
    return m.cell.sigmas in (None, study.papers_sigmas(m.cell.model, m.cell.system))


def _by_place(measured: Iterable[Measured]) -> dict[tuple[str, str, str], Table]:
    places: dict[tuple[str, str, str], list[Measured]] = {}
    for m in measured:
        if m.cell.system not in study.CANDIDATES[1:]:
            places.setdefault((m.cell.model, m.cell.task, m.cell.answers), []).append(m)
    return {place: Table((*place, None), found) for place, found in places.items()}


# ---------------------------------------------------------------- the demo


def demo(records: Path = HERE / "demo.jsonl") -> str:
    """Return what `attendre demo` shows, in short."""
    (table,) = tables_of(read_records(records))
    right = "\n\n".join("\n".join(block) for block in table.blocks(with_interval, WIDE))
    shares = "\n\n".join("\n".join(block) for block in table.blocks(with_shares, WIDE))
    said = sentences(table.measured, 16)
    more = admission(table.measured)
    return "\n".join([
        "```text", right, "```", "",
        "The share of new entries let in, and the share of a chunk's own entries there when it",
        "attends:", "", "```text", shares, "```", "",
        *(f"- {s}" for s in [*said, *([more] if more else [])]),
    ])  # fmt: skip


# ---------------------------------------------------------------- the study


def models() -> str:
    """Return what the manifest knows."""
    known = manifest()["models"]
    tasks = list(next(iter(known.values()))["short_context_accuracy"])
    rows = [
        [
            f"`{name}`", f"{m['parameters']:,}", f"{m['bytes'] / 1000:.0f} kB",
            f"{m['recipe']['steps']:,} in {m['seconds'] / 60:.0f} min",
            *(f"{100 * m['short_context_accuracy'][task]:.1f}" for task in tasks),
        ]
        for name, m in known.items()
    ]  # fmt: skip
    return markdown(["model", "parameters", "file", "steps", *tasks], rows)


def choice(found: Study) -> str:
    """Return the candidates for our preset, on the documents of the choice."""
    rows = []
    for name in study.CANDIDATES:
        cells = [m for m in found.chosen if m.cell.system == name and m.cell.sigmas == -1.0]
        right, of = (
            sum(x)
            for x in zip(
                *((m.outcome.right.sum(), m.outcome.right.size) for m in cells), strict=True
            )
        )
        low = min(cells, key=lambda m: m.accuracy.value)
        rows.append([
            f"`{name}`", f"{right} of {of}", f"{100 * right / of:.1f}",
            f"{100 * low.accuracy.value:.0f} ({_place(low)})", _mean(cells, "admitted"),
            _mean(cells, "present"),
        ])  # fmt: skip
    return markdown(
        ["candidate, c = -1", "right", "%", "lowest cell", "let in", "own chunk there"], rows
    )


def best_c(found: Study) -> str:
    """Return the c that was chosen for each policy."""
    names = study.ATTENTIVE + study.BY_USE
    rows = [
        [f"{', '.join(place)}, {words}"]
        + [f"{found.best_c[(*place, name, waits)]:g}".replace("-", MINUS) for name in names]
        for place in found.tables
        for waits, words in ((False, "N = 0"), (True, "N > 0"))
    ]
    return markdown(["", *names], rows)


def claim_table(found: Study, answers: str) -> str:
    """Return the paper's claims, decided on documents that chose nothing."""
    return _claims(
        {
            place: claims(found.choice_tables[place], table, 16)
            for place, table in found.tables.items()
            if place[2] == answers
        }
    )


def paper_claim_table(found: Study, answers: str) -> str:
    """Return those claims that depend on c, at the paper's c, on the same documents."""
    return _claims(
        {
            place: [
                claim
                for claim in claims(found.paper_choice_tables[place], table, 16)
                if claim.systems[0] not in ("AS", "attendre")
            ]
            for place, table in found.paper_tables.items()
            if place[2] == answers
        }
    )


def _claims(of_places: dict[tuple[str, str, str], list[Claim]]) -> str:
    """Return a row for each claim, a column for each model and task."""
    rows: dict[str, dict[tuple[str, str, str], str]] = {}
    for place, found in of_places.items():
        for claim in found:
            first, second = (
                f"{name} {100 * share:.0f}"
                for name, share in zip(claim.systems, claim.shares, strict=True)
            )
            verdict = f"**{claim.verdict}**" if claim.verdict == "holds" else claim.verdict
            text = f"{first}, {second}: {_gap(claim.gap)} {verdict}"
            rows.setdefault(claim.words, {})[place] = text
    return markdown(
        ["claim", *(f"{place[0]}, {place[1]}" for place in of_places)],
        [[words, *(cells.get(place, "") for place in of_places)] for words, cells in rows.items()],
        figures=False,
    )


def papers_c(found: Study) -> str:
    """Return best and paper's c side by side, on documents that chose nothing."""
    rows = []
    for place, table in found.tables.items():
        for kv, q in [size for size in table.sizes if size in study.CHOICE]:
            row = [f"{', '.join(place)}", f"{kv}/{q}"]
            for name in ("MT", "AS", "first-M"):
                row.append(_percent(table.at(name, kv, q)))
            for name in study.ATTENTIVE:
                own, theirs = (t.at(name, kv, q) for t in (table, found.paper_tables[place]))
                row.append(f"{_percent(own)} / {_percent(theirs)} ({_let_in(theirs)})")
            rows.append(row)
    return markdown(["", "M/N", "MT", "AS", "first-M", *study.ATTENTIVE], rows)


def summary(found: Study) -> str:
    """Return all sizes with waiting queries: the paper's systems, others, controls."""
    rows = []
    for place, table in found.tables.items():
        for kv, q in study.WAITING:
            top = _chosen_best(found, place, kv, q)
            rows.append([
                ", ".join(place), f"{kv}/{q}",
                *(_percent(table.at(name, kv, q)) for name in ("MT", "AS")),
                f"{_percent(top)} {top.cell.system}" if top else "",
                f"**{_percent(table.at('attendre', kv, q))}**",
                _percent(table.at(study.PLAIN, kv, q)),
                *(_percent(table.at(name, kv, q)) for name in (*OTHER_PRESETS, *SIZED_CONTROLS)),
                *(_percent(table.at(name, 0, 0)) for name in ("no-memory", "closed-book", "full")),
            ])  # fmt: skip
    head = [
        "",
        "M/N",
        "MT",
        "AS",
        "best LRA, LFA",
        "attendre",
        "it at M slots",
        *OTHER_PRESETS,
        *SIZED_CONTROLS,
    ]
    return markdown([*head, "no-memory", "closed-book", "full"], rows)


def _chosen_best(found: Study, place: tuple[str, str, str], kv: int, q: int) -> Measured | None:
    """Return the LRA or LFA that was best on the other documents (there, at M/N = 64/32)."""
    choice = found.choice_tables[place]
    size = (kv, q) if (kv, q) in study.CHOICE else (64, 32)
    top = best([m for m in choice.measured if (m.cell.kv_size, m.cell.q_size) == size])
    return None if top is None else found.tables[place].at(top.cell.system, kv, q)


#: How our preset meets another: words, and the size of ours for a size of the other.
MEETINGS: dict[str, Callable[[int, int], tuple[int, int] | None]] = {
    "same M, same N > 0": lambda kv, q: (kv, q) if q else None,
    "half of M, half of N": lambda kv, q: (kv // 2, q // 2) if q else None,
    "it waits, the other does not": lambda kv, q: None if q else (kv, kv // 2),
    "neither waits": lambda kv, q: None if q else (kv, q),
}
OPPONENTS = (*PAPER_PRESETS, *OTHER_PRESETS, *SIZED_CONTROLS)


def _pairs(found: Study, own: str, name: str, meeting: str) -> list[tuple[Measured, Measured]]:
    """Return cells of ``own`` and of another system that are compared."""
    pairs = []
    for table in found.tables.values():
        for kv, q in table.sizes:
            size = MEETINGS[meeting](kv, q)
            if size is not None:
                ours, other = table.at(own, *size), table.at(name, kv, q)
                if ours is not None and other is not None:
                    pairs.append((ours, other))
    return pairs


def wins(found: Study, own: str = "attendre") -> str:
    """Return wins, ties and losses of our preset, and its lowest difference."""
    rows = []
    every = {"the paper's, together": PAPER_PRESETS, **{f"`{name}`": (name,) for name in OPPONENTS}}
    for words, names in every.items():
        row = [words]
        for meeting in MEETINGS:
            pairs = [pair for name in names for pair in _pairs(found, own, name, meeting)]
            gaps = [found.gap(ours, other) for ours, other in pairs]
            won = sum(gap.low > 0 for gap in gaps)
            lost = sum(gap.high < 0 for gap in gaps)
            low = f"{100 * min(gap.value for gap in gaps):+.0f}" if gaps else ""
            row.append(f"{won} / {len(gaps) - won - lost} / {lost} ({low})" if gaps else "")
        rows.append(row)
    return markdown(["against", *MEETINGS], rows)


def losses(found: Study, own: str = "attendre") -> str:
    """Return every comparison that our preset lost, with its interval."""
    lines = []
    for meeting in MEETINGS:
        for name in OPPONENTS:
            for ours, other in _pairs(found, own, name, meeting):
                gap = found.gap(ours, other)
                if gap.high < 0:
                    place = ", ".join(ours.cell[:3])
                    lines.append(
                        f"- {place}: {_percent(ours)} at {ours.cell.kv_size}/{ours.cell.q_size} "
                        f"against {_percent(other)} of `{name}` at "
                        f"{other.cell.kv_size}/{other.cell.q_size}, {_gap(gap)} points"
                    )
    return "\n".join(lines) or "None."


def all_cells(found: Study) -> str:
    """Return every confirmed cell with interval and both shares."""
    parts = []
    groups = (("MT", "AS", *study.ATTENTIVE, *study.BY_USE, "attendre", study.PLAIN),
              (*OTHER_PRESETS, *SIZED_CONTROLS))  # fmt: skip
    for place, table in found.tables.items():
        parts.append(f"## {', '.join(place)}")
        whole = [(name, table.at(name, 0, 0)) for name in ("full", "no-memory", "closed-book")]
        parts.append("; ".join(f"{name}: {with_interval(m)} %" for name, m in whole if m) + ".")
        for names in groups:
            known = [name for name in names if name in table.systems]
            for write in (with_interval, with_shares):
                parts.append(_sized(table, known, write))
    return "\n\n".join(parts)


def _sized(table: Table, names: Sequence[str], write: Callable[[Measured], str]) -> str:
    rows = []
    for kv, q in table.sizes:
        cells = [table.at(name, kv, q) for name in names]
        if any(cells):
            rows.append([f"{kv}/{q}", *(write(m) if m else "" for m in cells)])
    title = "M/N, right %" if write is with_interval else "M/N, let in, own chunk there"
    return markdown([title, *names], rows)


def _percent(m: Measured | None) -> str:
    return "" if m is None else f"{100 * m.accuracy.value:.0f}"


def _let_in(m: Measured | None) -> str:
    return "" if m is None else f"{m.outcome.admitted.mean():.2f}"


def _mean(cells: Sequence[Measured], name: str) -> str:
    return f"{sum(float(getattr(m.outcome, name).mean()) for m in cells) / len(cells):.2f}"


def _gap(gap: Interval) -> str:
    return f"{100 * gap.value:+.0f} [{100 * gap.low:+.0f}, {100 * gap.high:+.0f}]"


def _place(m: Measured) -> str:
    return f"{m.cell.model}, {m.cell.task}, {m.cell.answers}, M = {m.cell.kv_size}"
