"""One thread at a time: what is used by two raises an error, and is not corrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar, cast

from attendre_core.errors import StateError

__all__ = ["Alone", "alone"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Alone:
    """A ``with`` block that a second thread cannot enter while one is in it; it raises instead.

    Calls within calls of one thread pass.

    Parameters
    ----------
    what
        What is guarded, for the message.

    Examples
    --------
    >>> guard = Alone("Stream")
    >>> with guard, guard:
    ...     pass
    """

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise StateError(
                f"{self._what}: another thread is using it right now, and nothing was changed. Use "
                "it from one thread at a time, or give each thread a copy of its own."
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Alone, (self._what,)


def alone(method: _Method) -> _Method:
    """Run a method inside of the `Alone` that its object has as ``_alone``."""

    @wraps(method)
    def guarded(self: Any, *args: Any, **options: Any) -> Any:
        with self._alone:
            return method(self, *args, **options)

    return cast(_Method, guarded)
