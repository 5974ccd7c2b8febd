"""The grammar of memory names, ``NAME[+option...][:size]``.

``LRA-sum+softmax+c=0:1024`` is the paper's LRA-sum, scored by attention weights, with new entries
entering at the mean score and 1024 entries per layer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.memory.sizes import byte_count
from attendre_core.presets.options import OPTIONS, ValueKind, decimal, option_named, option_of

__all__ = ["ParsedName", "split_name"]

_UNITS = {"": "", "k": "k", "m": "M", "g": "G", "ki": "Ki", "mi": "Mi", "gi": "Gi"}
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?)?b", re.IGNORECASE)
_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_LFA = re.compile(r"lfa-([0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?|\.[0-9]+(?:e[-+]?[0-9]+)?)")


class ParsedName(NamedTuple):
    """The parts of a memory name, in canonical spelling; ``str`` joins them.

    Attributes
    ----------
    name
        A known name (``"LRA-sum"``, ``"LFA-1e-3"``), or ``"module:Class"`` of a policy.
    options
        For example ``("softmax", "c=0")``, in the order of `OPTIONS`.
    size
        Entries per layer (int), bytes such as ``"64MiB"``, or None if the name has no size.
    """

    name: str
    options: tuple[str, ...] = ()
    size: int | str | None = None

    def has(self, word: str) -> bool:
        """Whether the name has an option, given by the word before its ``=``."""
        return any(option.partition("=")[0] == word for option in self.options)

    def with_defaults(
        self, size: int | str | None = None, **values: int | str | None
    ) -> ParsedName:
        """Return the name with a size and options added where it has none; None adds nothing.

        Examples
        --------
        >>> str(ParsedName("MT", ("chunk=8",)).with_defaults(64, chunk=16, k=4))
        'MT+k=4+chunk=8:64'
        """
        more = [f"{w}={v}" for w, v in values.items() if v is not None and not self.has(w)]
        options = sorted((*self.options, *more), key=lambda o: OPTIONS.index(option_of(o)[0]))
        return ParsedName(self.name, tuple(options), size if self.size is None else self.size)

    def __str__(self) -> str:
        size = "" if self.size is None else f":{self.size}"
        return "+".join((self.name, *self.options)) + size


def split_name(text: str, known: Sequence[str]) -> ParsedName:
    """Split a memory name into its parts.

    Parameters
    ----------
    text
        ``NAME[+option...][:size]``; case does not matter, except in ``module:Class``.
    known
        Names to accept, in canonical spelling; ``LFA-<decay>`` and ``module:Class`` are always
        accepted.

    Examples
    --------
    >>> split_name("lra-sum+C=0.0+softmax:64mib", ["LRA-sum"])
    ParsedName(name='LRA-sum', options=('softmax', 'c=0'), size='64MiB')
    """
    where = f"memory name {text!r}"
    if not isinstance(text, str):
        raise ConfigError(
            f"{where}: a name is text such as 'LRA-sum+softmax:1024'. A policy goes into "
            "at.MemoryConfig(policy, kv_size)."
        )
    head, colon, tail = text.strip().rpartition(":")
    name, *options = re.split(r"\+(?![0-9])", head if colon else tail)
    size: int | str | None = None
    if colon and _is_size(name, tail, known):
        size = _size(where, tail.strip())
    elif colon:
        name, *options = re.split(r"\+(?![0-9])", text.strip())
    return ParsedName(_name(where, name.strip(), known), _options(where, options), size)


def _is_size(name: str, tail: str, known: Sequence[str]) -> bool:
    """Whether the text after the last colon is a size rather than the class of a module."""
    return (
        not re.match(r"\s*[^\W\d]", tail)
        or ":" in name
        or name.strip().lower() in (each.lower() for each in known)
        or _LFA.fullmatch(name.strip().lower()) is not None
    )


def _name(where: str, name: str, known: Sequence[str]) -> str:
    spelled = {each.lower(): each for each in known}
    if name.lower() in spelled:
        return spelled[name.lower()]
    decay = _LFA.fullmatch(name.lower())
    if decay:
        return f"LFA-{_decay(float(decay[1]))}"
    if _PATH.fullmatch(name):
        return name
    close = difflib.get_close_matches(name.lower(), spelled, 1)
    hint = f" Did you mean {spelled[close[0]]}?" if close else ""
    if "(" in name:
        hint = " A policy with arguments is given in Python: at.MemoryConfig(policy, kv_size)."
    raise ConfigError(
        f"{where}: {name!r} is not known, expected NAME[+option...][:size] with one of "
        f"{', '.join(known)}, any LFA-<decay>, or my_module:MyPolicy.{hint}"
    )


def _options(where: str, options: Sequence[str]) -> tuple[str, ...]:
    ordered: list[tuple[int, str]] = []
    fields: dict[str, str] = {}
    for given in options:
        word, equals, value = (part.strip() for part in given.lower().partition("="))
        option = option_named(word)
        if option is None or bool(equals) != isinstance(option.value, ValueKind):
            usage = f"; write +{option.usage}" if option else ""
            raise ConfigError(
                f"{where}: the option {given.strip()!r} is not known{usage}. Options are "
                f"{', '.join(each.usage for each in OPTIONS)}; the size comes last, after a colon."
            )
        canonical = option.usage
        if equals:
            try:
                canonical = str(option.text(option.value.read(value)))
            except ValueError as error:
                raise ConfigError(
                    f"{where}: {word} is {value!r}, expected {error}, as in +{option.usage}."
                ) from error
        if option.field in fields and option.field != "pin":
            raise ConfigError(
                f"{where}: +{fields[option.field]} and +{canonical} set the same thing. Keep one "
                "of them."
            )
        fields[option.field] = canonical
        ordered.append((OPTIONS.index(option), canonical))
    # The sort is stable, so several pins stay in the order given.
    return tuple(each for _, each in sorted(ordered, key=lambda item: item[0]))


def _size(where: str, text: str) -> int | str:
    if re.fullmatch("[0-9]{1,18}", text):
        return int(text)
    match = _BYTES.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{where}: the size is {text!r}, expected entries per layer such as :1024, or bytes "
            "for all layers such as :64MiB. Options come before the size, as in "
            "LRA-sum+softmax:1024."
        )
    byte_count(text)
    return f"{decimal(float(match[1]))}{_UNITS[(match[2] or '').lower()]}B"


def _decay(number: float) -> str:
    """Write a decay as the paper does: 0, 1e-3, 5e-4, 0.5."""
    if number == 0 or number >= 0.1:
        return decimal(number)
    texts = (f"{number:.{digits}e}" for digits in range(17))
    mantissa, _, exponent = next(text for text in texts if float(text) == number).partition("e")
    return f"{mantissa}e{int(exponent)}"
