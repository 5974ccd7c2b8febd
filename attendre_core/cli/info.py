"""``attendre info``: versions, backends, names of memories, and the bytes that a memory takes."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import textwrap
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from attendre_core.backend import available_backends, backend
from attendre_core.cli.arguments import (
    MEMORY_HELP,
    add_command,
    add_memory,
    add_shared,
    print_json,
    whole_number,
)
from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError
from attendre_core.presets import (
    CONTROL_PRESETS,
    OPTIONS,
    PRESETS,
    MemoryConfig,
    memory_for,
    preset,
)

__all__ = ["add_to"]

_DESCRIPTION = f"""\
Show versions, the available array libraries, and the names and options of memories.

With --memory, also show what a name means and how many bytes it takes in a model of a given
shape; nothing is allocated. Array libraries are found without importing them, except the one
named by --backend; --backend all imports every one and shows its capabilities.

{MEMORY_HELP}"""

_EXAMPLES = """\
  attendre info
  attendre info --backend torch
  attendre info --backend all --json
  attendre info --memory attendre-causal:1024 --layers 12 --kv-heads 8 --head-dim 64
  attendre info --memory 64MiB --layers 32 --kv-heads 8 --head-dim 128 --dtype bfloat16
  attendre info --memory attendre:1024 --both-ways --layers 12 --heads 12 --kv-heads 12"""

#: Width of the second column of a table, at least.
_LEAST_COLUMN = 44

_DTYPES = ("float32", "float64", "float16", "bfloat16")


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "info",
        "show versions, backends, names of memories, and the bytes of a memory",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    add_shared(parser, backend_help="array library to import and describe, or 'all' (numpy)")
    size = parser.add_argument_group("the memory to describe, and the model that it is for")
    add_memory(size, None, "its name, or a size for the recommended system")
    size.add_argument(
        "--both-ways", action="store_true", help="the model attends in both directions (causal)"
    )
    for flag, letter, default, words in (
        ("--layers", "L", 12, "layers"),
        ("--kv-heads", "G", 8, "K/V heads"),
        ("--heads", "H", None, "query heads (as many as K/V heads)"),
        ("--head-dim", "D", 64, "width of a head"),
        ("--dim", "C", None, "width of the residual stream (H * D)"),
        ("--batch", "B", 1, "rows of the batch"),
    ):
        shown = words if default is None else f"{words} ({default})"
        size.add_argument(flag, type=whole_number(1), default=default, metavar=letter, help=shown)
    size.add_argument(
        "--dtype", choices=_DTYPES, default="float32", help="dtype of keys and values (float32)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Collect the facts, then print them."""
    answer: dict[str, Any] = {
        "command": "info",
        "versions": versions(),
        "backends": [look_at(name, arguments.backend) for name in available_backends()],
        "presets": {name: described(preset(name, 64)) for name in (*PRESETS, *CONTROL_PRESETS)},
        "options": {option.usage: option.words for option in OPTIONS},
    }
    if arguments.backend != "all":
        # Raises if the name is not known or the library cannot be imported.
        asked = backend(arguments.backend)
        if asked.name not in [entry["name"] for entry in answer["backends"]]:
            answer["backends"].append(look_at(arguments.backend, arguments.backend))
    if arguments.memory is not None:
        answer["memory"] = estimate(arguments)
    if arguments.json:
        print_json(answer)
    else:
        print_text(answer)


def described(config: MemoryConfig) -> str:
    """Write a policy and the settings that differ from the defaults.

    Examples
    --------
    >>> described(preset("Transformer-XL", 64))
    "FIFO(), present='visible'"
    """
    plain = MemoryConfig(config.policy, config.kv_size)
    more = [
        f"{field.name}={_short(value)}"
        for field in fields(config)
        if (value := getattr(config, field.name)) != getattr(plain, field.name)
    ]
    return ", ".join([_short(config.policy), *more])


def _short(value: Any) -> str:
    """Write a specification with its first field and those that differ from their defaults."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))}{',' * (len(value) == 1)})"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    arguments = [
        f"{field.name}={_short(given)}"
        for number, field in enumerate(fields(value))
        if (given := getattr(value, field.name)) != field.default or number == 0
    ]
    return f"{type(value).__name__}({', '.join(arguments)})"


def versions() -> dict[str, str]:
    """Return the versions of this package, Python and the required packages."""
    from attendre_core import __version__

    return {
        "attendre-core": __version__,
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("numpy", "array-api-compat")},
    }


def version_of(package: str) -> str:
    """Return the version of a package, or ``"not installed"``."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def look_at(name: str, asked: str) -> dict[str, Any]:
    """Describe one backend; its library is imported only if ``asked`` names it or is "all"."""
    answer: dict[str, Any] = {"name": name}
    if asked in (name, "all"):
        try:
            imported = backend(name)
        except ConfigError as error:
            return {**answer, "status": "missing", "reason": str(error)}
        return {
            **answer,
            "status": "imported",
            "version": version_of(library_of(name)),
            "capabilities": sorted(imported.capabilities),
            "kernels": sorted(imported.kernels),
        }
    if importlib.util.find_spec(library_of(name)) is None:
        reason = f"{library_of(name)} is not installed"
        return {**answer, "status": "missing", "reason": reason}
    return {**answer, "status": "found", "version": version_of(library_of(name))}


def library_of(name: str) -> str:
    """Return the module of a backend's array library, or the package that registers the backend."""
    points = {point.name: point.module for point in entry_points(group="attendre.backends")}
    module = points.get(name, name).partition(":")[0].partition(".")[0]
    return name if module.startswith("attendre_") else module


def estimate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the memory and the bytes that it takes."""
    names = ("layers", "kv_heads", "heads", "head_dim", "dtype", "batch")
    shape = {name: getattr(arguments, name) for name in names}
    config = memory_for(
        arguments.memory, causal=not arguments.both_ways, carry_dim=arguments.dim, **shape
    )
    if config is None:
        raise ConfigError("info: full attention has no fixed size. Give a memory with --memory.")
    count = config.nbytes(carry_dim=arguments.dim, **shape)
    return {
        "name": config.name,
        "settings": described(config),
        "kv_size": config.kv_size,
        **shape,
        "heads": arguments.heads or arguments.kv_heads,
        "bytes_per_layer": count // arguments.layers,
        "bytes": count,
    }


def print_text(answer: dict[str, Any]) -> None:
    """Print the answer as text."""
    terminal = Terminal()
    said = ", ".join(f"{name} {number}" for name, number in answer["versions"].items())
    print("\n".join(textwrap.wrap(said, terminal.columns, break_on_hyphens=False)))
    print(terminal.paint("\nBackends", "bold"))
    for entry in answer["backends"]:
        colour = "red" if entry["status"] == "missing" else "green"
        status = terminal.paint(f"{entry['status']:<9}", colour)
        _print_row(f"{entry['name']:<17} {status}", _details(entry), indent=29)
    print(terminal.paint("\nNames (and any LFA-<decay>), shown with 64 entries", "bold"))
    longest = max(map(len, answer["presets"]))
    for name, settings in answer["presets"].items():
        _print_row(f"{name:<{longest}}", settings, indent=longest + 2)
    print(terminal.paint("\nOptions", "bold"))
    for usage, words in answer["options"].items():
        _print_row(f"+{usage:<16}", words)
    if "memory" in answer:
        size = answer["memory"]
        # A name may be broken before its options.
        lines = textwrap.wrap(f"Memory {size['name']}".replace("+", " +"), terminal.columns)
        print(terminal.paint("\n" + "\n".join(lines).replace(" +", "+"), "bold"))
        _print_row("", size["settings"], indent=1)
        _print_row(
            "",
            f"{size['kv_size']} entries of {size['kv_heads']} x {size['head_dim']} "
            f"{size['dtype']}, batch {size['batch']}: {readable(size['bytes_per_layer'])} per "
            f"layer, {readable(size['bytes'])} in {size['layers']} layers",
            indent=1,
        )


def _print_row(first: str, text: str, indent: int = 19) -> None:
    """Print a row of two columns; the second begins ``indent`` places in, and is wrapped.

    Where too little room is left for it, it goes below the first.
    """
    columns = Terminal().columns
    if first and columns - indent < _LEAST_COLUMN:
        print(f"  {first.rstrip()}")
        first, indent = "", 5
    width = max(columns - indent - 1, 30)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    print(f"  {first} {lines[0]}" if first else f"{' ' * (indent + 1)}{lines[0]}")
    for line in lines[1:]:
        print(" " * (indent + 1) + line)


def _details(entry: dict[str, Any]) -> str:
    if entry["status"] == "missing":
        return str(entry["reason"])
    if entry["status"] == "found":
        return f"{entry['version']}; not imported, use --backend {entry['name']} for details"
    words = [entry["version"]]
    for kind in ("capabilities", "kernels"):
        if entry[kind]:
            words.append(f"{kind}: {', '.join(entry[kind])}")
    return "; ".join(words)


def readable(count: int) -> str:
    """Write a number of bytes with a unit that people can read.

    Examples
    --------
    >>> readable(65536)
    '64.0 KiB'
    """
    number, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{count} bytes" if units[0] == "bytes" else f"{number:.1f} {units[0]}"
