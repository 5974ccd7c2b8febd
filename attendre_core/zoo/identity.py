"""What a model must have in common with the one that saved a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attendre_core.errors import StateError
from attendre_core.zoo.saving import SavedArrays, fingerprint

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["check_identity", "identity_of"]


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
        if saved.notes.get(name) != own:
            raise StateError(
                f"Model.restore: {saved.path} was saved with {name} = "
                f"{str(saved.notes.get(name))[:400]}, but this model has {own}. Load the "
                "same model with the same settings."
            )
