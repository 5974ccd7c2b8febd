"""``attendre trace``: show what memories keep of a text, and what the last query attends to."""

from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendre_core.cli.arguments import (
    MEMORY_HELP,
    Parser,
    add_command,
    add_list,
    add_shared,
    print_json,
    whole_number,
)
from attendre_core.cli.trace_reading import TINY, own_reading, tiny_reading
from attendre_core.errors import ConfigError
from attendre_core.files import write_text
from attendre_core.paths import user_path
from attendre_core.presets import ParsedName, parse, recommended
from attendre_core.progress import progress_bar

if TYPE_CHECKING:
    from attendre_core.evaluation.tracing.record import LayerTrace, TextTrace
    from attendre_core.presets import MemoryConfig
    from attendre_core.zoo.model import Model

__all__ = ["add_to"]

_DESCRIPTION = f"""\
Read one text with several eviction policies and look into their memories: which tokens were
in memory at which step, which were evicted or refused, what the last query attended to,
which words are left at the end, and what the model answers. Full attention is beside them.

Without arguments, a tiny model that ships with this package reads English sentences and is
asked who lives where; this needs only NumPy and downloads nothing. With --model and --text
(or --prompt), your model reads your text.

Prints a summary and writes a page to explore in any browser (a single file that loads nothing
else) and, if matplotlib is installed, a picture.

{MEMORY_HELP}"""

_EXAMPLES = """\
  attendre trace
  attendre trace --policies MT,LRA-last+c=0,H2O,attendre --size 48
  attendre trace --model encoder-decoder --task past-only --seed 3
  attendre trace --model model.gguf --prompt "The capital of France is" --answer Paris
  attendre trace --model SmolLM2-135M --text article.txt --size 256 --backend torch
  attendre trace --size 48 --equal-bytes
  attendre trace --model model.gguf --prompt "Who was Ada?" --size 8 --chunk 4 --layer 0,5
  attendre trace --model model.gguf --text book.txt --policies my_module:MyPolicy,attendre-causal
  cat log.txt | attendre trace --model model.gguf --text - --limit 4000 --out log-trace
  attendre trace --json | python -m json.tool"""

#: Compared by default, in addition to the system recommended for the model.
_POLICIES = ("MT", "AS", "LRA-sum+c=0", "LFA-1e-3+c=0")
#: Default M, S and K: of the tiny models, and of all other models.
_TINY_SIZES: tuple[int | str, int, int | None] = (32, 16, 16)
_SIZES: tuple[int | str, int, int | None] = (256, 64, None)
#: Longer texts are read with full attention only if that is asked for.
_FULL = 4096


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "trace",
        "show what memories keep of a text: maps, words, a page to explore",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    _add_reading(parser)
    _add_memories(parser)
    add_list(
        parser, "--layer", whole_number(0), metavar="L",
        help="layers to trace, counted from 0; the summary shows the highest (all without a "
        "sliding window)",
    )  # fmt: skip
    parser.add_argument(
        "--out", default="attendre-trace", metavar="FOLDER",
        help="where to write page and picture; created if missing (attendre-trace)",
    )  # fmt: skip
    add_shared(parser, backend_help="array library to compute with (numpy)")


def _add_reading(parser: Parser) -> None:
    group = parser.add_argument_group("the input")
    group.add_argument(
        "--model", default=TINY[0], metavar="PATH",
        help="a checkpoint as for attendre run, or a tiny model: prefix-lm, encoder-decoder "
        "(prefix-lm)",
    )  # fmt: skip
    source = group.add_mutually_exclusive_group()
    source.add_argument("--text", metavar="FILE", help="file to read; - is standard input")
    source.add_argument("--prompt", metavar="TEXT", help="text to read")
    group.add_argument("--answer", metavar="WORD", help="the right next word, if you know it")
    group.add_argument("--limit", type=whole_number(1), metavar="T", help="read at most T tokens")
    group.add_argument(
        "--attention", choices=("causal", "prefix"),
        help="prefix lets a decoder read the text in both directions",
    )  # fmt: skip
    group.add_argument(
        "--dtype", default="float32", help="float32, float16, bfloat16 or auto (float32)"
    )
    group.add_argument(
        "--task", choices=("story", "look-ahead", "past-only"), default="story",
        help="tiny models: task of the document; story is in English (story)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=whole_number(0), default=0, help="tiny models: seed of the document (0)"
    )


def _add_memories(parser: Parser) -> None:
    group = parser.add_argument_group("the memories")
    add_list(
        group, "--policies", metavar="NAME",
        help="names of memories, or full, separated by commas; a size or option in a name "
        f"overrides the ones below ({','.join(_POLICIES)}, with +wait=half if the model looks both "
        f"ways, the system recommended for the model, and full for texts of up to {_FULL:,} "
        "tokens)",
    )  # fmt: skip
    group.add_argument("--size", metavar="M", help="entries per layer, or bytes (256; tiny: 32)")
    group.add_argument(
        "--equal-bytes", action="store_true",
        help="take --size as the first memory's, and give all others the entries that fit into as "
        "many bytes",
    )  # fmt: skip
    group.add_argument(
        "--chunk", type=whole_number(1), metavar="S", help="tokens per step (64; tiny models: 16)"
    )
    group.add_argument(
        "--top-k", type=whole_number(1), metavar="K",
        help="entries each query retrieves (all; tiny models: 16)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Trace the text, write page and picture, print the summary."""
    from attendre_core.cli.survival import print_trace
    from attendre_core.evaluation.tracing import trace_text
    from attendre_core.evaluation.tracing.labels import short_names

    # Wrong names are reported before a large model is loaded.
    names = [_parsed(name) for name in arguments.policies or ()]
    folder = _folder(arguments.out)
    reading = tiny_reading(arguments) if arguments.model in TINY else own_reading(arguments)
    full = any(name.name == "full" for name in names)
    full = full or (not names and len(reading.tokens) <= _FULL)
    names = [name for name in names if name.name != "full"]
    memories = _memories(arguments, names, reading.model, alone=full and bool(arguments.policies))
    count = len(memories) + full
    bar = progress_bar(len(reading.tokens) * count, "reading", " tokens", lines=True)
    try:
        trace = trace_text(
            reading.model, reading.tokens, memories, layers=_layers(arguments, reading.model),
            naming=reading.naming, words=reading.words, title=reading.title, answer=reading.answer,
            full=full, on_read=bar.update,
        )  # fmt: skip
    finally:
        bar.close()
    page, picture, missing = _write(trace, folder)
    held = {policy.name: _bytes(reading.model, policy.memory) for policy in trace.policies}
    if arguments.json:
        print_json({**_as_json(trace, held, page, picture), "answer": trace.answer})
        return
    print_trace(trace)
    short, _ = short_names(list(held))
    sizes = [f"{name} {size / 1024:,.1f}" for name, size in zip(short, held.values(), strict=True)]
    lines = textwrap.wrap(", ".join(sizes), 70, break_on_hyphens=False)
    print("KiB:     " + "\n         ".join(lines))
    print(f"Page:    {page} (open it in a browser)")
    print(f"Picture: {picture}" if picture else f"No picture: {missing}")


# -------------------------------------------------------------------- the memories


def _parsed(text: str) -> ParsedName:
    parsed = parse(text, others=("full",))
    if parsed.name == "full" and str(parsed) != "full":
        raise ConfigError(f"trace: full attention has no size and no options, but it is {text!r}.")
    return parsed


def _memories(
    arguments: argparse.Namespace, names: list[ParsedName], model: Model, *, alone: bool
) -> dict[str, MemoryConfig]:
    """Return the memories to compare, by their full names; ``alone`` may leave none."""
    if not names and not alone:
        waits = () if model.causal else ("wait=half",)
        names = [parse("+".join((name, *waits))) for name in _POLICIES]
        names.append(parse(recommended(model.causal)))
    size, chunk, top_k = _TINY_SIZES if arguments.model in TINY else _SIZES
    if arguments.size is not None:
        size = parse(f"MT:{arguments.size}").size or size
    memories: dict[str, MemoryConfig] = {}
    for number, parsed in enumerate(names):
        if arguments.equal_bytes and number == 1:
            first = next(iter(memories.values()))
            size, chunk = f"{_bytes(model, first)}B", first.chunk
        most = parsed.size or size
        entries = most if isinstance(most, int) else 2**31
        full = parsed.with_defaults(
            size,
            chunk=arguments.chunk or min(chunk, entries),
            k=arguments.top_k or (None if top_k is None else min(top_k, entries)),
        )
        memory = model.with_memory(str(full)).memory
        if memory is not None:
            memories[memory.name] = memory
    return memories


def _layers(arguments: argparse.Namespace, model: Model) -> list[int] | None:
    """Return the layers to trace: those that the memories govern, unless some are named."""
    part = model.reading_part
    far = [i for i in range(part.layers) if part.window(i) is None]
    return arguments.layer or far or None


def _bytes(model: Model, memory: MemoryConfig) -> int:
    from attendre_core.zoo.memories import shape_of

    return memory.nbytes(**shape_of(model.reading_part, model.dtype))


# -------------------------------------------------------------------- the output


def _folder(name: str) -> Path:
    """Create the folder, before anything is computed."""
    folder = user_path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"trace: the folder {name} cannot be created ({error.strerror}). Give another with "
            "--out."
        ) from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"trace: the folder {name} is not writable. Give another with --out.")
    return folder


def _write(trace: TextTrace, folder: Path) -> tuple[Path, Path | None, str]:
    """Write page and picture; return their paths, and the reason if there is no picture."""
    from attendre_core.evaluation.tracing.figure import write_png
    from attendre_core.evaluation.tracing.trace_page import page_of

    page, picture = folder / "trace.html", folder / "trace.png"
    try:
        write_text(page, page_of(trace))
        write_png(trace, picture)
    except OSError as error:
        raise ConfigError(
            f"trace: {error.filename or folder} cannot be written ({error.strerror}). Give "
            "another folder with --out."
        ) from error
    except ConfigError as error:
        return page, None, str(error).removeprefix("trace: ")
    return page, picture, ""


def _as_json(
    trace: TextTrace, held: dict[str, int], page: Path, picture: Path | None
) -> dict[str, Any]:
    return {
        "command": "trace",
        "title": trace.title,
        "page": str(page),
        "picture": None if picture is None else str(picture),
        "words": trace.words,
        "policies": [
            {
                "name": policy.name,
                "kv_size": policy.memory.kv_size,
                "q_size": policy.memory.q_size,
                "chunk": policy.memory.chunk,
                "bytes": held[policy.name],
                "steps": policy.steps,
                "right": policy.answers(trace.answer),
                "next": [{"word": word, "share": share} for word, share in policy.next_words],
                "layers": [_layer_json(layer) for layer in policy.layers],
            }
            for policy in trace.policies
        ],
    }


def _layer_json(layer: LayerTrace) -> dict[str, Any]:
    from attendre_core.layer.trace import REASONS

    attended = layer.attended
    return {
        "layer": layer.layer,
        "window": layer.window,
        **layer.counts(),
        "survivors": layer.survivors.tolist(),
        "born": layer.born.tolist(),
        "gone": [None if step < 0 else step for step in layer.gone.tolist()],
        "reason": [REASONS[code] for code in layer.reason],
        "attended": None if attended is None else {
            "step": attended.step,
            "position": attended.position.tolist(),
            "weight": [round(float(w), 6) for w in attended.mean],
        },
    }  # fmt: skip
