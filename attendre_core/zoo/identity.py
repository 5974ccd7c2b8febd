"""What a model must have in common with the one that saved a stream."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from attendre_core.errors import StateError
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.heads import own_params
from attendre_core.zoo.saving import SavedArrays, fingerprint

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model
    from attendre_core.zoo.reader import States

__all__ = ["check_identity", "check_windows", "differences", "identity_of"]

#: The fields of `MemoryConfig` when streams were first saved; one of them had another name.
_FIRST_FIELDS = (
    "policy", "kv_size", "q_size", "chunk", "top_k", "present", "positions", "finish", "decode",
    "encoder_outputs", "layer_policies", "per_head", "protect_recent", "cross_top_k",
)  # fmt: skip
_FIRST_NAMES = {"layer_policies": "layers"}
#: Fields of policies and memories that came later, with the values that change nothing.
_LATER_FIELDS = ("window=None", "layer_sizes=()", "head_sizes=()", "tiers=()", "host=None",
                 "adapt=False", "adapt=True")  # fmt: skip
#: Longest text of a file that is parsed, to compare its fields.
_LONGEST = 20_000


def identity_of(model: Model) -> dict[str, Any]:
    """Return the notes by which a saved stream is recognised."""
    return {
        "model": repr(model.architecture),
        "dtype": model.dtype,
        "weights": fingerprint(own_params(model.params), model.backend.to_numpy),
        "memory": repr(model.memory),
        "attention": repr(model.attention),
    }


def check_identity(model: Model, saved: SavedArrays) -> None:
    """Refuse a stream that another model saved."""
    for name, own in identity_of(model).items():
        noted = saved.notes.get(name)
        if noted == own or (name == "memory" and _is_earlier(str(noted), model.memory)):
            continue
        raise StateError(
            f"Model.restore: {saved.path} was saved with {differences(name, noted, own)}. Load "
            "the same model with the same settings."
        )


def differences(name: str, noted: Any, own: Any) -> str:
    """Say in which fields two values differ; dataclasses are given as their ``repr``.

    Examples
    --------
    >>> differences("memory", "M(policy=LFA(decay=1), size=8)", "M(policy=LFA(decay=2), size=4)")
    'memory.policy.decay = 1 (here 2), memory.size = 8 (here 4)'
    """
    try:
        trees = (ast.parse(str(text)[:_LONGEST], mode="eval").body for text in (noted, own))
        found = list(_differing(name, *trees))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found = []
    return ", ".join(found) or _apart(name, str(noted), str(own))


def _differing(name: str, noted: ast.expr, own: ast.expr) -> Iterator[str]:
    if ast.dump(noted) == ast.dump(own):
        return
    if not (isinstance(noted, ast.Call) and isinstance(own, ast.Call)) or (
        ast.dump(noted.func) != ast.dump(own.func) or noted.args or own.args
    ):
        yield _apart(name, ast.unparse(noted), ast.unparse(own))
        return
    before = {field.arg: field.value for field in noted.keywords}
    for field in own.keywords:
        if field.arg in before:  # older versions had fewer fields
            yield from _differing(f"{name}.{field.arg}", before[field.arg], field.value)


def _apart(name: str, noted: str, own: str) -> str:
    noted, own = (text if len(text) <= 200 else f"{text[:200]} ..." for text in (noted, own))
    return f"{name} = {noted} (here {own})"


def check_windows(model: Model, saved: SavedArrays, states: States) -> None:
    """Refuse a stream whose layers with a sliding window have another size than today.

    Earlier versions cut them to the memory's size, and what they lost cannot be made up for.
    """
    for i, state in enumerate(states):
        window = model.reading_part.window(i)
        shape: tuple[int, ...] = getattr(saved.arrays.get(f"states.{i}.kv.key"), "shape", ())
        if window is None or len(shape) != 4 or shape[2] == state.kv.key.shape[2]:
            continue
        raise StateError(
            f"Model.restore: {saved.path} holds {shape[2]} entries in layer {i}, expected "
            f"{state.kv.key.shape[2]}, which its sliding window of {window} needs. An earlier "
            "version saved it, in which windows had other sizes. Read the input again."
        )


def _is_earlier(noted: str, memory: MemoryConfig | None) -> bool:
    """Whether a text is how an older version wrote a memory, before it had all its fields."""
    return noted == _first_repr(memory) or _without_later(noted) == _without_later(repr(memory))


def _without_later(text: str) -> str:
    """Leave out what came later and is not used; whether a memory adapted is in its fields."""
    for field in _LATER_FIELDS:
        text = text.replace(f", {field}", "")
    return text


def _first_repr(memory: MemoryConfig | None) -> str | None:
    """Return the repr of a memory in older versions; None if they had no such memory."""
    if memory is None:
        return None
    for field in fields(memory):
        known = (*_FIRST_FIELDS, "adapt")
        if field.name not in known and getattr(memory, field.name) != field.default:
            return None
    parts = (f"{_FIRST_NAMES.get(n, n)}={getattr(memory, n)!r}" for n in _FIRST_FIELDS)
    return _without_later(f"{type(memory).__qualname__}({', '.join(parts)})")
