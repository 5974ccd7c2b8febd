"""``attendre info``: versions, backends, presets, and what a memory would cost."""

from __future__ import annotations

import argparse
import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from attendre_core.backend import available_backends, backend
from attendre_core.cli.arguments import add_command, add_shared, print_json, whole_number
from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError
from attendre_core.memory import KeyValueMemory
from attendre_core.presets import PRESETS, MemoryConfig, preset

__all__ = ["add_to"]

_DESCRIPTION = """\
Show versions, the array libraries that can be used, and the preset policies.

With --kv it also estimates the bytes of a key/value memory, before anything is
allocated. Array libraries are looked up without importing them, except the one
named by --backend; --backend all imports each one and shows what it can do."""

_EXAMPLES = """\
  attendre info
  attendre info --backend torch
  attendre info --backend all --json
  attendre info --kv 1024 --heads 8 --head-dim 64 --layers 12
  attendre info --kv 4096 --heads 8 --head-dim 128 --layers 32 --dtype bfloat16 --batch 4"""

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
    size = parser.add_argument_group("the memory to estimate")
    size.add_argument("--kv", type=whole_number(1), metavar="M", help="slots of the memory")
    size.add_argument(
        "--heads", type=whole_number(1), default=8, metavar="G", help="key/value heads (8)"
    )
    size.add_argument(
        "--head-dim", type=whole_number(1), default=64, metavar="D", help="numbers per head (64)"
    )
    size.add_argument("--dtype", choices=_DTYPES, default="float32", help="of keys and values")
    size.add_argument(
        "--layers", type=whole_number(1), default=1, metavar="L", help="one memory each (1)"
    )
    size.add_argument("--batch", type=whole_number(1), default=1, metavar="B", help="rows (1)")


def run(arguments: argparse.Namespace) -> None:
    """Collect, then print."""
    answer: dict[str, Any] = {
        "command": "info",
        "versions": versions(),
        "backends": [look_at(name, arguments.backend) for name in available_backends()],
        "presets": {name: described(preset(name, 64)) for name in PRESETS},
    }
    if arguments.backend != "all":
        # A name that is not known, or a library that cannot be imported, is an error here.
        asked = backend(arguments.backend)
        if asked.name not in [found["name"] for found in answer["backends"]]:
            answer["backends"].append(look_at(arguments.backend, arguments.backend))
    if arguments.kv is not None:
        answer["memory"] = estimate(arguments)
    if arguments.json:
        print_json(answer)
    else:
        print_text(answer)


def described(config: MemoryConfig) -> str:
    """Write a policy and everything else that a preset sets, for a memory of 64 entries.

    Examples
    --------
    >>> described(preset("Transformer-XL", 64))
    "FIFO(), present='visible'"
    """
    plain = MemoryConfig(config.policy, config.kv_size)
    names = ("q_size", "present", "per_head", "protect_recent", "cross_top_k")
    more = [
        f"{name}={getattr(config, name)!r}"
        for name in names
        if getattr(config, name) != getattr(plain, name)
    ]
    return ", ".join([repr(config.policy), *more])


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
    """Return the bytes of the memories that were described."""
    memory = KeyValueMemory(size=arguments.kv)
    one = memory.nbytes(arguments.batch, arguments.heads, arguments.head_dim, arguments.dtype)
    sizes = ("kv", "heads", "head_dim", "dtype", "layers", "batch")
    return {
        **{name: getattr(arguments, name) for name in sizes},
        "bytes_per_layer": one,
        "bytes": one * arguments.layers,
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
    print(terminal.paint("\nPresets", "bold"))
    for name, policy in answer["presets"].items():
        print(f"  {name:<17} {policy}")
    if "memory" in answer:
        size = answer["memory"]
        print(terminal.paint("\nMemory", "bold"))
        print(
            f"  {size['kv']} slots x {size['heads']} heads x {size['head_dim']} {size['dtype']}, "
            f"batch {size['batch']}: {readable(size['bytes_per_layer'])} a layer, "
            f"{readable(size['bytes'])} for {size['layers']} layer{'s' * (size['layers'] > 1)}"
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
