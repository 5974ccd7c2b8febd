"""Where checkpoints keep their chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attendre_core.errors import CheckpointError
from attendre_core.zoo.chat_template import LONGEST, ChatTemplate
from attendre_core.zoo.config import read_json

__all__ = ["template_of_folder", "template_of_gguf"]

_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_GGUF = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_MOST = 64
_EXPECTED = "expected a text, or a list of objects with name and template"


def template_of_folder(folder: Path) -> ChatTemplate | None:
    """Read ``chat_template.jinja``, or the ``chat_template`` of ``tokenizer_config.json``.

    Returns
    -------
    ChatTemplate or None
        With the special tokens of the tokenizer; None if there is none.
    """
    file, beside = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    values = read_json(beside) if beside.is_file() else {}
    if not isinstance(values, dict):
        raise CheckpointError(f"{beside}: holds no object, expected the settings of a tokenizer.")
    named = _named(beside, values.get("chat_template"))
    where = beside
    for more in sorted((folder / "additional_chat_templates").glob("*.jinja"))[:_MOST]:
        named[more.stem] = _read(more)
    if file.is_file():
        named["default"], where = _read(file), file
    if not named:
        return None
    map_file = folder / "special_tokens_map.json"
    tokens = read_json(map_file) if map_file.is_file() else {}
    tokens = {**(tokens if isinstance(tokens, dict) else {}), **values}
    default = named.get("default", next(iter(named.values())))
    return ChatTemplate(default, _special(tokens), named, str(where))


def template_of_gguf(where: str, metadata: Mapping[str, Any]) -> ChatTemplate | None:
    """Read ``tokenizer.chat_template`` and its named variants."""
    key = "tokenizer.chat_template"
    named = {}
    for name, value in metadata.items():
        if name != key and not name.startswith(f"{key}."):
            continue
        if not isinstance(value, str):
            raise CheckpointError(f"{where}: {name[:80]} is no text, expected a chat template.")
        named[name.removeprefix(key).removeprefix(".") or "default"] = value
    if not named:
        return None
    pieces = metadata.get("tokenizer.ggml.tokens")
    tokens = {}
    for name, short in _GGUF.items():
        number = metadata.get(f"tokenizer.ggml.{short}_token_id")
        if isinstance(pieces, list) and isinstance(number, int) and 0 <= number < len(pieces):
            tokens[name] = pieces[number]
    default = named.get("default", next(iter(named.values())))
    return ChatTemplate(default, _special(tokens), named, where)


def _named(where: Path, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list) and len(value) <= _MOST and all(isinstance(v, dict) for v in value):
        pairs = [(entry.get("name"), entry.get("template")) for entry in value]
        if all(isinstance(text, str) for pair in pairs for text in pair):
            return dict(pairs)
    raise CheckpointError(f"{where}: chat_template is a {type(value).__name__}, {_EXPECTED}.")


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > 4 * LONGEST:
            raise CheckpointError(
                f"{file}: {file.stat().st_size} bytes are too many for a chat template, expected "
                f"at most {4 * LONGEST}."
            )
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read as text ({error}).") from error


def _special(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of special tokens; some files keep them as objects with settings."""
    found = {}
    for name in _TOKENS:
        value = values.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found
