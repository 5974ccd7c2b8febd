"""Streams that an earlier version saved go on as that version went on.

``old_streams/`` holds two made-up checkpoints, streams of them that were saved in the middle of
their input by the version before queues were kept in order of arrival and policies could have a
state, and what that version made of the rest of the input.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at

numpy_files = pytest.importorskip("safetensors.numpy")

FOLDER = Path(__file__).with_name("old_streams")
CASES: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
EXPECTED = numpy_files.load_file(FOLDER / "expected.safetensors")


def model_of(case: dict[str, Any], library: str) -> Any:
    memory = None
    if case["preset"] is not None:
        memory = at.preset(*case["preset"], **case["options"])
    if case["encoder_outputs"] is not None:
        memory = replace(memory, encoder_outputs=case["encoder_outputs"])
    return at.load(
        FOLDER / case["model"], memory=memory, backend=library, attention=case["attention"]
    )


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("name", CASES)
def test_it_goes_on_as_recorded(name: str, library: str) -> None:
    case = CASES[name]
    model = model_of(case, library)
    stream = model.restore(FOLDER / f"{name}.safetensors")
    assert stream.lengths == tuple(map(len, case["fed"]))
    hidden = [
        [np.asarray(model.backend.to_numpy(array)) for array in (out.x, out.position, out.valid)]
        for out in [*stream.read(case["then"]), *stream.finish()]
    ]
    for row in range(stream.batch):
        x = np.concatenate([x[row][real[row]] for x, _, real in hidden])
        position = np.concatenate([at[row][real[row]] for _, at, real in hidden])
        assert position.tolist() == EXPECTED[f"{name}.{row}.position"].tolist()
        np.testing.assert_allclose(x, EXPECTED[f"{name}.{row}.hidden"], rtol=0, atol=2e-5)
    logits = np.asarray(model.backend.to_numpy(stream.next_logits()))
    np.testing.assert_allclose(logits, EXPECTED[f"{name}.logits"], rtol=0, atol=1e-4)
    assert stream.generate(8) == case["written"]


@pytest.mark.parametrize("name", ["waiting", "at-once", "unlimited"])
def test_it_is_what_reading_everything_gives(name: str) -> None:
    """A fresh stream of this version that reads the same input is where the old one is."""
    case = CASES[name]
    model = model_of(case, "numpy")
    fresh = model.stream(len(case["fed"]))
    fresh.feed(case["fed"])
    old = model.restore(FOLDER / f"{name}.safetensors")
    for stream in (fresh, old):
        stream.feed(case["then"])
    np.testing.assert_allclose(old.next_logits(), fresh.next_logits(), rtol=0, atol=1e-5)


def test_another_memory_is_refused() -> None:
    case = CASES["at-once"]
    model = model_of({**case, "options": {**case["options"], "kv_size": 32}}, "numpy")
    with pytest.raises(at.StateError, match=r"memory\.kv_size = 24 \(here 32\)"):
        model.restore(FOLDER / "at-once.safetensors")


@pytest.mark.parametrize("setting", [{"sinks": 1}, {"pin": ((0, 1),)}, {"protect_recent": 1}])
def test_what_no_earlier_version_could_do_is_another_memory(setting: dict[str, Any]) -> None:
    model = model_of(CASES["at-once"], "numpy")
    other = model.with_memory(replace(model.memory, **setting))
    with pytest.raises(at.StateError, match=r"memory(\.protect_recent)? = "):
        other.restore(FOLDER / "at-once.safetensors")


def test_old_queues_are_out_of_order_and_sorted_when_restored() -> None:
    arrays = numpy_files.load_file(FOLDER / "waiting.safetensors")
    stored = arrays["states.0.queue.arrival"]
    assert (np.diff(stored, axis=1) < 0).any()
    restored = model_of(CASES["waiting"], "numpy").restore(FOLDER / "waiting.safetensors")
    queue = restored._states[0].queue
    assert (np.diff(queue.arrival, axis=1) > 0).all()
    place = np.argsort(stored, axis=1)
    np.testing.assert_array_equal(
        queue.position, np.take_along_axis(arrays["states.0.queue.position"], place, axis=1)
    )
