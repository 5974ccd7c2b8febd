"""Markdown from measured cells: every figure of README and docs comes from here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import study
from claims import Claim, best_at, claims, sizes_of
from compact import Place, read_cells
from study_results import HERE, SCORED, Study

from attendre_core.evaluation.controls import CONTROLS, SIZELESS, label_of
from attendre_core.evaluation.intervals import Interval, share
from attendre_core.evaluation.sweep import Cell, Measured, Table, size_table, summarise
from attendre_core.evaluation.sweep.findings import findings
from attendre_core.evaluation.sweep.table import percent, shares, sizeless_line
from attendre_core.evaluation.tasks import LookAhead
from attendre_core.evaluation.tiny.shipped import manifest
from attendre_core.presets import OTHER_PRESETS

MINUS = "\N{MINUS SIGN}"
SIZED_CONTROLS = tuple(name for name in CONTROLS if name not in SIZELESS)


# ---------------------------------------------------------------- the demo


def demo(records: Path = HERE / "demo.jsonl") -> str:
    """Return the figures that `attendre demo --tables` prints, and all its sentences."""
    measured = list(read_cells(records).values())
    summary = summarise(measured, LookAhead.metrics, "MT")
    right, more = (
        f"{size_table(summary, write).plain()}\n\n{sizeless_line(summary, write)}"
        for write in (percent, shares)
    )
    return "\n".join([
        "```text", right, "```", "",
        "The share of new entries let in, and the share of a chunk's own entries there when it",
        "attends:", "", "```text", more, "```", "",
        *(f"- {sentence}" for sentence in findings(measured, study.CHUNK)),
    ])  # fmt: skip


# ---------------------------------------------------------------- the study


def models() -> str:
    """Return what the manifest says."""
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
    return Table(["model", "parameters", "file", "steps", *tasks], rows).markdown()


def choice(found: Study) -> str:
    """Return the candidates for our preset, on the documents of the choice."""
    rows = []
    for name in study.CANDIDATES:
        label = label_of(name)
        cells = {key: m for key, m in found.chosen.items() if key[1].policy == label}
        flags = [flag for m in cells.values() for flag in m.column("right").values()]
        place, low = min(cells, key=lambda key: cells[key].mean("right"))
        rows.append([
            f"`{name}`", f"{sum(flags):.0f} of {len(flags)}", f"{100 * share(flags).value:.1f}",
            f"{percent_text(cells[place, low])} ({', '.join(place)}, M = {low.kv})",
            _mean(cells.values(), "admitted"), _mean(cells.values(), "present"),
        ])  # fmt: skip
    head = ["candidate", "right", "%", "lowest cell", "let in", "own chunk there"]
    return Table(head, rows).markdown()


def best_c(found: Study) -> str:
    """Return the c that was chosen for each policy."""
    rows = [
        [f"{', '.join(place)}, {words}"]
        + [f"{found.best_c[place, name, waits]:g}".replace("-", MINUS) for name in SCORED]
        for place in found.tables
        for waits, words in ((False, "N = 0"), (True, "N > 0"))
    ]
    return Table(["", *SCORED], rows).markdown()


def claim_table(found: Study, answers: str) -> str:
    """Return the paper's claims, decided on documents that chose nothing."""
    return _claims({
        place: claims(found.choice_tables[place], table, study.CHUNK)
        for place, table in found.tables.items()
        if place.answers == answers
    })  # fmt: skip


def paper_claim_table(found: Study, answers: str) -> str:
    """Return those claims that depend on c, at the paper's c, on the same documents."""
    return _claims({
        place: [
            claim
            for claim in claims(found.paper_choice_tables[place], table, study.CHUNK)
            if claim.systems[0] not in ("AS", "attendre")
        ]
        for place, table in found.paper_tables.items()
        if place.answers == answers
    })  # fmt: skip


def _claims(of_places: dict[Place, list[Claim]]) -> str:
    """Return a row per claim, a column per model and task."""
    rows: dict[str, dict[Place, str]] = {}
    for place, found in of_places.items():
        for claim in found:
            first, second = (
                f"{name} {100 * share:.0f}"
                for name, share in zip(claim.systems, claim.shares, strict=True)
            )
            verdict = f"**{claim.verdict}**" if claim.verdict == "holds" else claim.verdict
            text = f"{first}, {second}: {gap_text(claim.gap)} {verdict}"
            rows.setdefault(claim.words, {})[place] = text
    return Table(
        ["claim", *(f"{place.model}, {place.task}" for place in of_places)],
        [[words, *(cells.get(place, "") for place in of_places)] for words, cells in rows.items()],
    ).markdown(figures=False)


def papers_c(found: Study) -> str:
    """Return best and paper's c side by side, on documents that chose nothing."""
    rows = []
    for place, table in found.tables.items():
        for kv, q in [size for size in sizes_of(table) if size in study.CHOICE]:
            row = [", ".join(place), f"{kv}/{q}"]
            row += [percent_text(found.at(place, name, kv, q)) for name in ("MT", "AS", "first-M")]
            for name in study.ATTENTIVE:
                theirs = found.paper_at(place, name, kv, q)
                let_in = "" if theirs is None else f"{theirs.mean('admitted'):.2f}"
                best = percent_text(found.at(place, name, kv, q))
                row.append(f"{best} / {percent_text(theirs)} ({let_in})")
            rows.append(row)
    return Table(["", "M/N", "MT", "AS", "first-M", *study.ATTENTIVE], rows).markdown()


def summary(found: Study) -> str:
    """Return all sizes with waiting queries: the paper's systems, others, controls."""
    rows = []
    for place in found.tables:
        for kv, q in study.WAITING:

            def at(name: str, place: Place = place, kv: int = kv, q: int = q) -> str:
                return percent_text(
                    found.at(place, name, *((0, 0) if name in SIZELESS else (kv, q)))
                )

            top = _chosen_best(found, place, kv, q)
            rows.append([
                ", ".join(place), f"{kv}/{q}", at("MT"), at("AS"),
                f"{percent_text(top)} {top.cell.policy}" if top else "",
                f"**{at('attendre')}**", at(study.PLAIN),
                *(at(name) for name in (*OTHER_PRESETS, *SIZED_CONTROLS)),
                *(at(name) for name in ("no-memory", "closed-book", "full")),
            ])  # fmt: skip
    head = ["", "M/N", "MT", "AS", "best LRA, LFA", "attendre", "it at M slots"]
    head += [*OTHER_PRESETS, *SIZED_CONTROLS, "no-memory", "closed-book", "full"]
    return Table(head, rows).markdown()


def _chosen_best(found: Study, place: Place, kv: int, q: int) -> Measured | None:
    """Return the LRA or LFA that was best on the other documents (there, at M/N = 64/32)."""
    size = (kv, q) if (kv, q) in study.CHOICE else (64, 32)
    top = best_at(found.choice_tables[place], size)
    return None if top is None else found.tables[place].get(Cell(top.cell.policy, kv, q))


def all_cells(found: Study) -> str:
    """Return every confirmed cell with interval and both shares."""
    parts = []
    groups = (("MT", "AS", *SCORED, "attendre", study.PLAIN), (*OTHER_PRESETS, *SIZED_CONTROLS))
    for place in found.tables:
        parts.append(f"## {', '.join(place)}")
        whole = [(name, found.at(place, name, 0, 0)) for name in CONTROLS if name in SIZELESS]
        parts.append("; ".join(f"{name}: {_interval(m)} %" for name, m in whole if m) + ".")
        for names in groups:
            for title, write in (
                ("M/N, right %", _interval),
                ("M/N, let in, own chunk there", _shares),
            ):
                parts.append(_sized(found, place, names, title, write))
    return "\n\n".join(parts)


def _sized(
    found: Study, place: Place, names: Sequence[str], title: str, write: Callable[[Measured], str]
) -> str:
    sizes = sizes_of(found.tables[place])
    columns = {name: [found.at(place, name, *size) for size in sizes] for name in names}
    known = {name: column for name, column in columns.items() if any(column)}
    rows = [
        [f"{kv}/{q}", *(write(m) if m else "" for m in row)]
        for (kv, q), row in zip(sizes, zip(*known.values(), strict=True), strict=True)
        if any(row)
    ]
    return Table([title, *(_headed(name) for name in known)], rows).markdown()


def _headed(name: str) -> str:
    return f"{name}, best c" if name in SCORED else name


def _interval(m: Measured) -> str:
    value, low, high = (round(100 * x) for x in share(list(m.column("right").values())))
    return f"{value} ({low}-{high})"


def _shares(m: Measured) -> str:
    return f"{m.mean('admitted'):.2f} {m.mean('present'):.2f}"


def percent_text(m: Measured | None) -> str:
    """Write the right answers of a cell in percent; nothing for a cell that is missing."""
    return "" if m is None else f"{100 * m.mean('right'):.0f}"


def _mean(cells: Iterable[Measured], name: str) -> str:
    means = [m.mean(name) for m in cells]
    return f"{sum(means) / len(means):.2f}"


def gap_text(gap: Interval) -> str:
    """Write a difference in points with its interval."""
    return f"{100 * gap.value:+.0f} [{100 * gap.low:+.0f}, {100 * gap.high:+.0f}]"
