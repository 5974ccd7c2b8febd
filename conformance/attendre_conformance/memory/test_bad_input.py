"""Bad input: an error that says where, what, what was expected and what to do.

Every mistake is made on the backend under test and on NumPy: class and words must be the same.
"""

from __future__ import annotations

from typing import Any

import pytest

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.memory.mistakes import ATTEND, DTYPE, INSERT, Mistake, Scene
from attendre_conformance.memory.wrong_arrays import WRONG_ARRAYS
from attendre_conformance.memory.wrong_settings import WRONG_SETTINGS
from attendre_conformance.running import to_numpy
from attendre_core.backend import backend as look_up

pytestmark = pytest.mark.attendre_profile("eager")

MISTAKES = WRONG_ARRAYS + WRONG_SETTINGS


@pytest.mark.parametrize("mistake", MISTAKES, ids=[one.name for one in MISTAKES])
def test_mistake_is_explained(backend: Any, mistake: Mistake) -> None:
    """The error has the right class, says where, what, what was expected and what to do.

    The same words on every backend.
    """
    scene = Scene(backend)
    with pytest.raises(mistake.error) as caught:
        mistake.make(scene)
    message = str(caught.value)
    assert type(caught.value) is mistake.error, (
        f"{mistake.name}: {type(caught.value).__name__}, expected {mistake.error.__name__}"
    )
    for word in mistake.words:
        assert word in message, f"{mistake.name}: {word!r} is missing in {message!r}"
    builtin = TypeError if mistake.error in (DTYPE, at.LibraryMixError) else ValueError
    assert isinstance(caught.value, builtin), f"{mistake.name}: not a {builtin.__name__}"
    if mistake.name == "two-libraries":
        return
    with pytest.raises(mistake.error) as on_numpy:
        mistake.make(Scene(look_up("numpy")))
    assert message == str(on_numpy.value), (
        f"{mistake.name}: {backend.name} says {message!r}, numpy says {str(on_numpy.value)!r}"
    )


@pytest.mark.parametrize(
    "mistake",
    [one for one in MISTAKES if one.words[0] in (INSERT, ATTEND, "two libraries")],
    ids=lambda one: one.name,
)
def test_state_is_usable_after_a_mistake(backend: Any, mistake: Mistake) -> None:
    """A failed call leaves the caller's state as it was, and the memory works on."""
    scene = Scene(backend)
    before = to_numpy(backend, scene.state)
    with pytest.raises(mistake.error):
        mistake.make(scene)
    comparing.assert_same(
        to_numpy(backend, scene.state), before, f"state after the mistake {mistake.name}"
    )
    untouched = Scene(backend)
    got = to_numpy(backend, scene.insert()[0])
    want = to_numpy(backend, untouched.insert()[0])
    comparing.assert_same(got, want, f"state one insert after the mistake {mistake.name}")


def test_unknown_backend_is_explained() -> None:
    """Asking for a backend that is not there names those that are."""
    with pytest.raises(at.ConfigError, match="numpy") as caught:
        look_up("no-such-library")
    assert "no-such-library" in str(caught.value), str(caught.value)
