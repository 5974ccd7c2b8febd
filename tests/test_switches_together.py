"""All switches at once, those of the frameworks too, nested at random in threads and tasks."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import pytest

import attendre_core as at
from attendre_core import backend, checks

TRIALS = 200


class Switch(NamedTuple):
    name: str
    turn: Callable[[Any], Any]
    read: Callable[[], Any]
    values: tuple[Any, ...]


CORE = [
    Switch("force_generic", lambda _: at.force_generic(), backend.generic_only, (True,)),
    Switch("machine_code", backend.machine_code, backend.machine_code_allowed, (True, False)),
    Switch(
        "fused_kernels", backend.fused_kernels, backend.fused_mode, ("on", "off", "interpreted")
    ),
    Switch("value_checks", checks.value_checks, checks._VALUES.get, (True, False)),
]


def found() -> list[Switch]:
    """Return the switches of the core, and of the frameworks that are installed."""
    switches = list(CORE)
    with suppress(ModuleNotFoundError):
        compiling, flex, half, looking = (
            importlib.import_module(f"attendre_torch.{name}")
            for name in ("compiling", "flex", "half", "looking")
        )
        switches += [
            Switch(
                "compile_steps", compiling.compile_steps, lambda: compiling._CHOICE.get().on,
                (True, False),
            ),
            Switch("use_flex", flex.use_flex, flex._WANTED.get, (True, False)),
            Switch("half_on_cpu", lambda _: half.half_on_cpu(), half._ON_CPU.get, (True,)),
            Switch(
                "as_on_a_device", lambda _: looking.as_on_a_device(), looking._PRETENDED.get,
                (True,),
            ),
        ]  # fmt: skip
    with suppress(ModuleNotFoundError):
        foreign, heads, retrieval = (
            importlib.import_module(f"attendre_jax.{name}")
            for name in ("foreign", "heads", "retrieval")
        )
        switches += [
            Switch("approx_max_k", retrieval.approx_max_k, retrieval._RECALL.get, (0.5, 0.9)),
            Switch("head_axis", heads.head_axis, heads._AXIS.get, ("model", ("a", "b"))),
        ]
        if importlib.util.find_spec("numba"):
            switches.append(
                Switch("jax machine_code", lambda _: foreign.machine_code(), foreign._WANTED.get,
                       (True,))
            )  # fmt: skip
    return switches


class FailedError(Exception):
    """What some blocks end with."""


@pytest.fixture(scope="module")
def switches() -> list[Switch]:
    return found()


def usual(switches: list[Switch]) -> list[Any]:
    return [switch.read() for switch in switches]


async def nested(switches: list[Switch], rng: random.Random, wrong: list[str]) -> None:
    """Turn switches inside of each other, let others run in between, and compare."""
    expected = usual(switches)
    with suppress(FailedError), ExitStack() as stack:
        for _ in range(rng.randint(1, 4)):
            number = rng.randrange(len(switches))
            switch, value = switches[number], rng.choice(switches[number].values)
            stack.enter_context(switch.turn(value))
            expected[number] = value
            await asyncio.sleep(0)
            for each, own in zip(switches, expected, strict=True):
                if each.read() != own:
                    wrong.append(f"{each.name} is {each.read()!r}, this task set {own!r}")
        if rng.random() < 0.3:
            raise FailedError
        if rng.random() < 0.2:
            await asyncio.sleep(60)  # it will be cancelled here


async def trial(switches: list[Switch], seed: int, wrong: list[str]) -> None:
    rng = random.Random(seed)
    tasks = [asyncio.create_task(nested(switches, rng, wrong)) for _ in range(6)]
    _, waiting = await asyncio.wait(tasks, timeout=0.005)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and task.exception():
            wrong.append(repr(task.exception()))


def test_no_switch_sticks_or_is_seen_elsewhere(switches: list[Switch]) -> None:
    before, wrong = usual(switches), []

    def run(first: int) -> None:
        begun = usual(switches)
        for seed in range(first, TRIALS, 4):
            asyncio.run(trial(switches, seed, wrong))
            if usual(switches) != begun or begun != before:
                wrong.append(f"after trial {seed}: {usual(switches)}, before: {before}")

    threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:5]
    assert usual(switches) == before


def test_another_thread_starts_with_what_is_usual(switches: list[Switch]) -> None:
    before, elsewhere = usual(switches), []
    for switch in switches:
        with switch.turn(switch.values[0]):
            thread = threading.Thread(target=lambda: elsewhere.append(usual(switches)))
            thread.start()
            thread.join()
    assert elsewhere == [before] * len(switches)
