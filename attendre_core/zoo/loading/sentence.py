"""How a checkpoint makes its embeddings: the files of sentence-transformers beside its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attendre_core.errors import CheckpointError
from attendre_core.zoo.config import read_json
from attendre_core.zoo.pooling import Recipe

__all__ = ["recipe_of_folder"]

_MODES = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
#: The same in the newer way to write it, ``"pooling_mode": "lasttoken"``.
_WORDS = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_KNOWN = ("Transformer", "Pooling", "Normalize")


def recipe_of_folder(folder: Path) -> Recipe | None:
    """Read ``modules.json`` and the configuration of the pooling that it names.

    Returns
    -------
    Recipe or None
        None if the folder has no ``modules.json``. What cannot be done here is noted in the
        recipe: it matters only to those who ask for embeddings.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return None
    modules = read_json(file)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(
            f"{file}: holds no list of objects, expected the modules of sentence-transformers. "
            "Download the file again, or remove it."
        )
    kinds = [str(module.get("type", "")).rpartition(".")[2][:40] for module in modules]
    others = [kind for kind in kinds if kind not in _KNOWN]
    pooling, refused = "mean", f"a module {others[0]}" if others else ""
    if "Pooling" in kinds:
        path = str(modules[kinds.index("Pooling")].get("path", ""))
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise CheckpointError(f"{file}: names {path[:80]!r}, expected a folder beside it.")
        own = folder / path / "config.json"
        modes = _modes(own, read_json(own))
        pooling = modes[0] if len(modes) == 1 and modes[0] in _MODES.values() else ""
        refused = refused or ("" if pooling else f"the pooling {' and '.join(modes) or 'none'}")
    return Recipe(pooling, "Normalize" in kinds, refused)


def _modes(file: Path, values: Any) -> list[str]:
    """Return the poolings that a configuration asks for, by our names where we have one."""
    if not isinstance(values, dict):
        raise CheckpointError(f"{file}: holds no object, expected the settings of a pooling.")
    named = values.get("pooling_mode")
    if named is not None:
        words = named if isinstance(named, list) else [named]
        return [_WORDS.get(str(word), str(word)[:40]) for word in words]
    flags = [
        name.removeprefix("pooling_mode_")[:40]
        for name, value in values.items()
        if name.startswith("pooling_mode_") and value is True
    ]
    return [_MODES.get(flag, flag) for flag in flags]
