"""The options of memory names, in one table for the parser, the messages, the help and the docs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from attendre_core.outside import HostStores, HostTier
from attendre_core.policies import Clip, ConstantScore, InitialScore, QuantileScore, QuotaScore

__all__ = ["OPTIONS", "Option", "ValueKind", "decimal", "option_named", "option_of"]


def decimal(number: float) -> str:
    """Write a number so that it reads back equal and contains no plus sign.

    Examples
    --------
    >>> decimal(0.0), decimal(-1.5), decimal(1e30)
    ('0', '-1.5', '1e30')
    """
    return repr(float(number) + 0.0).removesuffix(".0").replace("e+", "e")


class ValueKind(NamedTuple):
    """How the text after ``=`` becomes a value and back.

    Attributes
    ----------
    read
        Returns the value of a text; its ValueError says what was expected.
    show
        Returns the text of a value; None if the value is not of this kind.
    """

    read: Callable[[str], Any]
    show: Callable[[Any], str | None]


def _count(least: int, *words: str) -> ValueKind:
    """Read whole numbers from ``least`` on, or one of ``words``; ``"all"`` becomes None."""

    def read(text: str) -> Any:
        if text in words:
            return None if text == "all" else text
        number = int(text) if re.fullmatch("[0-9]{1,18}", text) else -1
        if number < least:
            more = "".join(f", or {word!r}" for word in words)
            raise ValueError(f"a whole number, {least} or more{more}")
        return number

    def show(value: Any) -> str | None:
        return "all" if value is None and "all" in words else str(value)

    return ValueKind(read, show)


def _start(rule: type, field: str, expected: str) -> ValueKind:
    """Read a rule for the initial score that has one number as its parameter."""

    def read(text: str) -> Any:
        try:
            return rule(float(text))
        except ValueError as error:
            raise ValueError(expected) from error

    def show(value: Any) -> str | None:
        return decimal(getattr(value, field)) if type(value) is rule else None

    return ValueKind(read, show)


def _span(text: str) -> tuple[int, int]:
    match = re.fullmatch("([0-9]{1,18})-([0-9]{1,18})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError("START-STOP with START < STOP, e.g. 0-32 for the first 32 positions")
    return int(match[1]), int(match[2])


def _sizes(text: str) -> tuple[int, ...]:
    if not re.fullmatch("[0-9]{1,18}(/[0-9]{1,18})*", text):
        raise ValueError("the entries of each layer, e.g. 64/32/16")
    return tuple(int(size) for size in text.split("/"))


def _shown_sizes(sizes: Any) -> str | None:
    return "/".join(map(str, sizes)) if isinstance(sizes, tuple) and sizes else None


def _host(text: str) -> HostTier:
    if not re.fullmatch("[1-9][0-9]{0,17}", text):
        raise ValueError("a whole number, 1 or more")
    return HostTier(HostStores(int(text)))


def _shown_host(tier: Any) -> str | None:
    if not isinstance(tier, HostTier) or not isinstance(tier.store, HostStores):
        return None
    text = str(tier.store.capacity)
    return text if tier == _host(text) else None


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
        The value that it sets; a `ValueKind` if ``usage`` has a ``=``.
    words
        One line for help and documentation.
    """

    usage: str
    field: str
    value: Any
    words: str

    @property
    def word(self) -> str:
        """The part before the ``=``."""
        return self.usage.partition("=")[0]

    def text(self, value: Any) -> str | None:
        """Return the option as written for a value; None if this option cannot set it."""
        if not isinstance(self.value, ValueKind):
            same = type(value) is type(self.value) and value == self.value
            return self.usage if same else None
        shown = self.value.show(value)
        return None if shown is None else f"{self.word}={shown}"


_C = _start(InitialScore, "sigmas", "a finite number")
_CONSTANT = _start(ConstantScore, "value", "a finite number")
_QUOTA = _start(QuotaScore, "share", "a share from 0 to 1")
_QUANTILE = _start(QuantileScore, "quantile", "a share from 0 to 1")
#: All options, in the order in which canonical names list them.
OPTIONS = (
    Option("softmax", "policy.score", "softmax", "score entries by attention weights"),
    Option("logits", "policy.score", "logits", "score entries by logits, as in the paper"),
    Option("clip", "policy.score", Clip(), "score entries by logits, negative ones as 0"),
    Option("hold", "policy.hold", True, "do not score entries later than every query so far"),
    Option("c=NUMBER", "policy.initial", _C, "new entries start at mu - c sigma of the scores"),
    Option("start=NUMBER", "policy.initial", _CONSTANT, "new entries start with this score"),
    Option("quota=SHARE", "policy.initial", _QUOTA, "at least this share of a chunk enters"),
    Option("quantile=SHARE", "policy.initial", _QUANTILE,
           "new entries beat at least this share of the memory"),
    Option("window=COUNT", "policy.window", _count(1, "all"),
           "score by the last so many queries of a chunk, or by 'all'"),
    Option("seed=INT", "policy.seed", _count(0), "which random sample"),
    Option("visible", "present", "visible", "a chunk is attended to before it competes"),
    Option("compete", "present", "compete", "a chunk competes before it is attended to"),
    Option("per-head", "per_head", True, "each K/V head evicts on its own"),
    Option("per-token", "per_head", False, "all K/V heads evict the same tokens"),
    Option("sinks=COUNT", "sinks", _count(0), "never evict the first entries"),
    Option("recent=COUNT", "protect_recent", _count(0, "half"),
           "never evict the most recent entries: this many, or 'half' of M"),
    Option("pin=START-STOP", "pin", ValueKind(_span, lambda span: f"{span[0]}-{span[1]}"),
           "never evict these positions; may be repeated"),
    Option("layers=SIZES", "layer_sizes", ValueKind(_sizes, _shown_sizes),
           "entries of each layer, as in 64/32/16"),
    Option("pyramid", "layer_sizes", "pyramid", "early layers hold more entries than late ones"),
    Option("host=COUNT", "host", ValueKind(_host, _shown_host),
           "what is evicted goes to host memory, which holds so many entries per layer"),
    Option("wait=COUNT", "q_size", _count(0, "half"),
           "N: positions a query waits before it attends, or 'half' of M"),
    Option("k=COUNT", "top_k", _count(1, "all"), "K: entries each query retrieves, or 'all'"),
    Option("chunk=COUNT", "chunk", _count(1), "S: positions read per step (128, at most M)"),
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
    Option("adapt", "adapt", True, "the model may choose what is best for its kind and length"),
    Option("fixed", "adapt", False, "the same system in every model"),
)  # fmt: skip
_BY_WORD = {option.word: option for option in OPTIONS}


def option_named(word: str) -> Option | None:
    """Return the option with this word before its ``=``; None if there is none."""
    return _BY_WORD.get(word)


def option_of(text: str) -> tuple[Option, Any]:
    """Return the option that a canonical text names, and the value that it sets."""
    word, _, value = text.partition("=")
    option = _BY_WORD[word]
    return option, option.value.read(value) if isinstance(option.value, ValueKind) else option.value
