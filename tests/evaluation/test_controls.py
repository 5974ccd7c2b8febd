"""Systems by name: the controls keep exactly what they say, and names are honest."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend
from attendre_core.errors import ConfigError
from attendre_core.evaluation import CONTROLS, system
from attendre_core.evaluation.controls import SIZELESS, label_of
from attendre_core.presets import PRESETS


def kept(name: str, size: int, length: int, chunk: int, library: str = "numpy") -> set[int]:
    """Return the positions in memory after ``length`` random entries."""
    memory = system(name, size).memory.kv_memory(0)
    on = backend(library)
    state = memory.init(batch=1, heads=1, head_dim=2, xp=on)
    rng = np.random.default_rng(0)
    for start in range(0, length, chunk):
        count = min(chunk, length - start)
        key = on.from_numpy(rng.standard_normal((1, count, 1, 2)).astype(np.float32))
        place = on.from_numpy(np.arange(start, start + count, dtype=np.int32)[None])
        state, _ = memory.insert(state, key, key, position=place)
        state, _ = memory.attend(state, key, position=place)
    valid = np.asarray(on.to_numpy(state.valid))
    return set(np.asarray(on.to_numpy(state.position))[valid].tolist())


def test_first_m_never_changes_once_full() -> None:
    assert kept("first-M", 7, 50, 4) == set(range(7))
    assert kept("first-M", 7, 5, 4) == set(range(5))


def test_a_sample_does_not_depend_on_the_chunks() -> None:
    whole = kept("random", 8, 200, 200)
    assert len(whole) == 8
    assert whole == kept("random", 8, 200, 1) == kept("random", 8, 200, 13)
    assert whole != set(range(8))
    assert whole != set(range(192, 200))


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("library", ["torch", "jax", "array_api_strict"])
@pytest.mark.parametrize("name", ["first-M", "random"])
def test_libraries_agree(name: str, library: str) -> None:
    pytest.importorskip(library)
    assert kept(name, 9, 60, 8, library) == kept(name, 9, 60, 8)


def test_a_pinned_question_stays_and_the_rest_is_first_in_first_out() -> None:
    memory = system("pinned", 16, chunk=8, pinned=4).memory.kv_memory(0)
    state = memory.init(batch=1, heads=1, head_dim=2)
    ones = np.ones((1, 8, 1, 2), dtype=np.float32)
    for _ in range(6):
        state, _ = memory.insert(state, ones, ones)
    assert sorted(state.position[0].tolist()) == [0, 1, 2, 3, *range(36, 48)]


def test_pins_leave_a_quarter_of_the_memory() -> None:
    pins = {m: system("pinned", m, pinned=24).memory.pin for m in (1, 16, 64)}
    assert pins == {1: ((0, 1),), 16: ((0, 12),), 64: ((0, 24),)}


def test_plain_names_are_the_presets() -> None:
    """With the paper's c, whatever the size: equal names mean equal systems everywhere."""
    for name in PRESETS:
        found = system(name, 64, 16, chunk=16)
        assert found.name == name
        assert found.memory.policy == at.preset(name, 64, 16, 16).policy
        assert found.memory.kv_memory(0) == at.preset(name, 64, 16, 16).kv_memory(0)
    assert system("LFA-1e-3", 64).memory.policy == at.LFA(decay=1e-3)


def test_options_change_what_they_say() -> None:
    made = system("lra-SUM+hold+softmax+in-cache+c=-1+visible", 64, 32, chunk=16, top_k=128)
    assert made.name == "LRA-sum+softmax+hold+c=-1+visible+in-cache"
    assert made.memory.policy == at.LRA(
        "sum", score="softmax", hold=True, initial=at.InitialScore(-1.0)
    )
    assert (made.memory.present, made.memory.positions) == ("visible", "in-cache")
    assert (made.memory.kv_size, made.memory.q_size, made.memory.top_k) == (64, 32, 64)
    assert system("LFA-0+quota=0.5", 64).memory.policy == at.LFA(0.0, at.QuotaScore(0.5))


def test_equal_systems_have_equal_labels() -> None:
    assert label_of("lfa-1e-3+C=0+softmax") == "LFA-1e-3+softmax+c=0"
    assert label_of("LFA-0+c=1") == label_of("lfa-0+wait=half") == label_of("LFA-0:64") == "LFA-0"
    assert label_of("LFA-0+softmax+c=-1+visible") == label_of("attendre+wait=0") == "attendre"
    assert [label_of(name.upper()) for name in CONTROLS] == list(CONTROLS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("LRB", "'LRB' is not known, expected .*MT, AS, .*pinned"),
        ("MT+c=0", "FIFO"),
        ("LRA-sum+loud", "option 'loud' is not known"),
        ("full+visible", "'full' has neither options nor a size. Write 'full'"),
        ("pinned+c=0", "'pinned' has neither options nor a size. Write 'pinned'"),
        ("MT:64", "without :size and .wait=. Write 'MT'"),
        ("LFA-0+wait=8", "without :size and .wait=. Write 'LFA-0'"),
    ],
)
def test_wrong_names_are_explained(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        system(words, 64)


def test_waiting_longer_than_the_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="q_size is 16 and kv_size 16"):
        system("LFA-0", 16, 16)


@pytest.mark.parametrize("name", SIZELESS)
@pytest.mark.parametrize("causal", [True, False])
def test_full_attention_has_room_for_everything(name: str, causal: bool) -> None:
    memory = system(name, 64, chunk=16).memory_for(40, causal=causal)
    assert memory.kv_size > memory.q_size == (0 if causal else 40)
    assert memory.kv_size >= 40
    assert memory.encoder_outputs == 40
    assert system(name, 64, chunk=16).memory_for(5, causal=causal).kv_size >= 16
