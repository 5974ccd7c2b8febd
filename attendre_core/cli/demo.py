"""``attendre demo``: one stream, every policy, and what each of them kept."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendre_core.backend import backend
from attendre_core.cli.arguments import Parser, add_command, add_shared, print_json, whole_number
from attendre_core.cli.planted import Fate, Outcome, PlantedStream, plant, stream_through
from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError
from attendre_core.presets import PRESETS, preset

__all__ = ["add_to"]

_DESCRIPTION = """\
Stream a made-up sequence through every preset policy and show what each one kept.

The sequence is noise with four important keys planted in its first half; every query
asks for them. The memory holds only a small part of the sequence, so each policy has
to choose. All of it is computed while you watch; --seed makes another sequence."""

_EXAMPLES = """\
  attendre demo
  attendre demo --kv 128                      a memory twice as large
  attendre demo --presets MT LFA-0 LFA-1e-2   only these policies
  attendre demo --sigmas 0                    new entries start at the mean score
  attendre demo --present visible             a chunk is attended before it may be refused
  attendre demo --backend torch --seed 7
  attendre demo --backend jax --compile       JAX is made for compiled steps
  attendre demo --json | python -m json.tool"""


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "demo",
        "stream a sequence through every policy, show what each kept",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    parser.add_argument(
        "--kv", type=whole_number(1), default=64, metavar="M", help="slots of the memory (64)"
    )
    parser.add_argument(
        "--chunk", type=whole_number(1), default=32, metavar="S", help="tokens per step (32)"
    )
    parser.add_argument(
        "--length", type=whole_number(16), default=1024, metavar="T", help="tokens in all (1024)"
    )
    parser.add_argument(
        "--top-k",
        type=whole_number(1),
        default=8,
        metavar="K",
        help="entries each query retrieves (8, or all slots if there are fewer); LRU and LFU "
        "depend on it",
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, help="which sequence (0)")
    _add_rules(parser)
    add_shared(parser, backend_help="array library to run on (numpy); see 'attendre info'")
    parser.add_argument(
        "--compile", action="store_true", help="compile each step, where the library can"
    )


def _add_rules(parser: Parser) -> None:
    parser.add_argument(
        "--presets",
        nargs="+",
        default=PRESETS,
        metavar="NAME",
        help="only these policies; any LFA-<decay> is understood (all of 'attendre info')",
    )
    parser.add_argument(
        "--sigmas",
        type=_finite,
        metavar="C",
        help="new entries start C standard deviations below the mean stored score (the preset's)",
    )
    parser.add_argument(
        "--present",
        choices=("compete", "visible"),
        default="compete",
        help="when a chunk's own entries compete: before its queries attend, as in the paper, or "
        "after (compete)",
    )


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not possible; give a finite number")
    return number


def run(arguments: argparse.Namespace) -> None:
    """Stream, then print."""
    if arguments.length <= arguments.kv:
        raise ConfigError(
            f"demo: --length {arguments.length} fits into --kv {arguments.kv}, so nothing would "
            f"have to go. Give a length above {arguments.kv}."
        )
    on = backend(arguments.backend)
    if arguments.compile and "compile" not in on.capabilities:
        raise ConfigError(f"demo: the backend {on.name} has no compiler. Leave out --compile.")
    stream = plant(arguments.length, seed=arguments.seed)
    top_k = min(arguments.top_k, arguments.kv)
    outcomes = {}
    for name in arguments.presets:
        config = preset(
            name, arguments.kv, chunk=arguments.chunk, top_k=top_k, sigmas=arguments.sigmas
        )
        memory = dataclasses.replace(config.kv_memory(), present=arguments.present)
        outcomes[name] = stream_through(
            memory, stream, chunk=arguments.chunk, top_k=top_k, on=on, compiled=arguments.compile
        )
    reading = read(stream, outcomes, arguments.kv)
    if arguments.json:
        print_json(as_json(arguments, stream, outcomes, reading))
    else:
        print_table(arguments, stream, outcomes, reading)


def as_json(
    arguments: argparse.Namespace,
    stream: PlantedStream,
    outcomes: dict[str, Outcome],
    reading: list[str],
) -> dict[str, Any]:
    """Return everything that the table shows, and the exact positions."""
    settings = ("backend", "kv", "chunk", "length", "top_k", "seed", "sigmas", "present")
    return {
        "command": "demo",
        "settings": {name: getattr(arguments, name) for name in settings},
        "planted": list(stream.planted),
        "policies": [
            {
                "name": name,
                **{fate.name.lower(): count(outcome, fate) for fate in Fate},
                "admitted_share": outcome.admitted_share,
                "planted": [Fate(outcome.fate[at]).name.lower() for at in stream.planted],
                "kept_positions": np.flatnonzero(outcome.fate == Fate.KEPT).tolist(),
            }
            for name, outcome in outcomes.items()
        ],
        "reading": reading,
    }


def count(outcome: Outcome, fate: Fate) -> int:
    """Count the entries with one fate."""
    return int(np.count_nonzero(outcome.fate == fate))


def survivors(outcome: Outcome, stream: PlantedStream) -> int:
    """Count the planted entries that are still in the memory."""
    return sum(outcome.fate[at] == Fate.KEPT for at in stream.planted)


def read(stream: PlantedStream, outcomes: dict[str, Outcome], kv: int) -> list[str]:
    """Say in sentences what the outcomes show; every figure is computed from them."""
    length, planted = stream.key.shape[1], len(stream.planted)
    kept = {name: survivors(outcome, stream) for name, outcome in outcomes.items()}
    sentences = [
        f"Each memory had room for {kv} of {length} entries ({kv / length:.1%}), and {planted} "
        "entries were worth keeping because every query asked for them."
    ]
    groups = [
        ("all of them", [name for name, n in kept.items() if n == planted]),
        ("some", [f"{name} ({n})" for name, n in kept.items() if 0 < n < planted]),
        ("none", [name for name, n in kept.items() if n == 0]),
    ]
    parts = [f"{label}: {', '.join(names)}" for label, names in groups if names]
    sentences.append(f"Who still holds them at the end? {'; '.join(parts)}.")
    lost = [
        (name, Fate(outcome.fate[at]))
        for name, outcome in outcomes.items()
        for at in stream.planted
        if outcome.fate[at] != Fate.KEPT
    ]
    if lost:
        refused = sum(fate == Fate.REFUSED for _, fate in lost)
        sentences.append(
            f"Of the {len(lost)} planted entries lost over all policies, {refused} were refused on "
            f"arrival, before a query had met them, and {len(lost) - refused} were displaced later."
        )
    lowest = min(outcomes, key=lambda name: outcomes[name].admitted_share)
    share = outcomes[lowest].admitted_share
    advice = (
        "under 0.5 a memory refuses most newcomers; compare --sigmas 0 and --present visible."
        if share < 0.5
        else "no memory refused most of its newcomers."
    )
    sentences.append(f"The lowest admitted share is {share:.2f} ({lowest}): {advice}")
    return sentences


def print_table(
    arguments: argparse.Namespace,
    stream: PlantedStream,
    outcomes: dict[str, Outcome],
    reading: list[str],
) -> None:
    """Print a strip and the figures for every policy."""
    terminal = Terminal()
    label = max(len(name) for name in outcomes) + 1
    heading = f"{'kept':>6}{'evicted':>9}{'refused':>9}{'admitted':>10}  planted"
    width = max(16, min(64, terminal.columns - label - len(heading) - 3, arguments.length))
    edge = terminal.choose("│", "|")
    print(
        f"{arguments.length} tokens in chunks of {arguments.chunk}, memories of {arguments.kv} "
        f"slots, backend {arguments.backend}, seed {arguments.seed}\n"
    )
    marks = planted_marks(stream, width, terminal)
    print(f"{'':<{label}} {marks} {terminal.paint(heading, 'dim')}")
    for name, outcome in outcomes.items():
        found = survivors(outcome, stream)
        colour = "green" if found == len(stream.planted) else "red" if found == 0 else "bold"
        figures = "".join(
            f"{count(outcome, fate):>{room}}"
            for fate, room in ((Fate.KEPT, 6), (Fate.EVICTED, 9), (Fate.REFUSED, 9))
        )
        verdict = terminal.paint(f"{found} of {len(stream.planted)}", colour)
        row = strip(outcome.fate, width, terminal)
        print(
            f"{name:<{label}}{edge}{row}{edge}{figures}{outcome.admitted_share:>10.2f}  {verdict}"
        )
    legend = (
        f"First token left, last token right, about {arguments.length / width:.0f} a column. Bars: "
        f"share of them kept; {terminal.choose('·', ',')} held once, evicted later; blank: all "
        f"refused; {terminal.choose('▼', 'v')} planted."
    )
    wide = max(40, min(terminal.columns, 100))
    print("\n" + textwrap.fill(legend, wide) + "\n")
    for sentence in reading:
        print(textwrap.fill(sentence, wide, initial_indent="- ", subsequent_indent="  "))


def planted_marks(stream: PlantedStream, width: int, terminal: Terminal) -> str:
    """Draw a row with a mark over each column that holds a planted entry."""
    length = stream.key.shape[1]
    columns = {at * width // length for at in stream.planted}
    mark = terminal.choose("▼", "v")
    return "".join(mark if column in columns else " " for column in range(width)) + " "


def strip(fate: NDArray[np.int8], width: int, terminal: Terminal) -> str:
    """Draw the fate of all entries in ``width`` columns."""
    column = np.arange(fate.size) * width // fate.size
    size = np.bincount(column, minlength=width)
    kept = np.bincount(column[fate == Fate.KEPT], minlength=width)
    evicted = np.bincount(column[fate == Fate.EVICTED], minlength=width)
    bars = terminal.bars((kept / size).tolist())
    once = terminal.choose("·", ",")
    return "".join(once if kept[i] == 0 and evicted[i] > 0 else bar for i, bar in enumerate(bars))
