"""``attendre trace``: see what memories keep of a text, and what the last query finds in them."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core.cli.arguments import Parser, add_command, add_shared, print_json, whole_number
from attendre_core.errors import ConfigError
from attendre_core.progress import progress_bar

if TYPE_CHECKING:
    from attendre_core.evaluation.tracing.record import LayerTrace, TextTrace
    from attendre_core.evaluation.tracing.words import Naming
    from attendre_core.presets import MemoryConfig
    from attendre_core.zoo.model import Model

__all__ = ["add_to"]

_DESCRIPTION = """\
Read one text with several eviction policies and look into their memories: which tokens were
in memory at which step, which were evicted or refused, what the last query attended to, and
which words are left at the end.

Without arguments a tiny model that ships with this package reads a document of its
look-ahead task; NumPy is enough and nothing is downloaded. With --model and --text (or
--prompt) your own model reads your own text.

Prints a summary and writes a page to explore in any browser (one file that loads nothing)
and, if matplotlib is installed, a picture."""

_EXAMPLES = """\
  attendre trace
  attendre trace --policies MT LRA-last H2O attendre --kv 48 --q 0
  attendre trace --model encoder-decoder --task past-only --seed 3
  attendre trace --model SmolLM2-135M --text article.txt --kv 256 --backend torch
  attendre trace --model model.gguf --prompt "Who was Ada? Ada was" --kv 8 --chunk 4 --layer 0 5
  cat log.txt | attendre trace --model model.gguf --text - --limit 4000 --out log-trace
  attendre trace --json | python -m json.tool"""

_TINY = ("prefix-lm", "encoder-decoder")
_POLICIES = ("MT", "AS", "LRA-sum+c=0", "LFA-1e-3+c=0")
#: M, S and K of the tiny models, and of others.
_TINY_SIZES, _SIZES = (32, 16, 16), (256, 64, None)
#: Chunks of a document of the tiny models.
_CHUNKS = 16


class Reading(NamedTuple):
    """What is read: a model, tokens, how tokens are shown, a sentence, and what is right."""

    model: Model
    tokens: list[int]
    naming: Naming | None
    title: str
    answer: str | None = None


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "trace",
        "see what memories keep of a text: maps, words, a page to explore",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    _add_reading(parser)
    _add_memory(parser)
    parser.add_argument(
        "--layer", nargs="+", type=whole_number(0), metavar="L",
        help="layers to trace, from 0; the summary shows the highest (all)",
    )  # fmt: skip
    parser.add_argument(
        "--out", default="attendre-trace", metavar="FOLDER",
        help="where page and picture are written; made if it is not there (attendre-trace)",
    )  # fmt: skip
    add_shared(parser, backend_help="array library to compute with (numpy)")


def _add_reading(parser: Parser) -> None:
    group = parser.add_argument_group("what is read")
    group.add_argument(
        "--model", default=_TINY[0], metavar="PATH",
        help="a checkpoint as in attendre run, or a tiny model: prefix-lm, encoder-decoder "
        "(prefix-lm)",
    )  # fmt: skip
    source = group.add_mutually_exclusive_group()
    source.add_argument("--text", metavar="FILE", help="the text; - is standard input")
    source.add_argument("--prompt", metavar="TEXT", help="the text itself")
    group.add_argument("--limit", type=whole_number(1), metavar="T", help="read T tokens at most")
    group.add_argument(
        "--attention", choices=("causal", "prefix"),
        help="prefix lets a decoder read the text in both directions",
    )  # fmt: skip
    group.add_argument(
        "--dtype", default="float32", help="float32, float16, bfloat16 or auto (float32)"
    )
    group.add_argument(
        "--task", choices=("look-ahead", "past-only"), default="look-ahead",
        help="for a tiny model: its document (look-ahead)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=whole_number(0), default=0, help="for a tiny model: which document (0)"
    )


def _add_memory(parser: Parser) -> None:
    group = parser.add_argument_group("the memories")
    group.add_argument(
        "--policies", nargs="+", metavar="NAME",
        help="presets of 'attendre info', any LFA-<decay>, first-M, random, pinned "
        f"({', '.join(_POLICIES)}, and attendre or attendre-causal)",
    )  # fmt: skip
    group.add_argument(
        "--kv", type=whole_number(1), metavar="M", help="keys and values kept (256; tiny models 32)"
    )
    group.add_argument(
        "--q", type=whole_number(0), metavar="N",
        help="positions queries wait (M/2 for models that look both ways, else 0)",
    )  # fmt: skip
    group.add_argument(
        "--chunk", type=whole_number(1), metavar="S", help="tokens per step (64; tiny models 16)"
    )
    group.add_argument(
        "--top-k", type=whole_number(1), metavar="K",
        help="entries a query retrieves (all; tiny models 16)",
    )  # fmt: skip
    group.add_argument(
        "--positions", choices=("clamp", "model", "in-cache"), default="clamp",
        help="beyond the length that the model was trained on (clamp)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Read, then write and tell."""
    from attendre_core.cli.survival import tell
    from attendre_core.evaluation.tracing import trace_text

    # A wrong name is told before a large model is loaded.
    for name in arguments.policies or ():
        _memory(name, 32, 0, 16, None)
    folder = _folder(arguments.out)
    reading = _tiny(arguments) if arguments.model in _TINY else _own(arguments)
    memories = _memories(arguments, reading.model)
    bar = progress_bar(len(reading.tokens) * len(memories), "reading", " tokens")
    try:
        trace = trace_text(
            reading.model, reading.tokens, memories, layers=arguments.layer,
            naming=reading.naming, title=reading.title, on_read=bar.update,
        )  # fmt: skip
    finally:
        bar.close()
    page, picture, missing = _write(trace, folder)
    if arguments.json:
        print_json({**_as_json(trace, page, picture), "answer": reading.answer})
        return
    tell(trace, reading.answer)
    print(f"Page:    {page} (open it in a browser)")
    print(f"Picture: {picture}" if picture else f"No picture: {missing}")


# -------------------------------------------------------------------- what is read


def _tiny(arguments: argparse.Namespace) -> Reading:
    from attendre_core.evaluation import load_tiny
    from attendre_core.evaluation.tasks import SYNTHETIC, word
    from attendre_core.evaluation.tasks.vocabulary import KEYS, QUESTIONS

    if arguments.text is not None or arguments.prompt is not None:
        raise ConfigError(
            f"trace: the tiny model {arguments.model} reads only documents of its own tasks "
            "(--task, --seed). Name a model that reads text with --model."
        )
    for name in ("attention", "limit"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"trace: --{name} is for models that read a text of yours.")
    (document,) = SYNTHETIC[arguments.task]().documents(
        arguments.seed, 1, chunks=(_CHUNKS, _CHUNKS)
    )
    title = (
        f"{arguments.model} reads a {arguments.task} document of {document.tokens.size} tokens; "
        f"{word(QUESTIONS[document.question])} asks for the value of "
        f"{word(KEYS[document.question])}, and {word(document.answer)} is right"
    )
    return Reading(
        load_tiny(arguments.model, backend=arguments.backend),
        document.tokens.tolist(),
        lambda tokens: [f"{word(token)} " for token in tokens],
        title,
        word(document.answer),
    )


def _own(arguments: argparse.Namespace) -> Reading:
    from attendre_core.zoo import load

    text = arguments.prompt if arguments.prompt is not None else _text(arguments.text)
    model = load(
        arguments.model, backend=arguments.backend, dtype=arguments.dtype,
        attention=arguments.attention,
    )  # fmt: skip
    tokens = model.tokens(text)[: arguments.limit]
    if not tokens:
        raise ConfigError("trace: the text is empty, expected at least one token.")
    source = "a prompt" if arguments.prompt is not None else Path(arguments.text).name
    if arguments.text == "-":
        source = "standard input"
    title = f"{Path(arguments.model).name} reads {source}, {len(tokens)} tokens"
    return Reading(model, tokens, None, title)


def _text(file: str | None) -> str:
    if file is None:
        raise ConfigError("trace: there is nothing to read. Give --text FILE or --prompt TEXT.")
    try:
        if file == "-":
            return sys.stdin.read()
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"trace: {file} cannot be read ({error.strerror}).") from error


# -------------------------------------------------------------------- the memories


def _memories(arguments: argparse.Namespace, model: Model) -> dict[str, MemoryConfig]:
    size, step, most = _TINY_SIZES if arguments.model in _TINY else _SIZES
    kv = arguments.kv or size
    waiting = 0 if model.causal else kv // 2
    top_k = arguments.top_k or (None if most is None else min(most, kv))
    own = "attendre-causal" if model.causal else "attendre"
    q = waiting if arguments.q is None else arguments.q
    chunk = arguments.chunk or min(step, kv)
    return {
        name: replace(_memory(name, kv, q, chunk, top_k), positions=arguments.positions)
        for name in arguments.policies or (*_POLICIES, own)
    }


def _memory(name: str, kv: int, q: int, chunk: int, top_k: int | None) -> MemoryConfig:
    from attendre_core.evaluation import system

    found = system(name, kv, q, chunk=chunk, top_k=top_k)
    if found.whole:
        raise ConfigError(f"trace: {name} has no memory to look into. Leave it out.")
    return found.memory


# -------------------------------------------------------------------- what comes out


def _folder(name: str) -> Path:
    """Make the folder before anything is computed."""
    folder = Path(name).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"trace: the folder {name} cannot be made ({error.strerror}). Give another with --out."
        ) from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"trace: nothing can be written into {name}. Give another with --out.")
    return folder


def _write(trace: TextTrace, folder: Path) -> tuple[Path, Path | None, str]:
    """Write page and picture; returns where they are, and why there is no picture."""
    from attendre_core.evaluation.tracing.figure import write_png
    from attendre_core.evaluation.tracing.page import page_of

    page, picture = folder / "trace.html", folder / "trace.png"
    try:
        page.write_text(page_of(trace), encoding="utf-8")
        write_png(trace, picture)
    except OSError as error:
        raise ConfigError(
            f"trace: {error.filename or folder} cannot be written ({error.strerror}). Give "
            "another folder with --out."
        ) from error
    except ConfigError as error:
        return page, None, str(error).removeprefix("trace: ")
    return page, picture, ""


def _as_json(trace: TextTrace, page: Path, picture: Path | None) -> dict[str, Any]:
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
                "steps": policy.steps,
                "next": [{"word": word, "share": share} for word, share in policy.next_words],
                "layers": [_layer_json(layer) for layer in policy.layers],
            }
            for policy in trace.policies
        ],
    }


def _layer_json(layer: LayerTrace) -> dict[str, Any]:
    from attendre_core.layer.trace import REASONS

    found = layer.attended
    return {
        "layer": layer.layer,
        **layer.counts(),
        "survivors": layer.survivors.tolist(),
        "born": layer.born.tolist(),
        "gone": [None if step < 0 else step for step in layer.gone.tolist()],
        "reason": [REASONS[code] for code in layer.reason],
        "attended": None if found is None else {
            "step": found.step,
            "position": found.position.tolist(),
            "weight": [round(float(w), 6) for w in found.mean],
        },
    }  # fmt: skip
