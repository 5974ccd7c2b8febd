"""Files of data that are damaged, or hold something else: one error of ours that names the file."""

from __future__ import annotations

import gzip
import json

import pytest

from attendre_core.corpus import Documents
from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.multi_key import read_records
from attendre_core.evaluation.tasks.own_questions import read_questions
from attendre_core.evaluation.tasks.triviaqa_files import read_triviaqa
from attendre_core.speed import Results

DEEP = b"[" * 100_000
#: A header of gzip, and then nothing that it could be followed by.
PACKED = gzip.compress(b'{"key": 1}' * 50)[:12] + b"\xff" * 40


def official(**values):
    entry = {
        "QuestionId": "q", "Question": "Where?", "EntityPages": [{"Filename": "a.txt"}],
        "Answer": {"Value": "Paris", "Aliases": []}, **values,
    }  # fmt: skip
    return json.dumps({"Data": [entry]}).encode()


FILES = {
    "deep questions": (read_triviaqa, "q.json", DEEP),
    "deep lines": (read_triviaqa, "q.jsonl", DEEP),
    "lines that are no text": (read_triviaqa, "q.jsonl", b'{"id": "\xc5"}'),
    "no list": (read_triviaqa, "q.json", b'{"Data": 7}'),
    "pages that are no list": (read_triviaqa, "q.json", official(EntityPages=True)),
    "a page that is a list": (read_triviaqa, "q.json", official(EntityPages=[[1]])),
    "a page without a name": (read_triviaqa, "q.json", official(EntityPages=[{"Filename": "\0"}])),
    "deep records": (lambda file: list(read_records(file)), "r.jsonl", DEEP),
    "damaged records": (lambda file: list(read_records(file)), "r.jsonl.gz", PACKED),
    "deep questions of ones own": (read_questions, "o.jsonl", DEEP),
    "damaged questions": (read_questions, "o.jsonl.gz", PACKED),
    "deep measurements": (Results.load, "b.json", DEEP),
    "measurements that are none": (Results.load, "b.json", b'{"figures": [7]}'),
}


@pytest.mark.parametrize(("read", "name", "content"), FILES.values(), ids=FILES)
def test_one_error_that_names_the_file(read, name, content, tmp_path):
    (tmp_path / "evidence").mkdir()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=name):
        read(tmp_path / name)


def test_names_and_answers_may_be_numbers(tmp_path):
    (tmp_path / "evidence" / "wikipedia").mkdir(parents=True)
    (tmp_path / "evidence" / "wikipedia" / "a.txt").write_text("In 1889.")
    answer = {"Value": 1889, "Aliases": []}
    (tmp_path / "q.json").write_bytes(official(QuestionId=3, Answer=answer))
    (example,) = read_triviaqa(tmp_path / "q.json")
    assert (example.name, example.answers) == ("3", ("1889",))


def test_a_deep_line_is_a_problem_of_this_line(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(DEEP + b'\n{"text": "One."}\n')
    found = Documents([tmp_path / "d.jsonl"])
    assert [document.text for document in found] == ["One."]
    (problem,) = found.problems
    assert problem.reason.startswith("not JSON")
