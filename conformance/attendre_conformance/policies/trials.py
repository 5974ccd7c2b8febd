"""A policy at work: single steps of a memory, from states that a test may change in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing, options
from attendre_conformance.memory.streams import Chunk, Shape, Stream, streams
from attendre_conformance.policies.subjects import Subject, shipped
from attendre_conformance.policies.watching import Call, Watched
from attendre_conformance.running import few, from_numpy, to_numpy
from attendre_core.tree import tree_leaves, tree_map

#: The policies under test.
SUBJECTS: tuple[Subject, ...] = shipped() if options.policy is None else (options.policy,)


@dataclass(frozen=True)
class Setting:
    """How a memory uses a policy: its options, and those of attending."""

    options: tuple[tuple[str, Any], ...] = ()
    top_k: int | None = None
    causal: bool = False

    def __repr__(self) -> str:
        words = [f"{name}={value!r}" for name, value in self.options]
        return f"memory({', '.join(words)}), top_k={self.top_k}, causal={self.causal}"


PLAIN = Setting()
PER_HEAD = Setting((("per_head", True),), top_k=2)
VISIBLE = Setting((("present", "visible"),), causal=True)
SETTINGS = (PLAIN, PER_HEAD, VISIBLE, Setting((("protect_recent", 1),), top_k=3, causal=True))


class Step(NamedTuple):
    """What happened in one step, in NumPy; the calls hold arrays of the backend."""

    calls: tuple[Call, ...]
    inserted: Any
    evicted: Any
    state: Any
    output: Any


class Trial:
    """A policy in a memory on a backend."""

    def __init__(
        self, backend: Any, subject: Subject, setting: Setting = PLAIN, spare: int = 0
    ) -> None:
        self.backend, self.subject, self.setting = backend, subject, setting
        self.watched = Watched(subject.policy)
        self.size = 5 + self.watched.sinks + spare
        self.memory: Any = at.KeyValueMemory(
            size=self.size, policy=self.watched, **dict(setting.options)
        )
        self.params = from_numpy(backend, subject.params)

    @property
    def name(self) -> str:
        """What messages begin with."""
        return f"{self.subject.policy!r} in {self.setting!r}"

    def __repr__(self) -> str:
        return self.name

    @property
    def shape(self) -> Shape:
        """Sizes of the streams."""
        return Shape("policy", options.rows, 3, self.size, 2, 4, 4, self.setting.top_k)

    def start(self, batch: int | None = None, chunk: int | None = None, dtype: Any = None) -> Any:
        """Return an empty state, in NumPy."""
        shape, xp = self.shape, self.backend.xp
        state = self.memory.init(
            batch=shape.batch if batch is None else batch,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            xp=xp,
            dtype=xp.float32 if dtype is None else dtype,
            chunk=shape.seq if chunk is None else chunk,
        )
        return to_numpy(self.backend, state)

    def step(self, state: Any, chunk: Chunk) -> Step:
        """Insert a chunk, attend with its queries; arrays are NumPy.

        The memory checks no value and NumPy warns of none: what a policy returns is for the law.
        """
        self.watched.calls.clear()
        with at.value_checks(False), np.errstate(all="ignore"):
            inserted, evicted = self.memory.insert(
                from_numpy(self.backend, state),
                *self._arrays(chunk.key, chunk.value, chunk.position, chunk.valid),
                policy_params=self.params,
            )
            after, output = self.memory.attend(
                inserted,
                *self._arrays(chunk.query, chunk.query_position, chunk.query_valid),
                top_k=self.setting.top_k,
                causal=self.setting.causal,
                policy_params=self.params,
            )
        results = (to_numpy(self.backend, x) for x in (inserted, evicted, after, output))
        return Step(tuple(self.watched.calls), *results)

    def _arrays(self, *arrays: Any) -> list[Any]:
        return [self.backend.from_numpy(np.array(array)) for array in arrays]

    def answers(self, step: Step) -> list[tuple[str, Any, Any]]:
        """Every result of a step in NumPy: (method, result, what of it matters)."""
        answers = []
        for call in step.calls:
            if call.result is not None:
                matters = to_numpy(self.backend, call.matters)
                answers.append((call.method, to_numpy(self.backend, call.result), matters))
        return answers

    def equal(self, got: Any, want: Any, matters: Any, what: str, exact: bool = False) -> None:
        """Check two results where they matter."""
        for one, other in zip(tree_leaves(got), tree_leaves(want), strict=True):
            one, other = np.asarray(one), np.asarray(other)
            if matters is not None:
                assert one.shape == other.shape, f"{what} Shape {one.shape}, not {other.shape}."
                one, other = np.where(matters, one, 0), np.where(matters, other, 0)
            (comparing.assert_same if exact else comparing.assert_close)(one, other, what)


def broken(trial: Trial, method: str, what: str, law: str) -> str:
    """Return a message that names the policy, the method, what happened, and the law."""
    return f"{trial.name}: {method} {what} (law: {law})"


def rows_of(tree: Any, index: Sequence[int]) -> Any:
    """Take rows of the batch of every array."""
    return tree_map(lambda leaf: leaf[list(index)], tree)


def slots_of(state: Any, index: Any) -> Any:
    """Take slots of a state by index, the same in every row."""
    every = ("position", "valid", "score", "arrival", "pinned", "observed")
    return state._replace(
        key=state.key[:, :, index],
        value=state.value[:, :, index],
        **{name: getattr(state, name)[..., index] for name in every},
    )


@st.composite
def trial_and_stream(
    draw: st.DrawFn,
    /,
    backend: Any,
    settings: Sequence[Setting] = SETTINGS,
    spare: int = 0,
    **plan: Any,
) -> tuple[Trial, Stream]:
    """Draw one of the policies, a setting, and a stream."""
    subject = draw(st.sampled_from(SUBJECTS), label="policy")
    setting = draw(st.sampled_from(few(backend, settings, 2)), label="setting")
    trial = Trial(backend, subject, setting, spare)
    plan.setdefault("max_steps", 3)
    return trial, draw(streams(trial.shape, **plan), label="stream")
