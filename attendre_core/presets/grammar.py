"""The grammar of memory names, ``NAME[+option...][:size]``: one table of options, one parser.

``LRA-sum+softmax+c=0:1024`` is the paper's LRA-sum, scored by attention weights, whose new entries
enter at the mean score, with 1024 entries per layer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.memory.spec import byte_count
from attendre_core.policies import Clip, InitialScore, QuantileScore, QuotaScore

__all__ = ["OPTIONS", "Option", "ParsedName", "option_of", "split_name"]

_UNITS = {"": "", "k": "k", "m": "M", "g": "G", "ki": "Ki", "mi": "Mi", "gi": "Gi"}
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?)?b", re.IGNORECASE)
_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_LFA = re.compile(r"lfa-([0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?|\.[0-9]+(?:e[-+]?[0-9]+)?)")


def decimal(number: float) -> str:
    """Write a number so that it reads back equal and contains no plus sign.

    Examples
    --------
    >>> decimal(0.0), decimal(-1.5), decimal(1e30)
    ('0', '-1.5', '1e30')
    """
    return repr(float(number) + 0.0).removesuffix(".0").replace("e+", "e")


def _decay(number: float) -> str:
    """Write a decay as the paper does: 0, 1e-3, 5e-4, 0.5."""
    if number == 0 or number >= 0.1:
        return decimal(number)
    texts = (f"{number:.{digits}e}" for digits in range(17))
    mantissa, _, exponent = next(text for text in texts if float(text) == number).partition("e")
    return f"{mantissa}e{int(exponent)}"


class ValueKind(NamedTuple):
    """How the text after ``=`` becomes a value and back; `show` returns None for other values."""

    read: Callable[[str], Any]
    show: Callable[[Any], str | None]


def _count(least: int, *words: str) -> ValueKind:
    """Read whole numbers; ``all`` is None, other words stay words."""

    def read(text: str) -> Any:
        if text in words:
            return None if text == "all" else text
        number = int(text) if re.fullmatch("[0-9]+", text) else -1
        if number < least:
            more = "".join(f", or {word!r}" for word in words)
            raise ValueError(f"a whole number, {least} or more{more}")
        return number

    def show(value: Any) -> str | None:
        return "all" if value is None and "all" in words else str(value)

    return ValueKind(read, show)


def _start(rule: type, field: str, expected: str) -> ValueKind:
    """Read a rule for the score of new entries that has one number."""

    def read(text: str) -> Any:
        try:
            return rule(float(text))
        except ValueError as error:
            raise ValueError(expected) from error

    def show(value: Any) -> str | None:
        return decimal(getattr(value, field)) if type(value) is rule else None

    return ValueKind(read, show)


def _span(text: str) -> tuple[int, int]:
    match = re.fullmatch("([0-9]+)-([0-9]+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError("START-STOP with START < STOP, e.g. 0-32 for the first 32 positions")
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class Option:
    """One option of the grammar.

    Attributes
    ----------
    usage
        How it is written, ``"softmax"`` or ``"c=NUMBER"``.
    field
        The field of `MemoryConfig` that it sets, or ``"policy.FIELD"``.
    value
        What it is set to; for ``usage`` with ``=`` a `ValueKind`.
    words
        One line for help and documentation.
    """

    usage: str
    field: str
    value: Any
    words: str

    @property
    def word(self) -> str:
        """What is written before the ``=``."""
        return self.usage.partition("=")[0]

    def text(self, value: Any) -> str | None:
        """Write the option that sets a value; None if this option cannot."""
        if not isinstance(self.value, ValueKind):
            same = type(value) is type(self.value) and value == self.value
            return self.usage if same else None
        shown = self.value.show(value)
        return None if shown is None else f"{self.word}={shown}"


_C = _start(InitialScore, "sigmas", "a finite number")
_QUOTA = _start(QuotaScore, "share", "a share from 0 to 1")
_QUANTILE = _start(QuantileScore, "quantile", "a share from 0 to 1")
#: All options, in the order in which canonical names list them.
OPTIONS = (
    Option("softmax", "policy.score", "softmax", "score entries by attention weights"),
    Option("logits", "policy.score", "logits", "score entries by logits, as in the paper"),
    Option("clip", "policy.score", Clip(), "score entries by logits, negative ones as 0"),
    Option("hold", "policy.hold", True, "do not score entries later than every query so far"),
    Option("c=NUMBER", "policy.initial", _C, "new entries start at mu - c sigma of the scores"),
    Option("quota=SHARE", "policy.initial", _QUOTA, "at least this share of a chunk enters"),
    Option("quantile=SHARE", "policy.initial", _QUANTILE,
           "new entries beat at least this share of the memory"),
    Option("seed=INT", "policy.seed", _count(0), "which random sample"),
    Option("visible", "present", "visible", "a chunk is attended to before it competes"),
    Option("compete", "present", "compete", "a chunk competes before it is attended to"),
    Option("per-head", "per_head", True, "each K/V head evicts on its own"),
    Option("per-token", "per_head", False, "all K/V heads evict the same tokens"),
    Option("sinks=COUNT", "sinks", _count(0), "never evict the first entries"),
    Option("recent=COUNT", "protect_recent", _count(0), "never evict the most recent entries"),
    Option("pin=START-STOP", "pin", ValueKind(_span, lambda span: f"{span[0]}-{span[1]}"),
           "never evict these positions; may be repeated"),
    Option("wait=COUNT", "q_size", _count(0, "half"),
           "N: positions a query waits before it attends, or 'half' of M"),
    Option("k=COUNT", "top_k", _count(1, "all"), "K: entries each query retrieves, or 'all'"),
    Option("chunk=COUNT", "chunk", _count(1), "S: positions read per step (128)"),
    Option("clamp", "positions", "clamp", "beyond the trained length, distances are clamped"),
    Option("model", "positions", "model", "beyond the trained length, positions keep counting"),
    Option("in-cache", "positions", "in-cache", "positions count stored entries"),
    Option("drain", "finish", "drain", "waiting queries leave chunk by chunk at the end"),
    Option("flush", "finish", "flush", "waiting queries leave all at once at the end"),
    Option("separate", "decode", "separate", "generated tokens do not compete with the input"),
    Option("inside", "decode", "inside", "generated tokens enter the memory and compete"),
    Option("outputs=COUNT", "encoder_outputs", _count(1), "O: encoder outputs a decoder can see"),
    Option("cross=COUNT", "cross_top_k", _count(1, "all"),
           "encoder outputs each decoder head retrieves, or 'all'"),
)  # fmt: skip
_BY_WORD = {option.word: option for option in OPTIONS}


class ParsedName(NamedTuple):
    """The parts of a memory name, in canonical spelling; ``str`` joins them again.

    Attributes
    ----------
    name
        A known name (``"LRA-sum"``, ``"LFA-1e-3"``), or ``"module:Class"`` of a policy.
    options
        Such as ``("softmax", "c=0")``, in the order of `OPTIONS`.
    size
        Entries (int), bytes such as ``"64MiB"``, or None.
    """

    name: str
    options: tuple[str, ...] = ()
    size: int | str | None = None

    def has(self, word: str) -> bool:
        """Whether an option is given, by the word before its ``=``."""
        return any(option.partition("=")[0] == word for option in self.options)

    def __str__(self) -> str:
        size = "" if self.size is None else f":{self.size}"
        return "+".join((self.name, *self.options)) + size


def split_name(text: str, known: Sequence[str]) -> ParsedName:
    """Take a memory name apart.

    Parameters
    ----------
    text
        ``NAME[+option...][:size]``; capitals do not matter, but for ``module:Class``.
    known
        Names in canonical spelling; ``LFA-<decay>`` and ``module:Class`` are always understood.

    Examples
    --------
    >>> split_name("lra-sum+C=0.0+softmax:64mib", ["LRA-sum"])
    ParsedName(name='LRA-sum', options=('softmax', 'c=0'), size='64MiB')
    """
    where = f"memory name {text!r}"
    head, colon, tail = text.strip().rpartition(":")
    name, *options = re.split(r"\+(?![0-9])", head if colon else tail)
    size: int | str | None = None
    if colon and _is_size(name, tail, known):
        size = _size(where, tail.strip())
    elif colon:
        name, *options = re.split(r"\+(?![0-9])", text.strip())
    return ParsedName(_name(where, name.strip(), known), _options(where, options), size)


def option_of(text: str) -> tuple[Option, Any]:
    """Return a canonical option and the value that it sets."""
    word, _, value = text.partition("=")
    option = _BY_WORD[word]
    return option, option.value.read(value) if isinstance(option.value, ValueKind) else option.value


def _is_size(name: str, tail: str, known: Sequence[str]) -> bool:
    """Whether what follows the last colon is meant as a size, not as the class of a module."""
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
    found: list[tuple[int, str]] = []
    fields: dict[str, str] = {}
    for given in options:
        word, equals, value = (part.strip() for part in given.lower().partition("="))
        option = _BY_WORD.get(word)
        if option is None or bool(equals) != isinstance(option.value, ValueKind):
            usage = f"; it is written +{option.usage}" if option else ""
            raise ConfigError(
                f"{where}: the option {given.strip()!r} is not known{usage}. Options are "
                f"{', '.join(each.usage for each in OPTIONS)}; the size comes last, after a colon."
            )
        canonical: str | None = option.usage
        if equals:
            try:
                canonical = f"{word}={option.value.show(option.value.read(value))}"
            except ValueError as error:
                raise ConfigError(
                    f"{where}: {word} is {value!r}, expected {error}, as in +{option.usage}."
                ) from error
        if option.field in fields and option.field != "pin":
            raise ConfigError(
                f"{where}: +{fields[option.field]} and +{canonical} set the same thing. Keep one "
                "of them."
            )
        fields[option.field] = str(canonical)
        found.append((OPTIONS.index(option), str(canonical)))
    # A stable sort: several pins stay in their order.
    return tuple(each for _, each in sorted(found, key=lambda item: item[0]))


def _size(where: str, text: str) -> int | str:
    if re.fullmatch("[0-9]+", text):
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
