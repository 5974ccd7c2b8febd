"""Paths as users write them."""

from __future__ import annotations

import errno
from pathlib import Path

from attendre_core.errors import ConfigError

__all__ = ["user_path"]


def user_path(path: str | Path) -> Path:
    """Return a path with the home of a user for ``~``; refuse one that no file can have.

    Whether there is a file, and whether it may be read, is for the caller to find out.

    Examples
    --------
    >>> user_path("~/texts").is_absolute()
    True
    >>> user_path("~nobody-of-this-name/text")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    attendre_core.errors.ConfigError: ~nobody-of-this-name/text: there is no user of this name ...
    """
    shown = str(path)[:80]
    if not str(path):  # which would be the current folder
        raise ConfigError("The name of a file is empty. Write '.' for the current folder.")
    try:
        place = Path(path).expanduser()
        place.lstat()
    except RuntimeError as error:
        raise ConfigError(
            f"{shown}: there is no user of this name with a home folder. Write the path in full."
        ) from error
    except ValueError as error:
        raise ConfigError(f"{shown!r}: a name of a file cannot have such a character.") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"{shown}...: the name is too long for a file.") from error
    return place
