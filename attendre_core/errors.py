"""Errors and warnings.

Every message says where it happened, what was given, what was expected and what to do. The classes
derive from built-in ones, so ``except ValueError`` works.
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
    """The settings of a memory, policy or call are impossible."""


class LibraryMixError(TypeError):
    """A call was given arrays of two libraries, or something that is not an array."""


class NonFiniteError(ValueError):
    """An array has NaN or infinity where numbers must be finite."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, incomplete, or of an unsupported kind."""


class StateError(ValueError):
    """A state does not belong to the memory it was given to."""


class FrozenMemoryWarning(UserWarning):
    """A full memory refuses most new entries, so it no longer follows its input."""


class ChunkTooLongWarning(UserWarning):
    """A chunk is longer than the memory, so part of it is refused before any query sees it."""
