"""Switches hold inside their ``with`` block alone: not in other threads, not afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import numpy as np
import pytest

import attendre_core as at
from attendre_core import backend, checks

TRIALS = 200
ZERO = np.zeros(1)

Switch = tuple[Callable[[], AbstractContextManager[object]], Callable[[], bool]]
#: Name to (what turns it, whether it is turned here).
SWITCHES: dict[str, Switch] = {
    "value_checks": (lambda: at.value_checks(False), lambda: not checks.may_read(ZERO)),
    "force_generic": (at.force_generic, backend.generic_only),
    "fused_kernels": (lambda: backend.fused_kernels("off"), lambda: backend.fused_mode() == "off"),
    "machine_code": (
        lambda: backend.machine_code(False),
        lambda: not backend.machine_code_allowed(),
    ),
}

EACH = pytest.mark.parametrize("name", SWITCHES)


@EACH
def test_a_switch_holds_inside_its_block(name: str) -> None:
    turn, turned = SWITCHES[name]
    assert not turned()
    with turn():
        assert turned()
        with turn():
            assert turned()
        assert turned()
    assert not turned()


@EACH
def test_a_switch_is_back_after_an_error(name: str) -> None:
    turn, turned = SWITCHES[name]
    with pytest.raises(KeyError), turn():
        raise KeyError
    assert not turned()


def test_value_checks_can_be_turned_on_inside_off() -> None:
    with at.value_checks(False), at.value_checks(True):
        assert checks.may_read(ZERO)


@EACH
def test_overlapping_threads_do_not_see_each_other(name: str) -> None:
    """A enters, B enters, A leaves, B leaves: the order in which a global would stick."""
    turn, turned = SWITCHES[name]
    barrier = threading.Barrier(2, timeout=30)

    def first() -> list[bool]:
        seen = [turned()]
        with turn():
            barrier.wait()  # A is in
            barrier.wait()  # B is in
            seen.append(turned())
        barrier.wait()  # A is out
        seen.append(turned())
        barrier.wait()  # B is out
        return [*seen, turned()]

    def second() -> list[bool]:
        barrier.wait()
        seen = [turned()]
        with turn():
            barrier.wait()
            barrier.wait()
            seen.append(turned())
        barrier.wait()
        return [*seen, turned()]

    with ThreadPoolExecutor(max_workers=2) as pool:
        for trial in range(TRIALS):
            one, two = pool.submit(first), pool.submit(second)
            assert one.result() == [False, True, False, False], f"A in trial {trial}"
            assert two.result() == [False, True, False], f"B in trial {trial}"
            assert not turned(), f"the main thread in trial {trial}"


@EACH
def test_overlapping_tasks_do_not_see_each_other(name: str) -> None:
    turn, turned = SWITCHES[name]

    async def first(entered: asyncio.Event, other: asyncio.Event) -> list[bool]:
        with turn():
            entered.set()
            await other.wait()
            inside = turned()
        return [inside, turned()]

    async def second(entered: asyncio.Event, other: asyncio.Event) -> list[bool]:
        await entered.wait()
        before = turned()
        with turn():
            other.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            inside = turned()
        return [before, inside, turned()]

    async def trial() -> None:
        entered, other = asyncio.Event(), asyncio.Event()
        one, two = await asyncio.gather(first(entered, other), second(entered, other))
        assert one == [True, False]
        assert two == [False, True, False]
        assert not turned()

    async def trials() -> None:
        for _ in range(TRIALS):
            await trial()

    asyncio.run(trials())
    assert not turned()


def test_a_kernel_is_left_out_in_one_thread_alone() -> None:
    """What a switch decides, not only what it says: a generic thread beside one with kernels."""
    state = at.KeyValueMemory(4, at.LFA(0.0)).init(batch=1, heads=1, head_dim=2)
    broken = np.full((1, 2, 1, 2), np.nan, dtype=np.float32)
    memory = at.KeyValueMemory(4, at.LFA(0.0))
    inside, done = threading.Event(), threading.Event()

    def unchecked() -> int:
        with at.value_checks(False):
            inside.set()
            done.wait(30)
            after, _ = memory.insert(state, broken, broken)
        return int(np.sum(after.valid))

    with ThreadPoolExecutor(max_workers=1) as pool:
        result = pool.submit(unchecked)
        inside.wait(30)
        with pytest.raises(at.NonFiniteError):
            memory.insert(state, broken, broken)
        done.set()
        assert result.result() == 0
