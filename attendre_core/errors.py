"""What can go wrong, by name.

Every message says where it happened, what was given, what was expected and what to do.
The classes derive from the built-in ones, so ``except ValueError`` keeps working.
"""

__all__ = [
    "CheckpointError",
    "ChunkTooLongWarning",
    "ConfigError",
    "DTypeError",
    "FrozenMemoryWarning",
    "LibraryMixError",
    "NonFiniteError",
    "ShapeError",
    "StateError",
]


class ShapeError(ValueError):
    """An array has the wrong number of axes or the wrong length on one of them."""


class DTypeError(TypeError):
    """An array has a dtype that the call cannot use."""


class ConfigError(ValueError):
    """A memory, policy or call was asked for something impossible."""


class LibraryMixError(TypeError):
    """Arrays of two libraries, or something that is not an array, came in one call."""


class NonFiniteError(ValueError):
    """NaN or infinity where only finite numbers make sense."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, incomplete, or of a kind that cannot be loaded."""


class StateError(ValueError):
    """A state does not belong to the memory it was given to."""


class FrozenMemoryWarning(UserWarning):
    """A full memory refuses most new entries, so it no longer follows its input."""


class ChunkTooLongWarning(UserWarning):
    """A chunk is longer than the memory: part of it is refused before anyone attends to it."""
