"""Chats in files: a stream, with the messages in its notes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendre_core.zoo.chat import Chat
from attendre_core.zoo.chat_template import ChatTemplate
from attendre_core.zoo.saving import SavedArrays, read_arrays
from attendre_core.zoo.stream import Stream
from attendre_core.zoo.tokens import rows_of
from attendre_core.zoo.transcript import Transcript

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["restored_chat", "save_chat"]


def save_chat(chat: Chat, path: str | Path) -> None:
    """Save a chat in a file of its stream; `Model.restore` reads the stream alone."""
    memory, transcript, template = chat.model.memory, chat._transcript, chat._template
    notes = {
        "messages": chat._messages,
        "documents": chat._documents,
        "now": chat._now.isoformat(),
        "template": [template.source, dict(template.tokens)],
        "pin": [] if memory is None else [list(span) for span in memory.pin],
        "transcript": [transcript.length, transcript.digest, transcript.tokens],
    }
    chat.stream.save(path, {"chat": notes})


def restored_chat(model: Model, path: str | Path) -> Chat:
    """Read a file that `save_chat` wrote; nothing in it is trusted."""
    saved = read_arrays(path)
    notes = saved.notes.get("chat")
    if not isinstance(notes, dict):
        raise saved.refused("holds a stream but no chat; use Model.restore, or it")
    try:
        pin = tuple((int(start), int(stop)) for start, stop in notes["pin"])
        if model.memory is not None and pin:
            model = model.with_memory(replace(model.memory, pin=pin))
        chat = Chat(model, template=_source(saved, notes["template"]))
        chat._template = ChatTemplate(
            chat._template.source, _texts(notes["template"][1]), where=str(path)
        )
        chat._now = datetime.fromisoformat(notes["now"])
        chat._messages = [_texts(message) for message in notes["messages"]]
        chat._documents = list(map(_text, notes["documents"]))
        length, digest, tokens = notes["transcript"]
        if not isinstance(tokens, list):
            raise TypeError("not tokens")
        if tokens:
            tokens = rows_of("chat", tokens, model.reading_part.vocabulary)[0]
        good = all({"role", "content"} == message.keys() for message in chat._messages)
        if not good or type(length) is not int or length < 0:
            raise ValueError("wrong notes")
        encode = chat._transcript._encode
        chat._transcript = Transcript(encode, length, _text(digest), tokens)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise saved.refused("has notes on a chat that cannot be used") from error
    chat.stream = Stream.restored(model, saved)
    return chat


def _source(saved: SavedArrays, template: Any) -> str:
    source, tokens = template
    if not isinstance(tokens, dict):
        raise saved.refused("has a chat template without its tokens")
    return _text(source)


def _texts(values: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
