"""A conversation in the format of the model's chat template, in bounded memory.

::

    messages ─► chat template ─► text ─► tokens that are new and will not change ─► stream
                                           └─ the beginning of an answer ─► a copy of the stream
                                                                             └─► pieces of text
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendre_core.errors import CheckpointError, ConfigError, DTypeError
from attendre_core.progress import progress_bar
from attendre_core.zoo.alone import Alone, alone
from attendre_core.zoo.answer import Answer
from attendre_core.zoo.chat_template import ChatTemplate
from attendre_core.zoo.generate import written
from attendre_core.zoo.stream import Stream
from attendre_core.zoo.transcript import Transcript
from attendre_core.zoo.writer import Writer

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["Chat", "chat_template_for"]

#: What may follow, to find out what does not depend on it.
_PROBES = ("Why?", " 1", "\n\n-")
#: What stands between documents and a question.
_BETWEEN = "\n\n"
#: Tokens read between two updates of a progress bar.
_PIECE = 256

Message = dict[str, str]


class Chat:
    """A conversation with a model; `Model.chat` starts one, `Model.restore_chat` continues one.

    The model reads what its chat template makes of the messages, and nothing twice: each turn adds
    what is new to a `Stream`, including the answers. What it has read after any number of turns
    are the tokens of the whole conversation tokenised at once. If a template rewrites earlier
    turns (some leave out what a model thought), what it may still rewrite is read later, and
    if it rewrites what was read, the conversation is read again from its beginning.

    Parameters
    ----------
    model
        A decoder with a tokenizer.
    system, pin_system, template
        As in `Model.chat`.

    Attributes
    ----------
    stream
        What the model has read; for `Stream.reports`. Do not feed it.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        *,
        pin_system: bool = False,
        template: str | None = None,
    ) -> None:
        self._alone = Alone("Chat")
        self._template = chat_template_for(model, template)
        self._now = datetime.now()
        self._messages: list[Message] = []
        self._documents: list[str] = []
        self._answer: Answer | None = None
        if system is not None:
            self._messages.append(_message("system", system))
        if pin_system:
            model = self._pinned(model)
        self.model = self._ending(model)
        self._start()

    def __repr__(self) -> str:
        return f"Chat({len(self._messages)} messages, {self.stream.lengths[0]} tokens read)"

    @property
    def messages(self) -> list[Message]:
        """The messages so far, each with a ``role`` and a ``content``."""
        self._settle()
        return [dict(message) for message in self._messages]

    @alone
    def read(self, text: str, *, progress: bool | None = False) -> None:
        """Read a document now; it becomes the beginning of the next message of the user.

        Parameters
        ----------
        text
            A text of any length.
        progress
            Whether to show a bar; None shows one on a terminal, and a line now and then elsewhere.
        """
        self._settle()
        if not _text("Chat.read", text).strip():
            raise ConfigError("Chat.read: the text is empty, expected something to read.")
        documents = [*self._documents, text]
        nexts = [
            self._render([*self._messages, _message("user", _BETWEEN.join([*documents, probe]))])
            for probe in _PROBES
        ]
        self._documents = documents
        self._read(*nexts, progress=progress)

    @alone
    def send(self, text: str, max_new_tokens: int = 256, **options: Any) -> Answer:
        """Send a message and return the answer, which is generated while it is iterated over.

        Parameters
        ----------
        text
            The message; documents that were read come before it.
        max_new_tokens
            Maximum number of tokens of the answer.
        options
            ``temperature``, ``top_p``, ``top_k``, ``seed`` and ``stop`` as in `Model.generate`.

        Returns
        -------
        Answer
            Yields pieces of text; ``answer.text`` or ``str(answer)`` is all of it. Any other call
            on the chat ends it: one that was begun ends where it was left, and what was handed out
            becomes the assistant's message; one that was never looked at is generated first.
        """
        self._settle()
        content = _BETWEEN.join([*self._documents, _text("Chat.send", text)])
        asked = [*self._messages, _message("user", content)]
        self._render(asked, prompt=True)  # a template that refuses it leaves the chat as it was

        def start(room: int) -> tuple[Writer, Any]:
            return self._answering(asked).writer(room)

        _check_options(options)
        tokens = written(self.model, start, max_new_tokens, **options)
        self._answer = Answer(tokens, lambda answer: self._add(asked, answer), self._forget)
        return self._answer

    @alone
    def fork(self) -> Chat:
        """Return a chat that goes on from here by itself: several questions about one text."""
        self._settle()
        twin = copy.copy(self)
        twin._alone = Alone("Chat")
        twin.stream, twin._transcript = self.stream.copy(), self._transcript.copy()
        twin._messages, twin._documents = list(self._messages), list(self._documents)
        return twin

    @alone
    def save(self, path: str | Path) -> None:
        """Save everything that is needed to continue; see `Model.restore_chat`."""
        from attendre_core.zoo.chat_files import save_chat

        self._settle()
        save_chat(self, path)

    # ---------------------------------------------------------------- reading

    def _render(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        return self._template.render(messages, prompt=prompt, now=self._now)

    def _start(self) -> None:
        """Start with nothing read."""
        self.stream = self.model.stream()
        self._transcript = _transcript_for(self.model)

    def _read(self, text: str, *others: str, progress: bool | None = False) -> None:
        """Read what a text has beyond what was read, as far as others begin with it."""
        new = self._transcript.unread(text, *others)
        if new is None:
            self._start()
            new = self._transcript.unread(text, *others) or []
        bar = progress_bar(len(new), "reading", " tokens", progress, lines=True)
        try:
            for start in range(0, len(new), _PIECE):
                piece = new[start : start + _PIECE]
                self.stream.feed(piece)
                self._transcript.tokens += piece
                bar.update(len(piece))
        except BaseException:
            # A step that was interrupted may have overwritten part of a state: read again later.
            self._start()
            raise
        finally:
            bar.close()

    def _answering(self, asked: Sequence[Message]) -> Stream:
        """Return a stream that has read everything up to the answer."""
        now = self._render(asked, prompt=True)
        answered = [*asked, _message("assistant", _PROBES[0])]
        self._read(now, self._render([*answered, _message("user", _PROBES[0])]))
        stream = self.stream.copy()
        rest = self._transcript.unread(now)
        if rest:
            stream.feed(rest)
        return stream

    # ---------------------------------------------------------------- answers

    def _settle(self) -> None:
        """End an answer that is still open."""
        answer = self._answer
        if answer is not None:
            answer.end()

    def _add(self, asked: Sequence[Message], answer: Answer) -> None:
        """Make an answer part of the conversation, and read it."""
        self._answer, self._documents = None, []
        self._messages = [*asked, _message("assistant", answer.so_far)]
        now = self._render(self._messages)
        nexts = [self._render([*self._messages, _message("user", probe)]) for probe in _PROBES]
        self._read(now, *nexts)
        self._transcript.move(now, *nexts)

    def _forget(self) -> None:
        """Take back a message whose answer failed."""
        self._answer = None

    def _ending(self, model: Model) -> Model:
        """Return the model, which also ends texts with what the template puts behind an answer."""
        probe = _PROBES[0]
        try:
            messages = [_message("user", probe), _message("assistant", probe)]
            _, _, behind = self._render([*self._messages, *messages]).rpartition(probe)
        except (CheckpointError, ConfigError):
            return model  # reported when something is sent
        first = model.tokens(behind, special=False)[:1]
        if not first or first[0] in model.end or model.text(first):
            return model  # an end that is spelled in letters is no end
        model = copy.copy(model)
        model.end = (*model.end, *first)
        return model

    # ---------------------------------------------------------------- the system message

    def _pinned(self, model: Model) -> Model:
        """Return the model with a memory that never evicts the system message."""
        if not self._messages:
            raise ConfigError(
                "Model.chat: pin_system=True without a system message. Give one with system=..."
            )
        if model.memory is None:
            return model  # full attention evicts nothing
        windows = [model.reading_part.window(i) for i in range(model.reading_part.layers)]
        memory = model.memory.for_layers(windows)
        sizes = (*map(int, memory.layer_sizes), *map(min, memory.head_sizes)) or (memory.kv_size,)
        count, size = self._system_tokens(model), min(sizes)
        if count + model.memory.protect_recent >= size:
            raise ConfigError(
                f"Model.chat: the system message takes {count} tokens, which do not fit into a "
                f"memory of {size} entries that must hold the conversation, too. Shorten it, "
                f"enlarge the memory to well over {count}, or do not pin it."
            )
        return model.with_memory(replace(model.memory, pin=(*model.memory.pin, (0, count))))

    def _system_tokens(self, model: Model) -> int:
        """Return how many tokens the system message takes from the beginning on.

        Where a template writes it into the user's message, what comes before the user's text.
        """
        transcript = _transcript_for(model)
        nexts = [self._render([*self._messages, _message("user", probe)]) for probe in _PROBES]
        common = len(transcript.unread(*nexts) or [])
        try:
            alone = self._render(self._messages)
        except (CheckpointError, ConfigError):
            return common
        shared = transcript.unread(nexts[0], alone) or []
        return len(shared) if shared == transcript.unread(alone) else common


def chat_template_for(model: Model, template: str | None = None) -> ChatTemplate:
    """Return the template of a chat, or say what is missing."""
    if model.architecture.kind != "decoder":
        raise ConfigError(
            f"Model.chat: this is an {model.architecture.kind}, expected a decoder. Use "
            f"{'generate' if model.architecture.kind == 'encoder-decoder' else 'encode'}."
        )
    model.require_tokenizer("chat")
    own = model.chat_template
    if template is not None:
        return (own or ChatTemplate("")).choose(template)
    if own is None:
        raise ConfigError(
            "Model.chat: this checkpoint has no chat template (chat_template.jinja, chat_template "
            "in tokenizer_config.json, or tokenizer.chat_template in a GGUF file). Was it trained "
            "to chat? If so, pass its Jinja template with template=...; if not, use generate."
        )
    return own


def _transcript_for(model: Model) -> Transcript:
    tokenizer = model.require_tokenizer("chat")
    return Transcript(lambda text: tokenizer.encode(text, special=False))


def _check_options(options: dict[str, Any]) -> None:
    for name in options:
        if name not in ("temperature", "top_p", "top_k", "seed", "stop"):
            raise ConfigError(
                f"Chat.send: {name} is not an option of a chat, expected temperature, top_p, "
                "top_k, seed or stop."
            )


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": _text("Model.chat", content)}


def _text(where: str, text: Any) -> str:
    if not isinstance(text, str):
        raise DTypeError(
            f"{where}: the message is a {type(text).__name__}, expected a text. Send the user's "
            "texts one by one; the chat keeps the messages."
        )
    return text
