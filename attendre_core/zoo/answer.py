"""An answer that is generated while it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attendre_core.zoo.alone import Alone, alone
from attendre_core.zoo.generate import Written

__all__ = ["Answer"]


class Answer:
    """The answer to a message, generated while it is iterated over; see `Chat.send`.

    Joined, the pieces are the text: whole characters, and nothing of a string that ends it.

    Parameters
    ----------
    written
        The tokens, with their pieces of text.
    on_end
        Called once when the answer has ended.
    on_error
        Called if it cannot be generated.

    Attributes
    ----------
    so_far
        The text that was generated up to now.
    tokens
        The tokens that were generated up to now.
    """

    def __init__(
        self,
        written: Iterator[Written],
        on_end: Callable[[Answer], None],
        on_error: Callable[[], None],
    ) -> None:
        self._written, self._on_end, self._on_error = written, on_end, on_error
        self._alone = Alone("Answer")
        self.so_far = ""
        self.tokens: list[int] = []
        self._begun = self._ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    @alone
    def __next__(self) -> str:
        while not self._ended:
            self._begun = True
            try:
                token = next(self._written)
            except StopIteration:
                self._close()
                break
            except Exception:
                self._ended = True
                self._on_error()
                raise
            if not token.end:
                self.tokens.append(token.token)
            if token.piece:
                self.so_far += token.piece
                return token.piece
        raise StopIteration

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Answer({self.so_far!r}{'' if self._ended else '...'})"

    @property
    def text(self) -> str:
        """The whole text; what is missing is generated first."""
        for _ in self:
            pass
        return self.so_far

    @alone
    def stop(self) -> None:
        """End the answer here; what was generated is the assistant's message."""
        if not self._ended:
            self._close()

    @alone
    def end(self) -> None:
        """End the answer where it was left; one that was never looked at is generated first."""
        if not self._begun:
            _ = self.text
        self.stop()

    def _close(self) -> None:
        self._ended = True
        self._on_end(self)
