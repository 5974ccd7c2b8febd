"""Markdown about policies, from records of ``attendre eval``: which one, and oracle or bounded.

The records are ``policies/NAME.jsonl``, or ``NAME.jsonl`` if another page shows them too, and
``policies/commands.txt`` has the commands that made them, each with ``--out NAME``. Above the
commands of a kind of model stands ``# KIND -> SYSTEM``: the system that is recommended for it.
Above those that recommend nothing stands ``# WHAT``.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attendre_core.evaluation.controls import CONTROLS, ORACLE, label_of
from attendre_core.evaluation.intervals import ENOUGH, Interval
from attendre_core.evaluation.sweep import Cell, Measured, Table, read_results
from attendre_core.evaluation.sweep.summary import cost_of, paired
from attendre_core.evaluation.sweep.table import gap_text
from attendre_core.evaluation.tasks import Continuation, Embedding, MultiTurn, Perplexity, TriviaQA
from attendre_core.evaluation.tasks.task import Metric
from attendre_core.presets import preset

HERE = Path(__file__).parent / "policies"
#: The simple memories that a recommended system has to be as good as.
SIMPLE = ("AS", "MT")
#: The first metric of each task; all others ask questions.
_METRICS = {task.name: task.metrics[0] for task in (Perplexity, Embedding, Continuation, MultiTurn)}


class Gap(NamedTuple):
    """A paired difference, turned so that more is better, and its number of items."""

    interval: Interval
    items: int

    @property
    def better(self) -> bool:
        """Whether the first is better, with enough items to say so."""
        return self.interval.low > 0 and self.items >= ENOUGH

    @property
    def worse(self) -> bool:
        """Whether the first is worse, with enough items to say so."""
        return self.interval.high < 0 and self.items >= ENOUGH


class Command(NamedTuple):
    """A command, the record that it wrote, and the kind of model that it belongs to."""

    text: str
    record: str
    kind: str
    system: str


class Record(NamedTuple):
    """What was measured on one task with one model."""

    name: str
    identity: dict[str, Any]
    cells: dict[Cell, Measured]

    @property
    def metric(self) -> Metric:
        """The metric by which systems are compared."""
        return _METRICS.get(self.identity["task"], TriviaQA.metrics[0])

    def at(self, policy: str, kv: int) -> Measured | None:
        """Return a cell whose queries wait for half of M, or do not wait if there is none."""
        cells = (Cell(policy, kv, kv // 2), Cell(policy, kv, 0))
        return next((self.cells[cell] for cell in cells if cell in self.cells), None)

    def sizes(self, policy: str) -> list[int]:
        """Return the sizes at which a system was measured."""
        return sorted({cell.kv for cell in self.cells if cell.policy == policy and cell.kv})

    def policies(self, kv: int) -> list[str]:
        """Return the systems of a size in their order, without controls; no oracles."""
        names = dict.fromkeys(cell.policy.removesuffix(ORACLE) for cell in self.cells)
        known = {cell.policy for cell in self.cells if cell.kv == kv}
        return [
            name for name in names
            if name not in CONTROLS and (name in known or name + ORACLE in known)
        ]  # fmt: skip

    def gap(self, one: Measured | None, other: Measured | None) -> Gap | None:
        """Return how much better one cell is than another on the same items."""
        if one is None or other is None or one is other:
            return None
        name, sign = self.metric.name, 1 if self.metric.higher else -1
        found = paired(one, other, name)
        if found is None:
            return None
        value, low, high = (sign * x for x in found)
        both = one.column(name).keys() & other.column(name).keys()
        return Gap(Interval(value, min(low, high), max(low, high)), len(both))


def read_commands(folder: Path = HERE) -> list[Command]:
    """Read ``commands.txt``: commands may be continued with a backslash."""
    commands: list[Command] = []
    kind, system = "", ""
    text = (folder / "commands.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith("#"):
            kind, _, system = (part.strip() for part in line.lstrip("#").partition("->"))
            system = label_of(system) if system else ""
        elif line.strip():
            words = shlex.split(line)
            record = Path(words[words.index("--out") + 1]).name
            commands.append(Command(" ".join(line.split()), record, kind, system))
    return commands


def read_record(name: str, folder: Path = HERE) -> Record:
    """Read a record; systems are under their canonical names."""
    own = folder / f"{name}.jsonl"
    identity, measured = read_results(own if own.exists() else HERE.parent / f"{name}.jsonl")
    cells = {}
    for found in measured:
        cell = found.cell._replace(policy=label_of(found.cell.policy))
        cells[cell] = Measured(cell, found.scores)
    return Record(name, identity, cells)


# ---------------------------------------------------------------- which policy?


def which(folder: Path = HERE) -> str:
    """Return one row per kind of model: the system, what it holds, and when not to take it."""
    kinds: dict[tuple[str, str], list[Record]] = {}
    for command in read_commands(folder):
        if not command.system:
            continue
        known = kinds.setdefault((command.kind, command.system), [])
        if command.record not in [record.name for record in known]:
            known.append(read_record(command.record, folder))
    rows = []
    for (kind, system), records in kinds.items():
        verdicts = [v for record in records for v in verdicts_on(record, system)]
        least = min((v.items for v in verdicts), default=0)
        rows.append([
            kind, f"`{system}`", _holds(records, system),
            _counted(verdicts, [v.simple for v in verdicts]),
            _counted(verdicts, [v.best for v in verdicts]),
            _when_not(verdicts), str(least),
        ])  # fmt: skip
    head = [
        "your model", "system", "entries held per layer", "against the better of AS and FIFO",
        "against the best policy of the task", "when not", "least n",
    ]  # fmt: skip
    return Table(head, rows).markdown(figures=False)


class Verdict(NamedTuple):
    """How a system did on a record at one size.

    ``simple`` is the gap to the better of the simple memories, ``best`` that to the best other
    system, which is named ``winner``; None if there is none.
    """

    record: str
    kv: int
    items: int
    simple: Gap | None
    best: Gap | None
    winner: str


def verdicts_on(record: Record, system: str) -> Iterator[Verdict]:
    """Compare a system, bounded, with all others of the same M."""
    sign = 1 if record.metric.higher else -1
    for kv in record.sizes(system):
        one = record.at(system, kv)
        if one is None:
            continue
        others = {
            name: found for name in record.policies(kv)
            if name != system and (found := record.at(name, kv)) is not None
        }  # fmt: skip
        means = {name: sign * found.mean(record.metric.name) for name, found in others.items()}
        simple = max((n for n in SIMPLE if n in others), key=means.__getitem__, default=None)
        winner = max(others, key=means.__getitem__, default=None)
        yield Verdict(
            record.name, kv, len(one.scores),
            record.gap(one, others[simple]) if simple else None,
            record.gap(one, others[winner]) if winner else None,
            winner or "",
        )  # fmt: skip


def _counted(verdicts: Sequence[Verdict], gaps: Sequence[Gap | None]) -> str:
    known = [gap for gap in gaps if gap is not None]
    better, worse = sum(gap.better for gap in known), sum(gap.worse for gap in known)
    return f"better {better}, alike {len(known) - better - worse}, worse {worse}"


def _when_not(verdicts: Sequence[Verdict]) -> str:
    lost = [
        f"{v.record}, M = {v.kv} ({v.winner} is better)"
        for v in verdicts
        if (v.simple and v.simple.worse) or (v.best and v.best.worse)
    ]
    return "; ".join(lost) or "no such case was found"


def _holds(records: Sequence[Record], system: str) -> str:
    """Return what a system holds, in terms of M, S and N."""
    texts = []
    for record in records:
        for cell, found in record.cells.items():
            if cell.policy != system or found is not record.at(system, cell.kv):
                continue
            entries, chunk = found.mean("entries"), record.identity["chunk"]
            if math.isnan(entries):
                entries = preset(system, cell.kv).kv_memory().slots(chunk)
            waiting = ", and M/2 waiting queries" if cell.q else ""
            texts.append(f"M{_beyond(entries - cell.kv, chunk)}{waiting}")
    # "M + S" need not be said twice if layers with a window hold something else besides.
    texts = [
        text for text in dict.fromkeys(texts) if not any(t.startswith(f"{text};") for t in texts)
    ]
    return " or ".join(texts)


def _beyond(more: float, chunk: int) -> str:
    if more == 0:
        return ""
    return " + S" if more == chunk else " + S; their window in layers that have one"


# ---------------------------------------------------------------- oracle against bounded


def oracle_table(name: str, folder: Path = HERE) -> str:
    """Return the table of one record: every policy, bounded, and as an oracle if measured."""
    record = read_record(name, folder)
    tables = []
    sizes = {cell.kv for cell in record.cells if cell.policy.endswith(ORACLE)}
    every = {cell.kv for cell in record.cells} - {0}
    # A size at which only sinks were measured is there to be compared with.
    for kv in sorted(sizes or {kv for kv in every if len(record.policies(kv)) > 1}):
        tables.append(_size_table(record, kv))
    alone = [
        f"{cell.policy} {_mean(record, found)}"
        for cell, found in record.cells.items()
        if not cell.kv
    ]
    below = [f"Without a size: {', '.join(alone)}."] if alone else []
    return "\n\n".join([*tables, *below])


def _size_table(record: Record, kv: int) -> str:
    metric = record.metric
    base = next((name for name in SIMPLE if record.at(name, kv)), SIMPLE[0])
    baseline = record.at(base, kv)
    rows, strong = [], set()
    sized = [c.policy for c in record.cells if c.kv == kv and c.policy in CONTROLS]
    for i, name in enumerate([*record.policies(kv), *dict.fromkeys(sized)]):
        bounded, oracle = record.at(name, kv), record.at(name + ORACLE, kv)
        held = math.nan if bounded is None else bounded.mean("entries")
        fair = None if math.isnan(held) or held == kv else record.at(base, round(held))
        gaps = [
            record.gap(oracle, bounded), record.gap(bounded, baseline), record.gap(bounded, fair),
        ]  # fmt: skip
        count = max(len(found.scores) for found in (bounded, oracle) if found)
        cost = math.nan if bounded is None or baseline is None else cost_of(bounded, baseline)
        rows.append([
            f"`{name}`", str(count), _mean(record, bounded), _mean(record, oracle),
            *("" if gap is None else gap_text(metric, gap.interval) for gap in gaps),
            _number(held, 0), _number(cost),
        ])  # fmt: skip
        strong |= {(i, 4 + j) for j, gap in enumerate(gaps) if gap and (gap.better or gap.worse)}
    head = [
        f"{record.name}, M = {kv}", "n", "bounded", "oracle", "oracle over bounded",
        f"bounded over {base}", f"over {base} with as many entries", "entries", "cost",
    ]  # fmt: skip
    return Table(head, rows, frozenset(strong)).markdown()


def ranks(folder: Path = HERE) -> str:
    """Return how well the oracle's order of policies predicts the bounded one, by record."""
    rows = []
    for name, kv, metric, both in _in_both_modes(folder):
        best = max if metric.higher else min
        rows.append([
            name, str(kv), str(len(both)), f"`{best(both, key=lambda each: both[each][0])}`",
            f"`{best(both, key=lambda each: both[each][1])}`",
            f"{spearman(*map(list, zip(*both.values(), strict=True))):.2f}",
        ])  # fmt: skip
    head = ["record", "M", "policies", "best bounded", "best oracle", "rank correlation"]
    return Table(head, rows).markdown()


def standings(folder: Path = HERE) -> str:
    """Return the mean and the worst rank of each policy over the records that have all of them."""
    found = list(_in_both_modes(folder))
    most = max(len(both) for *_, both in found)
    places: dict[str, list[tuple[float, float]]] = {}
    for _, _, metric, both in found:
        if len(both) < most:
            continue
        sign = -1 if metric.higher else 1
        modes = (_ranked(sign * np.asarray(scores)) for scores in zip(*both.values(), strict=True))
        for policy, place in zip(both, zip(*modes, strict=True), strict=True):
            places.setdefault(policy, []).append(place)
    rows = []
    for policy, each in sorted(places.items(), key=lambda one: sum(b for b, _ in one[1])):
        bounded, oracle = (1 + np.asarray(mode) for mode in zip(*each, strict=True))
        numbers = (bounded.mean(), bounded.max(), oracle.mean(), oracle.max())
        rows.append([f"`{policy}`", str(len(each)), *(f"{number:.1f}" for number in numbers)])
    head = ["policy", "records", "bounded, mean rank", "worst", "oracle, mean rank", "worst"]
    return Table(head, rows).markdown()


def _in_both_modes(
    folder: Path,
) -> Iterator[tuple[str, int, Metric, dict[str, tuple[float, float]]]]:
    """Yield records and sizes with the mean scores of each policy, bounded and as an oracle."""
    for name in dict.fromkeys(command.record for command in read_commands(folder)):
        record = read_record(name, folder)
        for kv in sorted({cell.kv for cell in record.cells if cell.policy.endswith(ORACLE)}):
            both = {
                policy: (bounded.mean(record.metric.name), oracle.mean(record.metric.name))
                for policy in record.policies(kv)
                if (bounded := record.at(policy, kv)) and (oracle := record.at(policy + ORACLE, kv))
            }
            if len(both) >= 3:
                yield name, kv, record.metric, both


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal numbers share a rank."""
    first, second = (_ranked(np.asarray(values)) for values in (one, other))
    if first.std() == 0 or second.std() == 0:
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def _ranked(values: Any) -> Any:
    below = (values[:, None] > values[None, :]).sum(axis=1)
    equal = (values[:, None] == values[None, :]).sum(axis=1)
    return below + (equal - 1) / 2


def commands(folder: Path = HERE) -> str:
    """Return the commands, by kind of model; the test of the page checks their arguments."""
    lines: list[str] = []
    kind = None
    for command in read_commands(folder):
        if command.kind != kind:
            lines += ["```", ""] * (kind is not None) + [f"{command.kind}:", "", "```text"]
            kind = command.kind
        lines.append(command.text)
    return "\n".join([*lines, "```"])


def _mean(record: Record, found: Measured | None) -> str:
    if found is None:
        return ""
    value = found.mean(record.metric.name)
    value = math.exp(value) if record.metric.exponential else value
    digits, scale = (0, 100) if record.metric.share else (record.metric.digits, 1)
    return f"{scale * value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _number(x: float, digits: int = 2) -> str:
    return "" if math.isnan(x) else f"{x:.{digits}f}"
