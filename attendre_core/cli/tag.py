"""``attendre tag``: names and other labelled spans in files, folders and logs of any length."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

from attendre_core.cli.arguments import (
    MEMORY_HELP,
    add_command,
    add_memory,
    add_shared,
    add_tokenizer,
    print_json,
)
from attendre_core.cli.tag_file import SpanFile
from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError
from attendre_core.paths import user_path
from attendre_core.progress import progress_bar
from attendre_core.zoo.spans import Aggregation, Span

if TYPE_CHECKING:
    from attendre_core.zoo.tagger import Tagger

__all__ = ["add_to"]

_DESCRIPTION = f"""\
Find what a model for token classification labels, such as names, in texts of any length, in a
memory of fixed size.

Spans are printed one a line, FILE:START-END LABEL TEXT, as soon as no later text can change
them; places are counted in characters. Of a folder, all files are read except hidden and binary
ones, in the order of their names. Standard input is read as it arrives. Bytes that are not UTF-8
become U+FFFD. The checkpoint is a Hugging Face folder whose config.json names a class for token
classification.

With --out, JSON lines go to a file instead, and a file that is done is marked there: after an
interruption, run the same command again to continue with the others.

{MEMORY_HELP}"""

_EXAMPLES = """\
  attendre tag --model bert-base-NER report.txt
  attendre tag --model bert-base-NER --memory attendre:1024 --json book.txt
  attendre tag --model bert-base-NER --out spans.jsonl letters/ notes/
  tail -f server.log | attendre tag --model pii-tagger --memory 256 -
  attendre tag --model bert-base-NER --memory full page.txt"""

#: Bytes read between two updates of the progress bar, and at once from standard input.
_PIECE = 2**12


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "tag",
        "find names and other labelled spans in files, folders and logs",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="files or folders; - is standard input"
    )
    parser.add_argument("--model", required=True, metavar="PATH", help="the checkpoint")
    add_tokenizer(parser)
    add_memory(
        parser,
        "512",
        "a name as above, a size for the system recommended for the model, or 'full' for full "
        "attention over each whole file (512)",
    )
    parser.add_argument(
        "--aggregation", choices=get_args(Aggregation), default="first",
        help="first: a word has the label of its first token; simple: each token has its own "
        "(first)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write JSON lines here, and continue there")
    parser.add_argument(
        "--dtype", default="float32", help="float32, float16, bfloat16 or auto (float32)"
    )
    add_shared(
        parser,
        backend_help="array library to compute with (numpy)",
        json_help="print one JSON object a line, for programs",
    )


def run(arguments: argparse.Namespace) -> None:
    """Tag every file and print a summary."""
    from attendre_core.zoo import pipeline

    out = None if arguments.out is None else user_path(arguments.out)
    files, binary = _files(arguments.files, out)
    tagger = pipeline(
        "token-classification",
        arguments.model,
        memory=arguments.memory,
        backend=arguments.backend,
        dtype=arguments.dtype,
        tokenizer=arguments.tokenizer,
        aggregation=arguments.aggregation,
    )
    summary: dict[str, Any] = {"files": 0, "bytes": 0, "binary_files": binary, "spans": 0}
    counts: Counter[str] = Counter()
    if out is None:
        show = _json_line if arguments.json else _text_line(Terminal())
        for name, pieces in _opened(files):
            for span in _spans(tagger, _counted(pieces, summary)):
                counts[span.label] += 1
                print(show(name, span), flush=name == "-")
            summary["files"] += 1
    else:
        identity = {
            "model": arguments.model, "memory": arguments.memory,
            "aggregation": arguments.aggregation, "dtype": arguments.dtype,
            "tokenizer": arguments.tokenizer,
        }  # fmt: skip
        with SpanFile(out, identity) as store:
            waiting = [file for file in files if not store.done(file)]
            summary["done_before"] = len(files) - len(waiting)
            try:
                for name, pieces in _opened(waiting):
                    with store.tagging(name) as write:
                        for span in _spans(tagger, _counted(pieces, summary)):
                            counts[span.label] += 1
                            write(_json_line(name, span))
                    summary["files"] += 1
            except KeyboardInterrupt:
                done = _plural(summary["done_before"] + summary["files"], "file")
                kept = f"{done} of {len(files):,} done, and the same command continues"
                print(f"tag: interrupted; {kept}.", file=sys.stderr)
                raise
    summary |= {"spans": sum(counts.values()), "labels": dict(counts.most_common())}
    summary["memory"] = "full" if tagger.model.memory is None else tagger.model.memory.name
    if out is not None and arguments.json:
        print_json({"out": str(out), **summary})
    elif out is not None:
        print(_words(summary))
    else:
        print(Terminal(sys.stderr).paint(_words(summary), "dim"), file=sys.stderr)


# ---------------------------------------------------------------- what is read


def _files(given: list[str], out: Path | None) -> tuple[list[str], int]:
    """Return the files to read, and how many binary ones were left out; look at all of them."""
    found: list[str] = []
    binary = 0
    for name in given:
        path = user_path(name)
        if name == "-":
            if out is not None:
                raise ConfigError(
                    "tag: standard input cannot be read again to continue, so it cannot go to "
                    "--out. Use --json and send standard output to a file."
                )
            found.append(name)
        elif path.is_dir():
            inside = [file for file in _walk(path) if out is None or not _same(file, out)]
            texts = [str(file) for file in inside if not _is_binary(file)]
            binary += len(inside) - len(texts)
            found += texts
        elif os.access(path, os.R_OK):
            found.append(str(path) if name.startswith("~") else name)
        else:
            problem = "cannot be read" if path.exists() else "does not exist"
            raise ConfigError(f"tag: {name} {problem}, expected a file, a folder, or -.")
    found = list(dict.fromkeys(found))
    if not found:
        raise ConfigError(f"tag: there is no text file in {', '.join(given)}.")
    return found, binary


def _walk(folder: Path) -> Iterator[Path]:
    def failed(error: OSError) -> None:
        raise ConfigError(f"tag: {error.filename} cannot be read ({error.strerror}).") from error

    for place, folders, files in os.walk(folder, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(place, name)
            if not name.startswith(".") and file.is_file():
                yield file


def _same(file: Path, other: Path) -> bool:
    return other.exists() and file.samefile(other)


def _is_binary(file: Path) -> bool:
    with _open(str(file)) as opened:
        return b"\0" in opened.read(8192)


def _open(name: str) -> BinaryIO:
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise ConfigError(f"tag: {name} cannot be read ({error.strerror}).") from error


def _opened(files: list[str]) -> Iterator[tuple[str, Iterable[bytes | str]]]:
    """Yield names and contents, in pieces, with a progress bar for files."""
    sizes = {name: Path(name).stat().st_size for name in files if name != "-"}
    total = sum(sizes.values())
    bar = progress_bar(total, "tagging", " bytes", lines=True) if sizes else None
    try:
        for name in files:
            if name == "-":
                yield name, _arriving()
                continue
            with _open(name) as opened:
                yield name, _read(name, opened, bar)
    finally:
        if bar is not None:
            bar.close()


def _read(name: str, opened: BinaryIO, bar: Any) -> Iterator[bytes]:
    while True:
        try:
            piece = opened.read(_PIECE)
        except OSError as error:
            raise ConfigError(f"tag: {name} cannot be read ({error.strerror}).") from error
        if not piece:
            return
        yield piece
        bar.update(len(piece))


def _arriving() -> Iterator[bytes | str]:
    """Yield standard input as it arrives, not when a buffer is full."""
    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None:  # a program has put something else there
        yield from sys.stdin
        return
    while piece := buffer.read1(_PIECE):
        yield piece


def _counted(pieces: Iterable[bytes | str], summary: dict[str, Any]) -> Iterator[bytes | str]:
    for piece in pieces:
        summary["bytes"] += len(piece)
        yield piece


# ---------------------------------------------------------------- what is written


def _spans(tagger: Tagger, pieces: Iterable[bytes | str]) -> Iterator[Span]:
    if tagger.model.memory is not None:
        return tagger.stream(pieces)
    whole = (piece.encode() if isinstance(piece, str) else piece for piece in pieces)
    return iter(tagger(b"".join(whole)))


def _json_line(name: str, span: Span) -> str:
    return json.dumps({"file": name, **span._asdict(), "score": round(span.score, 5)})


def _text_line(terminal: Terminal) -> Any:
    def line(name: str, span: Span) -> str:
        label = terminal.harmless(span.label)
        text = terminal.harmless(span.text)
        return f"{terminal.harmless(name)}:{span.start}-{span.end} {label} {text}"

    return line


def _words(summary: dict[str, Any]) -> str:
    terminal = Terminal(sys.stderr)
    labels = [f"{terminal.harmless(label)} {n:,}" for label, n in summary["labels"].items()]
    words = (
        f"{_plural(summary['spans'], 'span')} in {_plural(summary['files'], 'file')}, "
        f"{summary['bytes']:,} bytes, memory {summary['memory']}"
    )
    if labels:
        words += f"\n{', '.join(labels)}"
    if summary.get("done_before"):
        words += f"\n{_plural(summary['done_before'], 'file')} done before"
    if summary["binary_files"]:
        words += f"\n{_plural(summary['binary_files'], 'binary file')} left out"
    return words


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
