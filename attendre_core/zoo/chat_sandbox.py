"""Run the Jinja template of a checkpoint, which may be hostile, within limits.

The sandbox of Jinja keeps a template away from Python's insides. It does not keep it from taking
hours or all of the memory, so here loops are counted, and nothing may grow beyond a limit.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from attendre_core.zoo.tokenizers.base import needed_package

__all__ = ["LimitError", "Limits", "RefusalError", "compiled_template", "run_template"]

#: Widest that a template may pad, indent or repeat anything by a number.
_WIDEST = 10_000
_MOST_BITS = 4096
_WIDTHS = ("center", "ljust", "rjust", "zfill", "indent", "wordwrap", "batch", "slice", "truncate")
_WIDE_FORMAT = re.compile(r"\d{5,}|\*|\{[^{}]*\{")
_DEEPEST = 50


class Limits(NamedTuple):
    """How much a template may do: rounds of loops and calls of macros, and characters."""

    rounds: int
    size: int


class LimitError(Exception):
    """A template went beyond its limits."""


class RefusalError(Exception):
    """A template called ``raise_exception``."""


def run_template(template: Any, limits: Limits, now: datetime, values: dict[str, Any]) -> str:
    """Render a template from `compiled_template`.

    Parameters
    ----------
    now
        What ``strftime_now`` writes.
    values
        What the template can see.
    """
    guard = template.environment.guard
    guard.limits, guard.rounds, guard.now = limits, 0, now
    parts, size = [], 0
    for part in template.generate(**values):
        parts.append(part)
        size += len(part)
        if size > limits.size:
            raise LimitError(f"writes more than {limits.size} characters")
    return "".join(parts)


def compiled_template(source: str, where: str) -> Any:
    """Compile a template as transformers does, with guards in its loops."""
    needed_package("jinja2", where)
    guard = _Guard()
    environment = _environment(guard)
    tree = _guarded_loops(environment.parse(source))
    code = environment.compile(tree, filename="chat template")
    return environment.template_class.from_code(environment, code, environment.make_globals(None))


class _Guard(threading.local):
    """Counts what one rendering does, in each thread by itself."""

    def __init__(self) -> None:
        self.limits, self.rounds, self.now = Limits(0, 0), 0, datetime.min

    def tick(self) -> str:
        """Count one round of a loop, or one call of a macro."""
        self.rounds += 1
        if self.rounds > self.limits.rounds:
            raise LimitError(f"takes more than {self.limits.rounds} rounds of loops")
        return ""

    def fits(self, size: int) -> None:
        """Refuse what would become too large, before it is made."""
        if size > self.limits.size:
            raise LimitError(f"makes a value of {size} characters, more than {self.limits.size}")

    def weigh(self, value: Any, depth: int = 0) -> int:
        """Return about how many characters a value takes as a text; refuse what is too large."""
        if depth > _DEEPEST:
            raise LimitError(f"nests values more than {_DEEPEST} deep")
        total = len(value) if isinstance(value, str) else 1
        if isinstance(value, (list, tuple, set, dict)):
            items: Iterable[Any] = value
            if isinstance(value, dict):
                items = (part for item in value.items() for part in item)
            for item in items:
                total += self.weigh(item, depth + 1)
                self.fits(total)
        self.fits(total)
        return total

    def shown(self, value: Any) -> Any:
        """Weigh what is about to be written."""
        self.weigh(value)
        return value

    def operation(self, symbol: str, left: Any, right: Any) -> None:
        """Refuse an operation whose result would be too large."""
        if isinstance(left, str) and symbol == "%":
            self._format(left, [right])
        elif symbol == "*" and _sized(left) != _sized(right):
            sized, times = (left, right) if _sized(left) else (right, left)
            self.fits(self.weigh(sized) * max(times, 0))
        elif symbol == "+":
            self.fits(self.weigh(left) + self.weigh(right))
        elif symbol in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (right if symbol == "**" else 1)
            if bits + (right.bit_length() if symbol == "*" else 0) > _MOST_BITS:
                raise LimitError("makes a number that is too large")

    def call(self, name: str, text: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Refuse a method or filter whose result would be too large."""
        given = [*args, *named.values()]
        for value in given:
            self.weigh(value)
        numbers = [n for n in given if isinstance(n, int)]
        if name in (*_WIDTHS, "expandtabs") and any(n > _WIDEST for n in numbers):
            raise LimitError(f"makes {name} wider than {_WIDEST}")
        if not isinstance(text, str):
            return
        if name in ("format", "format_map"):
            self._format(text, given)
        elif name == "replace" and len(args) > 1 and isinstance(args[1], str):
            found = text.count(args[0]) if isinstance(args[0], str) else 0
            self.fits(len(text) + found * len(args[1]))
        elif name in ("indent", "expandtabs"):
            marks = text.count("\n" if name == "indent" else "\t")
            width = max([8, *numbers, *(len(s) for s in given if isinstance(s, str))])
            self.fits(len(text) + (marks + 1) * width)
        elif name == "join" and args and _sized(args[0]):
            self.fits(self.weigh(args[0]) + len(text) * len(args[0]))

    def join(self, parts: Iterable[Any], between: str = "") -> str:
        """Join texts of any number."""
        texts, total = [], 0
        for part in parts:
            self.weigh(part)
            texts.append(str(part))
            total += len(texts[-1]) + len(between)
            self.fits(total)
        return between.join(texts)

    def _format(self, text: str, given: list[Any]) -> None:
        self.weigh(given)
        large = any(isinstance(value, int) and abs(value) > 10**15 for value in given)
        if _WIDE_FORMAT.search(text) or large:
            raise LimitError("formats a text with a width that is not a small number")
        self.fits(len(text) * max(self.weigh(given), 1))


def _sized(value: Any) -> bool:
    return isinstance(value, (str, list, tuple))


def _environment(guard: _Guard) -> Any:
    """Return the environment that templates of transformers expect, with guards."""
    import jinja2.ext
    import jinja2.sandbox

    class Bounded(jinja2.sandbox.ImmutableSandboxedEnvironment):  # type: ignore[misc, unused-ignore]
        intercepted_binops = frozenset(["+", "*", "**", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            guard.operation(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, *given: Any, **named: Any) -> Any:
            _, called, *args = given
            # The sandbox wraps str.format.
            method = getattr(called, "__wrapped__", called)
            owner = getattr(method, "__self__", None)
            guard.call(getattr(method, "__name__", ""), owner, tuple(args), named)
            return super().call(*given, **named)

    class Generation(jinja2.ext.Extension):  # type: ignore[misc, unused-ignore]
        """``{% generation %}`` marks what a model is trained to write; it writes nothing."""

        tags: ClassVar = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    made = Bounded(
        trim_blocks=True, lstrip_blocks=True, finalize=guard.shown,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )  # fmt: skip
    made.guard = guard
    for name, function in list(made.filters.items()):
        made.filters[name] = _guarded(guard, name, function)
    made.filters |= {
        "join": functools.partial(_join, guard),
        "attendre_concatenation": guard.join,
        "tojson": functools.partial(_to_json, guard),
    }
    del made.globals["lipsum"]
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: guard.now.strftime(form)
    return made


def _guarded(guard: _Guard, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # Some filters get the environment or the context first; wraps() copies the mark for it.
    first = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def run(*args: Any, **named: Any) -> Any:
        value = args[first] if len(args) > first else None
        guard.weigh(value)
        guard.call(name, value, args[first + 1 :], named)
        return function(*args, **named)

    return run


def _join(
    guard: _Guard, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        value = [item[attribute] for item in value]
    return guard.join(value, str(d))


def _to_json(
    guard: _Guard,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    guard.weigh(value)
    if isinstance(indent, int) and indent > 16:
        raise LimitError("indents JSON by more than 16")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: Any) -> None:
    raise RefusalError(str(message)[:400])


def _guarded_loops(tree: Any) -> Any:
    """Count every round of a loop and every call of a macro; join with ``~`` within limits."""
    import jinja2.visitor

    nodes = jinja2.nodes

    def tick() -> Any:
        guard = nodes.EnvironmentAttribute("guard.tick")
        return nodes.ExprStmt(nodes.Call(guard, [], [], None, None))

    class Change(jinja2.visitor.NodeTransformer):  # type: ignore[misc, unused-ignore]
        def visit_Concat(self, node: Any) -> Any:  # noqa: N802
            parts = nodes.List([self.visit(part) for part in node.nodes])
            return nodes.Filter(parts, "attendre_concatenation", [], [], None, None)

        def visit_For(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            node.body.insert(0, tick())
            return node

        visit_Macro = visit_CallBlock = visit_For  # noqa: N815

    changed = Change().visit(tree)
    changed.set_environment(tree.environment)
    return changed.set_lineno(1)
