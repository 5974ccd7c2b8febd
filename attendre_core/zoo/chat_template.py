"""The chat template of a checkpoint: how messages become the text that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.zoo.chat_sandbox import (
    LimitError,
    Limits,
    RefusalError,
    compiled_template,
    run_template,
)

__all__ = ["LONGEST", "ChatTemplate", "Messages"]

#: Characters of a template; the longest published ones have some tens of thousands.
LONGEST = 2**18
#: What a template may write or do beside what the messages are long.
_MORE, _TIMES = 2**18, 8
_ROUNDS = 200_000

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template in the dialect of transformers, run in a sandbox.

    Parameters
    ----------
    source
        The template.
    tokens
        The texts of special tokens that it may name: ``bos_token``, ``eos_token``, ...
    named
        Further templates of the same checkpoint by name, such as ``"tool_use"``.
    where
        The file that it comes from, for messages; empty: the caller gave it.

    Examples
    --------
    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> template.render([{"role": "user", "content": "Hello"}])
    '<user>Hello'
    """

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    where: str = ""

    def choose(self, template: str) -> ChatTemplate:
        """Return another template with the same tokens: a named one, or a Jinja text."""
        if template in self.named:
            return ChatTemplate(self.named[template], self.tokens, self.named, self.where)
        return ChatTemplate(template, self.tokens, self.named)

    def render(
        self, messages: Messages, *, prompt: bool = False, now: datetime | None = None
    ) -> str:
        """Return the text of messages, of which each has a ``role`` and a ``content``.

        Parameters
        ----------
        prompt
            End with the beginning of an answer (``add_generation_prompt``).
        now
            What ``strftime_now`` writes; None is the present.

        Raises
        ------
        ConfigError
            The template refuses these messages, or is the caller's and has an error.
        CheckpointError
            The checkpoint's template has an error, or takes too long or too much memory.
        """
        template = _compiled(self.source, self.where)
        size = sum(len(text) for message in messages for text in message.values())
        limits = Limits(_ROUNDS + size, _MORE + _TIMES * size)
        values: dict[str, Any] = {
            **self.tokens,
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": prompt,
        }
        try:
            return run_template(template, limits, now or datetime.now(), values)
        except RefusalError as error:
            roles = ", ".join(message["role"] for message in messages[:6])
            raise ConfigError(
                f"chat: the chat template{self._place} refuses these messages ({roles}): {error}. "
                "Some models take no system message; others want user and assistant in turn."
            ) from error
        except LimitError as error:
            raise _broken(self.where, str(error)) from error
        except Exception as error:
            raise _broken(self.where, _told(error)) from error

    @property
    def _place(self) -> str:
        return f" of {self.where}" if self.where else ""


@lru_cache(maxsize=16)
def _compiled(source: str, where: str) -> Any:
    if len(source) > LONGEST:
        raise _broken(where, f"has {len(source)} characters, expected at most {LONGEST}")
    try:
        return compiled_template(source, where or "the chat template")
    except ConfigError:
        raise
    except Exception as error:
        raise _broken(where, _told(error)) from error


def _told(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"cannot be rendered ({type(error).__name__}: {text[:200]})"


def _broken(where: str, what: str) -> CheckpointError | ConfigError:
    if not where:
        return ConfigError(f"chat: the template that was given {what}. Correct it.")
    return CheckpointError(
        f"{where}: the chat template {what}. Pass one that works with template=..."
    )
