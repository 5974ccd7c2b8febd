"""Read the tokens of a text file, and compute checksums."""

from __future__ import annotations

import hashlib

from attendre_core.errors import ConfigError
from attendre_core.paths import user_path
from attendre_core.zoo.model import Model

__all__ = ["checksum", "text_tokens"]


def text_tokens(where: str, model: Model, path: str, count: int, skip: int) -> list[int]:
    """Read the first ``count`` tokens of a text file after ``skip`` characters.

    Parameters
    ----------
    where
        Name of the task, for errors.
    """
    file = user_path(path)
    if not file.is_file():
        raise ConfigError(f"eval {where}: there is no file {file}. Give a text with --data.")
    # Few tokens have more than a dozen characters, so a part of the file is enough.
    with file.open(encoding="utf-8", errors="replace") as opened:
        text = opened.read(skip + 24 * count + 1000)[skip:]
    ids = model.tokens(text)
    if len(ids) < count:
        raise ConfigError(
            f"eval {where}: {file} has {len(ids)} tokens, expected at least {count}. Give a longer "
            "text, or ask for fewer with --context-tokens or --streams."
        )
    return ids[:count]


def checksum(path: str) -> str:
    """Return the SHA-256 of a file; empty if there is no path or no such file."""
    if not path or not (file := user_path(path)).is_file():
        return ""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
