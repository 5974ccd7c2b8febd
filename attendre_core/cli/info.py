"""``attendre info``: versions, backends, names of memories, and what a memory would cost."""

from __future__ import annotations

import argparse
import importlib.util
import platform
from dataclasses import fields
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
Show versions, the array libraries that can be used, and the names and options of memories.

With --memory it also shows what a name means and how many bytes it takes in a model of a
given shape, before anything is allocated. Array libraries are looked up without importing
them, except the one named by --backend; --backend all imports each one and shows what it can
do.

{MEMORY_HELP}"""

_EXAMPLES = """\
  attendre info
  attendre info --backend torch
  attendre info --backend all --json
  attendre info --memory attendre-causal:1024 --layers 12 --kv-heads 8 --head-dim 64
  attendre info --memory 64MiB --layers 32 --kv-heads 8 --head-dim 128 --dtype bfloat16
  attendre info --memory attendre:1024 --both-ways --layers 12 --heads 12 --kv-heads 12"""

_DTYPES = ("float32", "float64", "float16", "bfloat16")


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "info",
        "show versions, backends, presets, and the bytes of a memory",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    add_shared(parser, backend_help="array library to import and look at (numpy), or 'all'")
    size = parser.add_argument_group("the memory to look at")
    add_memory(size, None, "its name, or a size for the recommended system")
    size.add_argument(
        "--both-ways", action="store_true", help="the model attends to both sides (causal)"
    )
    for flag, letter, default, words in (
        ("--layers", "L", 12, "layers"),
        ("--kv-heads", "G", 8, "K/V heads"),
        ("--heads", "H", None, "query heads (as many as K/V heads)"),
        ("--head-dim", "D", 64, "numbers per head"),
        ("--dim", "C", None, "width of the residual stream (H * D)"),
        ("--batch", "B", 1, "rows"),
    ):
        shown = words if default is None else f"{words} ({default})"
        size.add_argument(flag, type=whole_number(1), default=default, metavar=letter, help=shown)
    size.add_argument("--dtype", choices=_DTYPES, default="float32", help="of keys and values")


def run(arguments: argparse.Namespace) -> None:
    """Collect, then print."""
    answer: dict[str, Any] = {
        "command": "info",
        "versions": versions(),
        "backends": [look_at(name, arguments.backend) for name in available_backends()],
        "presets": {name: described(preset(name, 64)) for name in (*PRESETS, *CONTROL_PRESETS)},
        "options": {option.usage: option.words for option in OPTIONS},
    }
    if arguments.backend != "all":
        # A name that is not known, or a library that cannot be imported, is an error here.
        asked = backend(arguments.backend)
        if asked.name not in [found["name"] for found in answer["backends"]]:
            answer["backends"].append(look_at(arguments.backend, arguments.backend))
    if arguments.memory is not None:
        answer["memory"] = estimate(arguments)
    if arguments.json:
        print_json(answer)
    else:
        print_text(answer)


def described(config: MemoryConfig) -> str:
    """Write a policy and everything else that a name sets.

    Examples
    --------
    >>> described(preset("Transformer-XL", 64))
    "FIFO(), present='visible'"
    """
    policy = config.policy
    told = [
        f"{field.name}={value!r}"
        for number, field in enumerate(fields(policy))
        if (value := getattr(policy, field.name)) != field.default or number == 0
    ]
    more = [
        f"{field.name}={value!r}"
        for field in fields(config)[2:]
        if (value := getattr(config, field.name)) != field.default
    ]
    return ", ".join([f"{type(policy).__name__}({', '.join(told)})", *more])


def versions() -> dict[str, str]:
    """Return the versions of what is always there."""
    from attendre_core import __version__

    return {
        "attendre-core": __version__,
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("numpy", "array-api-compat")},
    }


def version_of(package: str) -> str:
    """Return the version of a package, or why there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def look_at(name: str, asked: str) -> dict[str, Any]:
    """Describe one backend, importing its library only if it was asked for."""
    answer: dict[str, Any] = {"name": name}
    if asked in (name, "all"):
        try:
            found = backend(name)
        except ConfigError as error:
            return {**answer, "status": "missing", "reason": str(error)}
        return {
            **answer,
            "status": "imported",
            "version": version_of(library_of(name)),
            "capabilities": sorted(found.capabilities),
            "kernels": sorted(found.kernels),
        }
    if importlib.util.find_spec(library_of(name)) is None:
        reason = f"{library_of(name)} is not installed"
        return {**answer, "status": "missing", "reason": reason}
    return {**answer, "status": "found", "version": version_of(library_of(name))}


def library_of(name: str) -> str:
    """Return the module that a backend needs: its own name, or the package that brings it."""
    points = {point.name: point.module for point in entry_points(group="attendre.backends")}
    module = points.get(name, name).partition(":")[0].partition(".")[0]
    return name if module.startswith("attendre_") else module


def estimate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the memory is and the bytes that it takes."""
    names = ("layers", "kv_heads", "heads", "head_dim", "dtype", "batch")
    shape = {name: getattr(arguments, name) for name in names}
    config = memory_for(
        arguments.memory, causal=not arguments.both_ways, carry_dim=arguments.dim, **shape
    )
    if config is None:
        raise ConfigError("info: full attention has no fixed size. Name a memory with --memory.")
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
    """Print the answer for people."""
    terminal = Terminal()
    print(", ".join(f"{name} {number}" for name, number in answer["versions"].items()))
    print(terminal.paint("\nBackends", "bold"))
    for found in answer["backends"]:
        colour = "red" if found["status"] == "missing" else "green"
        status = terminal.paint(f"{found['status']:<9}", colour)
        print(f"  {found['name']:<17} {status} {_details(found)}")
    print(terminal.paint("\nNames (and any LFA-<decay>), as they are with 64 entries", "bold"))
    for name, settings in answer["presets"].items():
        print(f"  {name:<17} {settings}")
    print(terminal.paint("\nOptions", "bold"))
    for usage, words in answer["options"].items():
        print(f"  +{usage:<16} {words}")
    if "memory" in answer:
        size = answer["memory"]
        print(terminal.paint(f"\nMemory {size['name']}", "bold"))
        print(f"  {size['settings']}")
        print(
            f"  {size['kv_size']} entries of {size['kv_heads']} x {size['head_dim']} "
            f"{size['dtype']}, batch {size['batch']}: {readable(size['bytes_per_layer'])} per "
            f"layer, {readable(size['bytes'])} in {size['layers']} layers"
        )


def _details(found: dict[str, Any]) -> str:
    if found["status"] == "missing":
        return str(found["reason"])
    if found["status"] == "found":
        return f"{found['version']}; not imported, --backend {found['name']} looks inside"
    words = [found["version"]]
    for kind in ("capabilities", "kernels"):
        if found[kind]:
            words.append(f"{kind}: {', '.join(found[kind])}")
    return "; ".join(words)


def readable(count: int) -> str:
    """Write a number of bytes for people.

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
