"""``attendre run``: read a long file in bounded memory, then continue it or answer a question."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from attendre_core.cli.arguments import (
    MEMORY_HELP,
    add_command,
    add_memory,
    add_shared,
    add_tokenizer,
    add_writing,
    print_json,
    whole_number,
)
from attendre_core.cli.terminal import Terminal, standard_input
from attendre_core.errors import ConfigError
from attendre_core.paths import user_path
from attendre_core.progress import progress_bar
from attendre_core.zoo.pieces import cut_text

if TYPE_CHECKING:
    from attendre_core.zoo import Model, Stream

__all__ = ["add_to"]

_DESCRIPTION = f"""\
Read a text file of any length with your model in a memory of fixed size, then continue the
text or answer a question about it.

The checkpoint is a Hugging Face folder, a .gguf file or a llama2.c .bin file. The summary
says how much the memory took and how much full attention would have needed.

{MEMORY_HELP}"""

_EXAMPLES = """\
  attendre run --model SmolLM2-135M book.txt
  attendre run --model model.gguf --memory 2048 --question "Who is Pierre?" book.txt
  attendre run --model model.gguf --memory 64MiB book.txt
  attendre run --model flan-t5-small --memory LFA-1e-3+wait=512+k=128:1024 report.txt
  attendre run --model model.gguf --memory my_module:MyPolicy:1024 book.txt
  attendre run --model model.gguf --memory 512 --save state.safetensors book.txt
  attendre run --model model.gguf --memory 512 --restore state.safetensors more.txt
  cat log.txt | attendre run --model model.gguf --backend torch -
  attendre run --model model.gguf --memory full page.txt"""

_TEMPLATE = "Question: {question}\n\nContext: {context}\n\nAnswer: "
#: Tokens read between two updates of the progress bar.
_PIECE = 64


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "run",
        "read a long file with a model, then answer or continue",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    parser.add_argument("file", metavar="FILE", help="the text to read; - is standard input")
    parser.add_argument("--model", required=True, metavar="PATH", help="the checkpoint")
    add_tokenizer(parser)
    parser.add_argument(
        "--question", metavar="TEXT", help="question to answer; without it, the text is continued"
    )
    parser.add_argument(
        "--template",
        default=_TEMPLATE,
        metavar="TEXT",
        help="prompt with {question} and {context} in it; the default is the paper's, with the "
        "question first",
    )
    add_memory(
        parser,
        "1024",
        "a name as above, a size for the system recommended for the model, or 'full' for "
        "full attention without a limit (1024)",
    )
    parser.add_argument(
        "--attention",
        choices=("causal", "prefix"),
        help="prefix lets a decoder read the text in both directions",
    )
    parser.add_argument("--limit", type=whole_number(1), metavar="T", help="read at most T tokens")
    add_writing(parser, 64).add_argument(
        "--beams", type=whole_number(1), default=1, help="beams of a beam search; 1 means none (1)"
    )
    parser.add_argument(
        "--dtype", default="float32", help="float32, float16, bfloat16 or auto (float32)"
    )
    parser.add_argument("--save", metavar="FILE", help="save the state after reading")
    parser.add_argument("--restore", metavar="FILE", help="continue from a saved state")
    add_shared(parser, backend_help="array library to compute with (numpy)")


def run(arguments: argparse.Namespace) -> None:
    """Read the text, generate, and print a summary."""
    from attendre_core.zoo import load
    from attendre_core.zoo.tokenizers.around import around

    text = _text(arguments)
    # A wrong name is reported before a long text is read.
    save = None if arguments.save is None else user_path(arguments.save)
    restore = None if arguments.restore is None else user_path(arguments.restore)
    model = load(
        arguments.model,
        memory=arguments.memory,
        backend=arguments.backend,
        dtype=arguments.dtype,
        attention=arguments.attention,
        tokenizer=arguments.tokenizer,
    )
    before, after = around(model.require_tokenizer("run"))
    tokens = model.tokens(text, special=False)
    if restore is None:
        tokens = before + tokens
    cut = len(tokens) if arguments.limit is None else min(arguments.limit, len(tokens))
    if not cut:
        raise ConfigError(f"run: {arguments.file} has no text, expected at least one token.")
    stream = _stream(model) if restore is None else model.restore(restore)
    _read(stream, tokens[:cut])
    if save is not None:
        stream.save(save)
    if after and cut == len(tokens):
        stream.feed(after)
    written = _write(arguments, model, stream)
    summary = _summary(model, stream)
    if arguments.json:
        print_json({"text": written, **summary})
    else:
        _print_summary(Terminal(sys.stderr), summary)


def _text(arguments: argparse.Namespace) -> str:
    """Read the file, and put it into the template if there is a question."""
    try:
        if arguments.file == "-":
            text = standard_input().read()
        else:
            text = user_path(arguments.file).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"run: {arguments.file} cannot be read ({error.strerror}).") from error
    if arguments.question is None:
        return text
    for name in ("{question}", "{context}"):
        if name not in arguments.template:
            raise ConfigError(
                f"run: the template has no {name}, expected {{question}} and {{context}} where "
                "they belong."
            )
    template: str = arguments.template
    return template.replace("{question}", arguments.question).replace("{context}", text)


def _stream(model: Model) -> Stream:
    if model.memory is None and not model.causal:
        raise ConfigError(
            "run: a model that looks both ways cannot stream without a memory. Give a size with "
            "--memory, or use encode and generate in Python."
        )
    return model.stream()


def _read(stream: Stream, tokens: list[int]) -> None:
    bar = progress_bar(len(tokens), "reading", " tokens", lines=True)
    try:
        for start in range(0, len(tokens), _PIECE):
            piece = tokens[start : start + _PIECE]
            stream.feed(piece)
            bar.update(len(piece))
    finally:
        bar.close()


def _write(arguments: argparse.Namespace, model: Model, stream: Stream) -> str:
    """Generate; without --json and beams, the text is printed token by token."""
    shown = []

    def show(row: int, token: int, piece: str) -> None:
        shown.append(piece)
        if not arguments.json:
            sys.stdout.write(piece)
            sys.stdout.flush()

    tokens = stream.generate(
        arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        seed=arguments.seed,
        beams=arguments.beams,
        stop=arguments.stop,
        on_token=show,
    )
    # Beams are not shown while they are written.
    text = cut_text(model.text(tokens), arguments.stop) if arguments.beams > 1 else "".join(shown)
    if not arguments.json:
        print(text if arguments.beams > 1 else "", flush=True)
    return text


def _summary(model: Model, stream: Stream) -> dict[str, Any]:
    from attendre_core.zoo.memories import full_attention_bytes

    part = model.reading_part
    length = stream.lengths[0]
    reports = stream.reports()
    # Layers with a sliding window hold their window, whatever the size of the memory.
    far = [report for i, report in enumerate(reports) if part.window(i) is None]
    return {
        "tokens_read": length,
        "backend": model.library,
        "layers": part.layers,
        "memory": "full" if model.memory is None else model.memory.name,
        "memory_bytes": sum(report.nbytes for report in reports),
        "full_attention_bytes": full_attention_bytes(
            part, length, model.dtype, causal=model.causal
        ),
        "kept_per_layer": max(report.used[0] for report in far or reports),
        "admitted_share": min(report.admitted_share[0] for report in reports),
    }


def _print_summary(terminal: Terminal, summary: dict[str, Any]) -> None:
    used, full = summary["memory_bytes"], summary["full_attention_bytes"]
    lines = [
        f"read {summary['tokens_read']:,} tokens through {summary['layers']} layers "
        f"on {summary['backend']}, memory {summary['memory']}",
        f"keys and values: {_mebibytes(used)} MiB held; full attention would hold "
        f"{_mebibytes(full)} MiB ({full / used:.1f} times as much)",
    ]
    if summary["memory"] != "full":
        lines.append(
            f"kept {summary['kept_per_layer']:,} of {summary['tokens_read']:,} tokens per layer; "
            f"lowest share of new tokens admitted once full: {summary['admitted_share']:.0%}"
        )
    print(terminal.paint("\n".join(["", *lines]), "dim"), file=sys.stderr)


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f}"
