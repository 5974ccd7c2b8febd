"""Markdown from measured cells: every figure of README and docs comes from here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from attendre_core.evaluation import study
from attendre_core.evaluation.claims import Claim, claims
from attendre_core.evaluation.grid import Measured
from attendre_core.evaluation.intervals import Interval, difference
from attendre_core.evaluation.reading import admission, best, sentences
from attendre_core.evaluation.records import read_records
from attendre_core.evaluation.systems import CONTROLS
from attendre_core.evaluation.tables import Table, tables_of
from attendre_core.evaluation.tiny.models import manifest
from attendre_core.presets import OTHER_PRESETS, PAPER_PRESETS

HERE = Path(__file__).parent
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
        best_c = study.best_sigmas(self.chosen)
        at_best = [
            m
            for m in self.chosen
            if m.cell.sigmas is None
            or m.cell.sigmas == best_c.get((*m.cell[:4], m.cell.q_size > 0))
        ]
        self.choice_tables = _by_place(at_best)
        self.tables = _by_place(self.confirmed)
        self.paper_tables = _by_place([m for m in self.chosen if _has_papers_c(m)])
        self.best_c = best_c

    @property
    def documents(self) -> int:
        """Documents behind each confirmed cell."""
        return int(self.confirmed[0].outcome.right.size)


def _has_papers_c(m: Measured) -> bool:
    """Whether a cell has the c that the paper would use: 1 unless it names another."""
    if m.cell.sigmas in (None, "paper"):
        return True
    named = m.cell.model == "prefix-lm" and m.cell.system.startswith("LRA-")
    return m.cell.sigmas == 1.0 and not named


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
    systems = [name for name in table.systems if name not in CONTROLS]
    lines = table.lines(_with_interval, systems)
    said = sentences(table.measured, 16)
    more = admission(table.measured)
    return "\n".join([
        "```text", *lines, "```", "", *(f"- {s}" for s in [*said, *([more] if more else [])]),
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


def claim_table(found: Study) -> str:
    """Return the paper's claims, decided on documents that chose nothing."""
    return _claims(
        {
            place: claims(found.choice_tables[place], table, 16)
            for place, table in found.tables.items()
            if place[2] == "repeat"
        }
    )


def paper_claim_table(found: Study) -> str:
    """Return the same claims at the paper's c, on the documents of the choice."""
    return _claims(
        {
            place: [c for c in claims(table, table, 16) if c.systems != ("AS", "MT")]
            for place, table in found.paper_tables.items()
            if place[2] == "repeat"
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
    """Return best and paper's c side by side, on the documents of the choice."""
    rows = []
    for place, table in found.choice_tables.items():
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
    for name in OPPONENTS:
        row = [f"`{name}`"]
        for meeting in MEETINGS:
            pairs = _pairs(found, own, name, meeting)
            gaps = [difference(a.outcome.right, b.outcome.right) for a, b in pairs]
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
                gap = difference(ours.outcome.right, other.outcome.right)
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
        parts.append("; ".join(f"{name}: {_with_interval(m)} %" for name, m in whole if m) + ".")
        for names in groups:
            known = [name for name in names if name in table.systems]
            for write in (_with_interval, _shares):
                parts.append(_sized(table, known, write))
    return "\n\n".join(parts)


def _sized(table: Table, names: Sequence[str], write: Callable[[Measured], str]) -> str:
    rows = []
    for kv, q in table.sizes:
        cells = [table.at(name, kv, q) for name in names]
        if any(cells):
            rows.append([f"{kv}/{q}", *(write(m) if m else "" for m in cells)])
    title = "M/N, right %" if write is _with_interval else "M/N, let in, own chunk there"
    return markdown([title, *names], rows)


def _with_interval(m: Measured) -> str:
    value, low, high = (round(100 * x) for x in m.accuracy)
    return f"{value} ({low}-{high})"


def _shares(m: Measured) -> str:
    return f"{m.outcome.admitted.mean():.2f} {m.outcome.present.mean():.2f}"


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
