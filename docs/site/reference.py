"""What the reference adds to docstrings, so that every parameter has a type and a description.

A docstring says what is special about a function. What a parameter means everywhere is not said
again in each: a parameter without words of its own takes those of the method whose parameters it
shares, of the class that it is inherited from, or of the table in `words`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from words import EVERYWHERE, IN

import attendre_core

RULE = re.compile(r"-{3,}")
FIELDS = ("Parameters", "Attributes", "Other Parameters")
SHARED = re.compile(
    r"(?:[Pp]arameters,? (?:and result )?(?:are|as) (?:those of|in)|see|like) `([\w.]+)`"
)

_ANYTHING = [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]

Sections = dict[str, list[str]]


def sections_of(doc: str | None) -> Sections:
    r"""Split a numpydoc docstring; what comes before the first title has the title ``""``.

    Examples
    --------
    >>> sections_of("Add.\n\nParameters\n----------\na, b\n    Numbers.")
    {'': ['Add.', ''], 'Parameters': ['a, b', '    Numbers.']}
    """
    found: Sections = {"": []}
    lines = inspect.cleandoc(doc or "").splitlines()
    title = ""
    for line, following in zip(lines, [*lines, ""][1:], strict=True):
        if RULE.fullmatch(following) and line.strip() and not line[0].isspace():
            title = line.strip()
            found[title] = []
        elif not RULE.fullmatch(line):
            found[title].append(line)
    return found


def described(doc: str | None) -> dict[str, list[str]]:
    r"""Return the parameters and attributes that a docstring describes, each with its words.

    Examples
    --------
    >>> described("Add.\n\nParameters\n----------\na, b : int\n    Numbers.")
    {'a': ['Numbers.'], 'b': ['Numbers.']}
    """
    found: dict[str, list[str]] = {}
    sections = sections_of(doc)
    for title in FIELDS:
        names: list[str] = []
        for line in sections.get(title, []):
            if line and not line[0].isspace():
                names = [name.strip().lstrip("*") for name in line.partition(" :")[0].split(",")]
                found.update({name: [] for name in names})
            else:
                for name in names:
                    found[name].append(line[4:])
    return {name: _trimmed(words) for name, words in found.items()}


def _trimmed(words: Sequence[str]) -> list[str]:
    return "\n".join(words).strip("\n").split("\n")


def parameters_of(obj: Any) -> list[str]:
    """Return the names of the parameters that a user may pass."""
    try:
        known = [*inspect.signature(obj).parameters.values()]
    except (TypeError, ValueError):
        return []
    # A protocol, or a class with a metaclass of its own, says (*args, **kwargs), and means nothing.
    if inspect.isclass(obj) and [p.kind for p in known] == _ANYTHING:
        return []
    return [p.name for p in known if p.name not in ("self", "cls") and p.name[0] != "_"]


def _owner(obj: Any) -> type | None:
    """Return the class that a method belongs to."""
    module = inspect.getmodule(obj)
    place: Any = module
    for part in getattr(obj, "__qualname__", "").split(".")[:-1]:
        place = getattr(place, part, None)
    return place if inspect.isclass(place) else None


def _shared_with(obj: Any, owner: type | None) -> Iterator[str | None]:
    """Yield the docstrings of what an object names as having the same parameters."""
    spaces = [*(owner.__mro__ if owner else ()), inspect.getmodule(obj), attendre_core]
    for path in SHARED.findall(" ".join((inspect.getdoc(obj) or "").split())):
        for space in spaces:
            place = space
            for part in path.split("."):
                place = getattr(place, part, None)
            if place is not None:
                yield inspect.getdoc(place)
                yield from _shared_with(place, owner)
                break


def _inherited(obj: Any, owner: type | None) -> Iterator[str | None]:
    if inspect.isclass(obj):
        for base in obj.__mro__[:-1]:
            yield vars(base).get("__doc__")
            yield getattr(vars(base).get("__init__"), "__doc__", None)
    elif owner is not None:
        for base in owner.__mro__[1:-1]:
            yield inspect.getdoc(vars(base).get(obj.__name__))


def words_for(obj: Any, doc: str | None = None) -> dict[str, list[str]]:
    """Return a description of each parameter of a class or function; empty ones have none."""
    owner = None if inspect.isclass(obj) else _owner(obj)
    known: dict[str, list[str]] = {}
    sources: list[Callable[[], Iterator[str | None]]] = [
        lambda: iter([inspect.getdoc(obj) if doc is None else doc]),
        lambda: _shared_with(obj, owner),
        lambda: _inherited(obj, owner),
    ]
    for source in sources:
        for text in source():
            known = described(text) | known
    place = f"{obj.__module__}.{getattr(obj, '__qualname__', '')}"
    for scope in sorted(IN, key=len, reverse=True):
        if place == scope or place.startswith(f"{scope}."):
            known = {name: [text] for name, text in IN[scope].items()} | known
    known = {name: [text] for name, text in EVERYWHERE.items()} | known
    return {name: known.get(name, []) for name in parameters_of(obj)}


def completed(doc: str, obj: Any) -> list[str]:
    """Return a docstring in which every parameter is described, in the order of the signature.

    Fields of records are among the parameters; other attributes stay where they are, one by one.
    """
    sections = sections_of(doc)
    own = described(doc)
    words = {name: text for name, text in words_for(obj, doc).items() if text}
    others = {name: text for name, text in own.items() if name not in words}
    for title in FIELDS:
        sections.pop(title, None)
    lines = sections.pop("")
    for title, entries in (("Parameters", words), ("Attributes", others)):
        if entries:
            lines += _headed(title, _fields(entries))
    for title, text in sections.items():
        lines += _headed(title, text)
    return lines


def _headed(title: str, text: Sequence[str]) -> list[str]:
    return ["", title, "-" * len(title), *text]


def _fields(entries: dict[str, list[str]]) -> list[str]:
    return [
        line
        for name, text in entries.items()
        for line in (name, *(f"    {part}" if part else "" for part in text), "")
    ]
