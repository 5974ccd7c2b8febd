"""Write the walks of architecture.md from recordings: run it as a script, without arguments.

A walk is every function of ours that a call runs, in the order of first use, indented below its
caller. Comments in the page stay with their function. A test compares the page with a recording.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

import attendre_core as at
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures.llama import Llama

PAGE = Path(__file__).with_name("architecture.md")
PACKAGE = Path(at.__file__).parent
#: What every function uses and no walk names.
EVERYWHERE = ("backend.py", "builtin_backends.py", "checks.py", "lazy.py", "tree.py")
SECTION = re.compile(r"(\n## (One \w+: [^\n]*)\n.*?^```text\n)(.*?)(^```$)", re.M | re.S)


class Call(NamedTuple):
    """A function by its qualified name, its file below attendre_core, and how deep it is."""

    name: str
    file: str
    depth: int = 0


def found(call: Call) -> Any:
    """Look a function up, without calling a property."""
    module = ".".join(["attendre_core", *Path(call.file).with_suffix("").parts])
    result: Any = importlib.import_module(module)
    for part in call.name.split("."):
        result = inspect.getattr_static(result, part)
    return result


def is_named(call: Call) -> bool:
    """Whether a walk names this function."""
    if call.file in EVERYWHERE or "<" in call.name or call.name.split(".")[-1].startswith("__"):
        return False
    return not isinstance(found(call), property)


def recorded(function: Callable[[], Any], closed: str = "") -> list[Call]:
    """Return the functions that a call runs; not those below the one named ``closed``."""
    calls: list[Call] = []
    depth, hidden = 0, -1

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, hidden
        file, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event not in ("call", "return") or PACKAGE not in file.parents:
            return
        if event == "call":
            if hidden < 0:
                calls.append(Call(name, file.relative_to(PACKAGE).as_posix(), depth))
                hidden = depth if name == closed else -1
            depth += 1
        else:
            depth -= 1
            hidden = -1 if hidden == depth else hidden

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return _walk(calls)


def _walk(calls: list[Call]) -> list[Call]:
    """Keep what is named, at its first use, as deep as it is below what is named."""
    callers: list[int] = []
    first: dict[tuple[str, str], Call] = {}
    for call in calls:
        while callers and callers[-1] >= call.depth:
            callers.pop()
        if is_named(call):
            first.setdefault(call[:2], call._replace(depth=len(callers)))
            callers.append(call.depth)
    return list(first.values())


def step() -> list[Call]:
    """Record a step of a layer with an LFA memory, a Q memory and RoPE, as plain code runs it."""
    rng = np.random.default_rng(0)
    layer = at.AttendreLayer(
        at.KeyValueMemory(16, at.LFA()), at.DataOnlyMemory(8), encoding=at.RoPE()
    )
    state = layer.init(batch=1, heads=2, head_dim=8)
    chunks = [at.Chunk(*rng.standard_normal((3, 1, 4, 2, 8), dtype=np.float32)) for _ in range(8)]
    with at.force_generic():
        for chunk in chunks[:-1]:
            state, _ = layer.step(state, chunk)
        return recorded(lambda: layer.step(state, chunks[-1]))


def generate() -> list[Call]:
    """Record how a Llama with ``attendre-causal`` continues a prompt, steps of layers closed."""
    rng = np.random.default_rng(0)
    llama = Llama(
        layers=1, dim=16, heads=2, kv_heads=2, head_dim=8, vocabulary=32, context=2048, hidden=32,
        rope=at.RoPE(), tied=True,
    )  # fmt: skip
    params = tree_map(
        lambda tensor: 0.1 * rng.standard_normal(tensor.shape, dtype=np.float32),
        llama.parameters(),
    )
    model = at.Model(llama, params, memory="attendre-causal+chunk=8:16")
    prompt = rng.integers(0, 32, 30).tolist()
    with at.force_generic():
        model.generate(prompt, max_new_tokens=3)  # what is cached is there from now on
        return recorded(lambda: model.generate(prompt, max_new_tokens=3), "AttendreLayer.step")


WALKS = {"One chunk: `AttendreLayer.step`": step, "One token: `Model.generate`": generate}


class Line(NamedTuple):
    """A function in a walk, the comment above it, and whether a blank line precedes both."""

    name: str
    file: str
    comment: str
    blank: bool


def lines_of(block: str) -> list[Line]:
    """Read a walk."""
    lines: list[Line] = []
    comment, blank = "", False
    for text in (line.strip() for line in block.splitlines()):
        if text.startswith("#"):
            comment = text
        elif text:
            lines.append(Line(*text.split(), comment, blank))
            comment, blank = "", False
        else:
            blank = True
    return lines


def written(text: str) -> str:
    """Return the page with its walks as they are recorded now."""

    def walk(match: re.Match[str]) -> str:
        start, title, block, end = match.groups()
        known = {line.name: line for line in lines_of(block)}
        lines = []
        for name, file, depth in WALKS[title]():
            indent = "  " * depth
            _, _, comment, blank = known.get(name, Line(name, file, "", False))
            lines += [""] if blank else []
            lines += [indent + comment] if comment else []
            lines.append(f"{indent + name:<44} {file}")
        return start + "\n".join(lines) + "\n" + end

    return SECTION.sub(walk, text)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
