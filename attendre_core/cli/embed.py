"""``attendre embed``: a vector for every document of files, folders or standard input."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendre_core.cli.arguments import (
    MEMORY_HELP,
    add_command,
    add_memory,
    add_shared,
    add_tokenizer,
    print_json,
    whole_number,
)
from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError, StateError
from attendre_core.paths import user_path
from attendre_core.progress import progress_bar
from attendre_core.zoo.pooling import POOLINGS

if TYPE_CHECKING:
    from attendre_core.corpus import Documents, EmbeddingRun, Note

__all__ = ["add_to"]

_DESCRIPTION = f"""\
Turn documents of any length into vectors, with your model in a memory of fixed size. No document
is cut, and of what was read only the vectors and names are kept.

A file is one document; of a folder, every file with text in it and below is; - is standard input.
With --lines, each line is a document. The lines of .jsonl files, and of any input with --field,
are JSON objects with the text under "text" (or --field) and a name under "id".

FILE.parquet gets the columns id, tokens and vector (float32); FILE.jsonl an object per line.
Until it is complete, FILE.journal beside it holds what is done: a run that was interrupted, in
whatever way, continues with the same command. Results of another model, memory or pooling are
never mixed into it.

What cannot be read is named at the end, when all else is done, and the exit code is 2; the same
command adds it once it is repaired. Hidden, binary and empty files in folders are skipped, and
the summary says so.

{MEMORY_HELP}"""

_EXAMPLES = """\
  attendre embed --model all-MiniLM-L6-v2 --normalize --out vectors.parquet docs/
  attendre embed --model all-MiniLM-L6-v2 --memory attendre:512 --out vectors.parquet book.txt
  attendre embed --model all-MiniLM-L6-v2 --pooling cls --out vectors.jsonl articles.jsonl
  attendre embed --model all-MiniLM-L6-v2 --field body --out vectors.jsonl articles.ndjson
  cat log.txt | attendre embed --model all-MiniLM-L6-v2 --lines --out vectors.jsonl -"""

#: How many names of what was skipped or cannot be read are printed.
_SHOWN = 20


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "embed",
        "turn files, folders or lines into vectors, whatever their length",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a file, a folder, or - for standard input"
    )
    parser.add_argument("--model", required=True, metavar="PATH", help="the checkpoint")
    parser.add_argument("--out", required=True, metavar="FILE", help="FILE.parquet or FILE.jsonl")
    add_tokenizer(parser)
    add_memory(
        parser,
        "1024",
        "a name as above, a size for the system recommended for the model, or 'full' for "
        "full attention, whose cost grows with the square of the length (1024)",
    )
    parser.add_argument(
        "--pooling", choices=POOLINGS,
        help="which hidden states make the vector: their mean, that of the first token, the "
        "largest of each feature, or that of the last token (what the checkpoint's "
        "sentence-transformers files say, with their normalisation; mean without such files)",
    )  # fmt: skip
    parser.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="whether to scale vectors to length one, for cosines",
    )
    parser.add_argument("--lines", action="store_true", help="each line is a document")
    parser.add_argument("--field", metavar="NAME", help="lines are JSON objects with text in NAME")
    parser.add_argument(
        "--batch-size", type=whole_number(1), default=8, metavar="N",
        help="documents that are read at a time; memory grows with it (8)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", default="float32", help="float32, float16, bfloat16 or auto (float32)"
    )
    add_shared(parser, backend_help="array library to compute with (numpy)")


def run(arguments: argparse.Namespace) -> None:
    """Embed the documents, print a summary, and name what could not be read."""
    from attendre_core.corpus import Documents, embed_documents, table_writer
    from attendre_core.corpus.embedding import journal_of
    from attendre_core.zoo import load

    out = user_path(arguments.out)
    table_writer(out)
    if not out.parent.is_dir():
        raise ConfigError(f"embed: there is no folder {out.parent} to write {out.name} into.")
    model = load(
        arguments.model,
        memory=arguments.memory,
        backend=arguments.backend,
        dtype=arguments.dtype,
        tokenizer=arguments.tokenizer,
    )
    model.require_tokenizer("embed")
    documents = Documents(
        arguments.paths,
        lines=arguments.lines,
        field=arguments.field,
        without=(out, journal_of(out)),
    )
    bar = progress_bar(documents.total, "embedding", " documents", lines=True)
    try:
        done = embed_documents(
            model, documents, out, name=Path(arguments.model).name, pooling=arguments.pooling,
            normalize=arguments.normalize, batch_size=arguments.batch_size, on_documents=bar.update,
        )  # fmt: skip
    except KeyboardInterrupt:
        kept = f"what is done is in {journal_of(out)}, and the same command continues"
        print(f"embed: interrupted; {kept}.", file=sys.stderr)
        raise
    finally:
        bar.close()
    if arguments.json:
        memory = "full" if model.memory is None else model.memory.name
        print_json(_summary(arguments, memory, model.reading_part.dim, done, documents))
    else:
        _print_summary(out, done, documents)
    if documents.problems:
        raise StateError(_unread(out, documents.problems))


def _summary(
    arguments: argparse.Namespace, memory: str, dim: int, done: EmbeddingRun, documents: Documents
) -> dict[str, Any]:
    return {
        "out": str(arguments.out),
        **done._asdict(),
        "dim": dim,
        "backend": arguments.backend,
        "memory": memory,
        "skipped": [note._asdict() for note in documents.skipped],
        "problems": [note._asdict() for note in documents.problems],
    }


def _print_summary(out: Path, done: EmbeddingRun, documents: Documents) -> None:
    before = done.documents - done.embedded
    many = "" if done.documents == 1 else "s"
    lines = [f"{out}: {done.documents:,} document{many}, {done.tokens:,} tokens"]
    if before:
        lines.append(f"{before:,} of them were there from an earlier run")
    if documents.skipped:
        reasons = Counter(note.reason for note in documents.skipped)
        counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        names = ", ".join(note.name for note in documents.skipped[:_SHOWN])
        more = ", ..." if len(documents.skipped) > _SHOWN else ""
        lines.append(f"skipped {counts}: {names}{more}")
    print(Terminal(sys.stdout).paint("\n".join(lines), "dim"))


def _unread(out: Path, problems: list[Note]) -> str:
    lines = [f"  {note}" for note in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"  and {len(problems) - _SHOWN:,} more, all in the summary of --json")
    return "\n".join(
        [
            f"embed: {len(problems):,} could not be read. All else is in {out}, and the same "
            "command adds these once they are repaired:",
            *lines,
        ]
    )
