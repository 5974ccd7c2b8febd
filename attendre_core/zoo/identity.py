"""What a model must have in common with the one that saved a stream."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from attendre_core.errors import StateError
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.saving import SavedArrays, fingerprint

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model
    from attendre_core.zoo.reader import States

__all__ = ["check_identity", "check_windows", "identity_of"]

#: The fields of `MemoryConfig` when streams were first saved; one of them had another name.
_FIRST_FIELDS = (
    "policy", "kv_size", "q_size", "chunk", "top_k", "present", "positions", "finish", "decode",
    "encoder_outputs", "layer_policies", "per_head", "protect_recent", "cross_top_k",
)  # fmt: skip
_FIRST_NAMES = {"layer_policies": "layers"}


def identity_of(model: Model) -> dict[str, Any]:
    """Return the notes by which a saved stream is recognised."""
    return {
        "model": repr(model.architecture),
        "dtype": model.dtype,
        "weights": fingerprint(model.params, model.backend.to_numpy),
        "memory": repr(model.memory),
        "attention": repr(model.attention),
    }


def check_identity(model: Model, saved: SavedArrays) -> None:
    """Refuse a stream that another model saved."""
    for name, own in identity_of(model).items():
        noted = saved.notes.get(name)
        if noted == own or (name == "memory" and noted == _first_repr(model.memory)):
            continue
        raise StateError(
            f"Model.restore: {saved.path} was saved with {name} = {str(noted)[:400]}, but this "
            f"model has {own}. Load the same model with the same settings."
        )


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


def _first_repr(memory: MemoryConfig | None) -> str | None:
    """Return the repr of a memory in older versions; None if they had no such memory."""
    if memory is None:
        return None
    for field in fields(memory):
        if field.name not in _FIRST_FIELDS and getattr(memory, field.name) != field.default:
            return None
    parts = (f"{_FIRST_NAMES.get(n, n)}={getattr(memory, n)!r}" for n in _FIRST_FIELDS)
    return f"{type(memory).__qualname__}({', '.join(parts)})"
