"""A progress bar for long work: on a terminal, if tqdm is installed, and silent otherwise."""

from __future__ import annotations

from typing import Any

__all__ = ["progress_bar"]


class _Silent:
    """A bar that nobody sees."""

    def update(self, count: int = 1) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Say nothing."""


def progress_bar(total: int, label: str, unit: str, show: bool | None = None) -> Any:
    """Return a bar on stderr with ``update(count)`` and ``close()``.

    Parameters
    ----------
    show
        True always shows it, False never; None shows it where stderr is a terminal.

    Examples
    --------
    >>> bar = progress_bar(3, "reading", " tokens", show=False)
    >>> bar.update(2)
    >>> bar.close()
    """
    if show is False:
        return _Silent()
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return _Silent()
    return tqdm(
        total=total, desc=label, unit=unit, leave=False, disable=None if show is None else not show
    )
