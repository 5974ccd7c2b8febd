"""The house keeps its order: who imports whom, who reads values, how long files are."""

from __future__ import annotations

import ast
import inspect
import statistics
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import attendre_core as at
from attendre_core import backend as backends

ROOT = Path(__file__).parents[1]
CORE = ROOT / "attendre_core"
ADAPTERS = {name: ROOT / "backends" / name for name in ("attendre_torch", "attendre_jax")}

#: Rooms of the core from the ground up: a room imports what stands below it. Rooms on one floor
#: may import each other in one direction.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "tree", "lazy", "progress", "arguments", "files", "paths"),
    ("array_files",),
    ("backend", "journal"),
    ("ops",),
    ("checks",),
    ("eager", "numba_kernels"),
    ("builtin_backends", "conversion"),
    ("policies", "positions"),
    ("joint",),
    ("memory",),
    ("outside",),
    ("tiers",),
    ("probes",),
    ("written",),
    ("layer", "traces"),
    ("stores",),
    ("presets",),
    ("modules",),
    ("zoo",),
    ("corpus",),
    ("integrations",),
    ("evaluation",),
    ("speed",),
    ("cli",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
ROOMS = {file.stem for file in CORE.iterdir() if file.suffix == ".py" or file.is_dir()}
#: (file, module it imports) to the reason why it may.
UPWARD: dict[tuple[str, str], str] = {
    ("cli/info.py", "attendre_core.__version__"): "the build looks for the version at the door",
}
#: The rooms that read like the paper: no value of an array is ever read there.
PAPER = ("memory", "policies", "layer", "positions", "ops")
#: Rooms under the same law that are not a part of the paper, and how many lines of code each has.
BESIDE = {"tiers": 1100, "probes": 140, "stores": 330}
#: Plain code under the same laws that is not a part of the paper.
BEYOND = ("joint", "written")
#: Rules of other papers: plain code under the same laws, but not a part of the paper.
PUBLISHED = (CORE / "policies" / "published", CORE / "positions" / "published")
#: Files of these rooms that may read values, and why.
READERS = {
    "memory/report.py": "says in numbers what a memory holds, for people; not part of a step",
}


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def room_of(file: Path) -> str:
    """Return the top room of a file of the core; '' for the door, ``__init__.py``."""
    part = file.relative_to(CORE).parts[0]
    return "" if part == "__init__.py" else part.removesuffix(".py")


def imports_of(file: Path) -> Iterator[str]:
    """Yield every module that a file imports, at any place in it, as dotted names.

    ``from a.b import c`` yields ``a.b.c``, because ``c`` may be a module.
    """
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)


def _called(call: ast.Call) -> str:
    function = call.func
    return getattr(function, "attr", None) or getattr(function, "id", "")


def core_room(module: str) -> str | None:
    """Return the room of the core that a dotted name lies in; None outside of the core."""
    parts = module.split(".")
    if parts[0] != "attendre_core":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


# ------------------------------------------------------------------ who imports whom


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(file) for file in files_of(CORE)} - {""}
    assert rooms == set(FLOOR), "rooms without a floor, or floors without a room"


def test_nothing_imports_upward() -> None:
    wrong = []
    for file in files_of(CORE):
        room, name = room_of(file), str(file.relative_to(CORE))
        if room == "":
            continue
        for module in imports_of(file):
            other = core_room(module)
            if other is None or (name, module) in UPWARD:
                continue
            if other == "":
                wrong.append(f"{name} imports {module} through the door of the package")
            elif other != room and FLOOR.get(other, 99) > FLOOR.get(room, 99):
                wrong.append(f"{name} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_rooms_are_free_of_cycles() -> None:
    graph: dict[str, set[str]] = {room: set() for room in ROOMS}
    for file in files_of(CORE):
        room = room_of(file)
        if room:
            graph[room] |= {core_room(module) or room for module in imports_of(file)} - {room}
    while leaves := [room for room, below in graph.items() if not below]:
        for leaf in leaves:
            del graph[leaf]
        for below in graph.values():
            below.difference_update(leaves)
    assert not graph, f"these rooms import each other in a circle: {graph}"


def test_exceptions_are_needed() -> None:
    """An exception that nothing needs any longer is removed."""
    every = {
        (str(file.relative_to(CORE)), module)
        for file in files_of(CORE)
        for module in imports_of(file)
    }
    assert set(UPWARD) <= every, f"not imported any more: {set(UPWARD) - every}"
    for file in READERS:
        assert list(reads_in(CORE / file)), f"{file} reads no value: remove it from READERS"


def test_the_core_does_not_import_adapters_when_it_is_imported() -> None:
    """Adapters are looked up by name when they are needed.

    What `speed` measures on one library is in files of that library's name, which are looked up
    in the same way.
    """
    wrong = []
    for file in files_of(CORE):
        own = room_of(file) == "speed" and file.name.startswith(("torch_", "jax_"))
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            module = getattr(node, "module", None)
            for name in [alias.name for alias in node.names]:
                whole = name if module is None else f"{module}.{name}"
                library = whole.removeprefix("attendre_core.speed.").partition("_")[0]
                foreign = whole.partition(".")[0] in ADAPTERS or library in ("torch", "jax")
                if foreign and not own:
                    wrong.append(f"{file.relative_to(ROOT)}, line {node.lineno}: {whole}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapters_import_at_most_the_zoo(adapter: str) -> None:
    """An adapter has no benchmark, no command and no other adapter in it."""
    beyond = {room for room, floor in FLOOR.items() if floor > FLOOR["zoo"]}
    others = set(ADAPTERS) - {adapter} | {"attendre_conformance"}
    wrong = []
    for file in files_of(ADAPTERS[adapter]):
        for module in imports_of(file):
            if core_room(module) in beyond or module.partition(".")[0] in others:
                wrong.append(f"{file.relative_to(ROOT)} imports {module}")
    assert not wrong, "\n".join(wrong)


# ------------------------------------------------------------------ who reads values

#: Calls that read values, or ask whether they may.
READING = {"is_concrete", "may_read", "to_numpy", "item", "tolist", "nonzero", "__array__"}


def reads_in(file: Path) -> Iterator[str]:
    """Yield every place of a file that reads a value of an array, as far as text can tell."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _called(node)
            if name in READING:
                yield f"line {node.lineno}: {name}(...)"
            if name in ("bool", "int", "float") and any(map(_makes_array, node.args)):
                yield f"line {node.lineno}: {name}() of an array"
        tests = [node.test] if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) else []
        tests += node.values if isinstance(node, ast.BoolOp) else []
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            tests.append(node.operand)
        for test in tests:
            if _makes_array(test):
                yield f"line {node.lineno}: a condition on an array"
    for module in imports_of(file):
        if core_room(module) in ("eager", "numba_kernels"):
            yield f"imports {module}"


#: Functions of a namespace that return no array.
ABOUT = {"isdtype", "finfo", "iinfo", "can_cast", "result_type"}


def _makes_array(node: ast.AST) -> bool:
    """Whether an expression is a call of an array namespace, or of ``any`` and the like."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner, name = node.func.value, node.func.attr
    if name in ("any", "all", "max", "min", "sum"):
        return True
    namespace = getattr(owner, "id", None) or getattr(owner, "attr", None)
    return namespace in ("xp", "_xp", "np") and name not in ABOUT


@pytest.mark.parametrize("room", [*PAPER, *BEYOND, "tiers", "probes"])
def test_no_value_is_read_in_the_rooms_of_the_paper(room: str) -> None:
    wrong = [
        f"{name}, {place}"
        for file in files_of(CORE / room)
        if (name := str(file.relative_to(CORE))) not in READERS
        for place in reads_in(file)
    ]
    assert not wrong, "\n".join(wrong)


# ------------------------------------------------------------------ how long files are


def code_lines(file: Path) -> int:
    """Count the lines that are not blank, not a comment alone, and not in a docstring."""
    text = file.read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        first = body[0].value
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(
        1 for number, line in lines
        if line.strip() and not line.strip().startswith("#") and number not in docstrings
    )  # fmt: skip


def test_the_paper_can_be_read_in_one_sitting() -> None:
    every = [file for room in PAPER for file in files_of(CORE / room)]
    count = {file: code_lines(file) for file in every if file.parent not in PUBLISHED}
    assert 0 < len(count) < len(every)
    total = sum(count.values())
    assert total <= 3600, f"{total} lines of code in {', '.join(PAPER)}"
    long = {
        str(file.relative_to(CORE)): lines
        for file in count
        if (lines := len(file.read_text().splitlines())) > 300
    }
    assert not long, f"files of more than 300 lines: {long}"
    median = statistics.median(count.values())
    assert median <= 110, f"the median file has {median} lines of code"


@pytest.mark.parametrize("room", BESIDE)
def test_rooms_beside_the_paper_are_short(room: str) -> None:
    count = {file.name: code_lines(file) for file in files_of(CORE / room)}
    assert 0 < sum(count.values()) <= BESIDE[room], count
    long = {name: lines for name, lines in count.items() if lines > 240}
    assert not long, f"files of more than 240 lines of code: {long}"


def test_rooms_beyond_the_paper_stay_small() -> None:
    count = {room: sum(map(code_lines, files_of(CORE / room))) for room in BEYOND}
    assert sum(count.values()) <= 500, f"lines of code: {count}"


def test_a_published_rule_fits_on_a_page() -> None:
    count = {file.name: code_lines(file) for folder in PUBLISHED for file in files_of(folder)}
    assert {"h2o.py", "tova.py", "parts.py", "transformer_xl.py"} <= set(count)
    long = {name: lines for name, lines in count.items() if lines > 60}
    assert not long, f"files of more than 60 lines of code in published/: {long}"


# ------------------------------------------------------------------ kernels


@pytest.mark.parametrize("name", ["numpy", "array_api_strict", "torch", "jax"])
def test_every_kernel_is_an_op_with_its_signature(name: str) -> None:
    pytest.importorskip(name)
    for kernel, function in backends.backend(name).kernels.items():
        assert kernel in backends.OPS, f"{name}: {kernel} is no op"
        op = inspect.signature(backends.OPS[kernel])
        try:
            own = inspect.signature(function)
        except ValueError:  # a function of the library, written in C
            continue
        by_place = [p for p in op.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        by_name = [p.name for p in op.parameters.values() if p.kind is p.KEYWORD_ONLY]
        try:
            own.bind(*by_place, **dict.fromkeys(by_name))
        except TypeError as error:
            pytest.fail(f"{name}: the kernel {kernel}{own} is called as {kernel}{op}: {error}")


def test_a_misspelt_kernel_is_refused() -> None:
    numpy = backends.backend("numpy")
    with pytest.raises(at.ConfigError, match=r"lowset.*Known ops are.*lowest"):
        backends.Backend(
            name="misspelt",
            xp=numpy.xp,
            array_types=(),
            to_numpy=numpy.to_numpy,
            from_numpy=numpy.from_numpy,
            is_concrete=numpy.is_concrete,
            kernels={"lowset": lambda *arguments: None},
        )


# ------------------------------------------------------------------ mutants


def test_no_mutant_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text that each mutant of the conformance suite breaks is in the code.

    Whoever changes that text adapts the mutant: `conformance/selftest`.
    """
    monkeypatch.syspath_prepend(ROOT / "conformance" / "selftest")
    every, running = (import_module(name) for name in ("every_mutant", "running_mutants"))
    for mutant in every.EVERY_MUTANT:
        assert mutant.new != mutant.old, f"{mutant.name} changes nothing"
        running.broken_text(mutant)
