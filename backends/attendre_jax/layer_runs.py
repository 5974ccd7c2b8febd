"""Run equal layers of a model in one scan, so that compiling fifty takes as long as one.

Adjacent layers with the same settings and the same shapes of parameters form a *run*. The
parameters and states of a run are stacked on a new first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attendre_core.backend import Array
from attendre_core.layer.block import Flow, empty_block, step_block
from attendre_core.zoo.architectures.base import Params, Part
from attendre_core.zoo.blocks import ModelBlock

__all__ = ["Run", "drained_runs", "runs_of", "stacked_params", "started_runs", "through_runs"]


class Run(NamedTuple):
    """Layers ``start`` to before ``stop``, all of the same kind."""

    kind: Any
    start: int
    stop: int

    @property
    def alone(self) -> bool:
        """Whether it is a single layer, which is not stacked."""
        return self.stop - self.start == 1


def runs_of(kinds: Sequence[Any], params: Params, *, scan: bool) -> list[Run]:
    """Group adjacent layers of the same kind; without ``scan``, each is a run of its own.

    Parameters
    ----------
    kinds
        Per layer, what it must have in common with others in a run, e.g. its `AttendreLayer`.
    """

    def shared(number: int) -> Any:
        leaves, shape = jax.tree.flatten(params["layers"][number])
        sizes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        return kinds[number], shape, sizes, None if scan else number

    runs = []
    for _, group in groupby(range(len(kinds)), key=shared):
        numbers = list(group)
        runs.append(Run(kinds[numbers[0]], numbers[0], numbers[-1] + 1))
    return runs


def stacked_params(runs: Sequence[Run], params: Params) -> list[Params]:
    """Return the parameters of each run."""
    return [_stacked(params["layers"][run.start : run.stop]) for run in runs]


def _stacked(trees: Sequence[Any]) -> Any:
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def started_runs(runs: Sequence[Run], init: Callable[[Any], Any]) -> list[Any]:
    """Make the empty state of each run; ``init(layer)`` makes that of one layer."""

    def state(run: Run) -> Any:
        one = init(run.kind)
        if run.alone:
            return one
        count = run.stop - run.start
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), one)

    return [state(run) for run in runs]


def through_runs(
    part: Part,
    runs: Sequence[Run],
    params: Sequence[Params],
    states: Sequence[Any],
    flow: Flow,
) -> tuple[list[Any], Flow]:
    """Send a chunk through all layers."""
    after = []
    for run, own, state in zip(runs, params, states, strict=True):
        state, flow = _through(part, run, own, state, flow, None)
        after.append(state)
    return after, flow


def _through(
    part: Part, run: Run, params: Params, state: Any, flow: Flow, below: Array | None
) -> tuple[Any, Flow]:
    """Send a chunk through the layers of one run, skipping those up to number ``below``."""

    def step(state: Any, params: Params, flow: Flow) -> tuple[Any, Flow]:
        state, flow, _ = step_block(run.kind, ModelBlock(part, params), state, flow)
        return state, flow

    if run.alone:
        return step(state, params, flow)

    def one(flow: Flow, layer: tuple[Array, Params, Any]) -> tuple[Flow, Any]:
        number, own, state = layer
        if below is None:
            state, flow = step(state, own, flow)
            return flow, state

        def skip(state: Any, own: Params, flow: Flow) -> tuple[Any, Flow]:
            return state, flow

        state, flow = jax.lax.cond(number > below, step, skip, state, own, flow)
        return flow, state

    numbers = jnp.arange(run.stop - run.start)
    flow, after = jax.lax.scan(one, flow, (numbers, params, state))
    return after, flow


def drained_runs(
    part: Part,
    runs: Sequence[Run],
    params: Sequence[Params],
    states: Sequence[Any],
    length: int | None,
) -> tuple[list[Any], list[Flow]]:
    """Let all waiting queries out, from the input upwards.

    Parameters
    ----------
    length
        Positions at a time; None = all of a layer at once.

    Returns
    -------
    states
        The states, with empty Q memories.
    flows
        The outputs in order, (batch, n, ...).
    """
    states, flows = list(states), []
    for number, run in enumerate(runs):
        if run.kind.q_memory is None:
            continue
        pieces = run.kind.delay if length is None else length
        above = slice(number + 1, None)
        rest = (runs[above], params[above])

        def empty(
            layer: Array | None,
            mine: Any,
            higher: list[Any],
            number: int = number,
            run: Run = run,
            pieces: int = pieces,
            rest: Any = rest,
        ) -> tuple[Any, list[Any], list[Flow]]:
            """Empty one layer of the run and send its outputs through those above it."""
            own, state = params[number], mine
            if layer is not None:
                own, state = jax.tree.map(lambda leaf: leaf[layer], (own, mine))
            state, out = empty_block(run.kind, ModelBlock(part, own), state, length=pieces)
            if layer is None:
                mine = state
            else:
                mine = jax.tree.map(lambda leaf, new: leaf.at[layer].set(new), mine, state)
            finished = []
            for flow in out:
                if layer is not None:
                    mine, flow = _through(part, run, params[number], mine, flow, layer)
                higher, flow = through_runs(part, rest[0], rest[1], higher, flow)
                finished.append(flow)
            return mine, higher, finished

        if run.alone:
            states[number], states[above], out = empty(None, states[number], states[above])
            flows += out
            continue

        def body(carry: Any, layer: Array, empty: Callable[..., Any] = empty) -> tuple[Any, Any]:
            mine, higher, out = empty(layer, *carry)
            return (mine, higher), out

        start = (states[number], states[above])
        count = run.stop - run.start
        (states[number], states[above]), out = jax.lax.scan(body, start, jnp.arange(count))
        for i in range(count):
            flows += [jax.tree.map(lambda leaf, i=i: leaf[i], piece) for piece in out]
    return states, flows
