"""Read TriviaQA: the official files with their evidence folders, or simple JSON lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.normalisation import contains
from attendre_core.evaluation.tasks.passages import Example, Passage
from attendre_core.paths import user_path

__all__ = ["read_triviaqa"]

_WHERE = "triviaqa"
#: Fields of an official entry that list documents, and the evidence folder of each.
_SOURCES = (("EntityPages", "wikipedia"), ("SearchResults", "web"))


def read_triviaqa(
    path: str | Path, evidence: str | Path | None = None, limit: int | None = None
) -> list[Example]:
    """Read questions with their answers and evidence.

    Parameters
    ----------
    path
        An official file such as ``qa/wikipedia-dev.json`` or
        ``triviaqa-unfiltered/unfiltered-web-dev.json``; or JSON lines of
        ``{"id", "question", "answers": [...], "docs": [{"title", "text", "has_answer"}]}``, where
        ``has_answer`` may be left out.
    evidence
        The folder that holds ``wikipedia/`` and ``web/``. By default, a folder ``evidence`` next
        to the official file or next to its folder. Missing documents are left out, but a question
        whose documents are all missing is an error. Questions that list no document (some of the
        unfiltered ones) are left out.
    limit
        Read at most this many questions, and only their evidence.

    Returns
    -------
    list
        In the order of the file; repeated names get a number, as in ``"name#2"``.
    """
    file = user_path(path)
    if not file.is_file():
        raise ConfigError(f"{_WHERE}: there is no file {file}. Give the questions with --data.")
    examples = _from_lines(file) if file.suffix == ".jsonl" else _official(file, evidence)
    try:
        limited = list(islice(examples, limit))
    except ConfigError:
        raise
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{_WHERE}: {file} is not a TriviaQA file ({repr(error)[:200]}). Download it again."
        ) from error
    if not limited:
        raise ConfigError(f"{_WHERE}: {file} has no questions, expected at least one.")
    seen: Counter[str] = Counter()
    named = []
    for example in limited:
        seen[example.name] += 1
        count = seen[example.name]
        named.append(example if count == 1 else example._replace(name=f"{example.name}#{count}"))
    return named


def _from_lines(file: Path) -> Iterator[Example]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            answers = tuple(str(answer) for answer in entry["answers"])
            passages = tuple(_passage(doc, answers) for doc in entry["docs"])
            name, question = str(entry.get("id", number)), str(entry["question"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{_WHERE}: line {number} of {file} cannot be read ({error!r}). Expected an object "
                "with question, answers and docs, each document with title and text."
            ) from error
        yield Example(name, question, answers, passages)


def _passage(doc: dict[str, Any], answers: tuple[str, ...]) -> Passage:
    text = str(doc["text"])
    known = doc.get("has_answer")
    return Passage(
        str(doc.get("title", "")), text, contains(text, answers) if known is None else bool(known)
    )


def _official(file: Path, evidence: str | Path | None) -> Iterator[Example]:
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))["Data"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{_WHERE}: {file} is not a TriviaQA file ({error!r}). Expected JSON with a list named "
            "Data, or a file of JSON lines whose name ends in .jsonl."
        ) from error
    folder = _evidence_folder(file, evidence)
    for entry in entries:
        try:
            answer = entry["Answer"]
            # The official evaluation also accepts the answers that people gave.
            more = answer.get("HumanAnswers", [])
            answers = tuple(map(str, dict.fromkeys([answer["Value"], *answer["Aliases"], *more])))
            name, question = str(entry["QuestionId"]), str(entry["Question"])
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{_WHERE}: an entry of {file} has no {error}. Files without answers (the test "
                "set) cannot be evaluated here."
            ) from error
        if not any(entry.get(field) for field, _ in _SOURCES):
            continue
        passages = tuple(_documents(entry, folder, answers))
        if not passages:
            raise ConfigError(
                f"{_WHERE}: none of the documents of question {name} is in {folder}. Give the "
                "folder that holds wikipedia/ and web/ with --evidence."
            )
        yield Example(name, question, answers, passages)


def _evidence_folder(file: Path, evidence: str | Path | None) -> Path:
    if evidence is not None:
        folder = user_path(evidence)
        if not folder.is_dir():
            raise ConfigError(f"{_WHERE}: there is no evidence folder {folder}.")
        return folder
    for folder in (file.parent / "evidence", file.parent.parent / "evidence"):
        if folder.is_dir():
            return folder
    raise ConfigError(
        f"{_WHERE}: no evidence folder beside {file} or its folder. Give it with --evidence."
    )


def _documents(entry: dict[str, Any], folder: Path, answers: tuple[str, ...]) -> Iterator[Passage]:
    root = folder.resolve()
    for field, source in _SOURCES:
        for listed in entry.get(field, []):
            file = (root / source / str(listed.get("Filename", ""))).resolve()
            # A name like ../../x must not lead out of the folder.
            if file.is_file() and file.is_relative_to(root):
                text = file.read_text(encoding="utf-8", errors="replace")
                yield Passage(str(listed.get("Title", "")), text, contains(text, answers))
