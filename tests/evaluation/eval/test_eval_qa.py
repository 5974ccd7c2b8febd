"""The task ``qa``: files of one's own, templates, and what is said about wrong lines."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

import attendre_core as at
from attendre_core.cli import main
from attendre_core.evaluation.controls import system
from attendre_core.evaluation.sweep import read_results
from attendre_core.evaluation.tasks import OwnQuestions, read_questions
from attendre_core.evaluation.tasks.question import question_of
from attendre_core.evaluation.tasks.templates import TEMPLATE, filled, without_context

LINES = [
    {"context": "The key is red. " * 12, "question": "Which key?", "answer": "red"},
    {"id": "tower", "context": "It was built in 1889. " * 9, "question": "When?",
     "answers": ["1889", "in 1889"], "source": "ignored"},
    {"id": "tower", "context": "A {context} with {question}.", "question": "{context}?",
     "answer": 1889},
]  # fmt: skip


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in LINES) + "\n")
    return path


def written(path, *lines):
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return path


# -------------------------------------------------------------------- the file


def test_lines_become_questions(file, tmp_path):
    found = read_questions(file)
    assert [one.name for one in found] == ["1", "tower", "tower#2"]
    assert found[0] == ("1", LINES[0]["context"], "Which key?", ("red",))
    assert found[1].answers == ("1889", "in 1889")
    assert found[2].answers == ("1889",)
    packed = tmp_path / "mine.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_questions(packed) == found
    # A byte order mark, blank lines, line ends of Windows, and separators inside a text.
    odd = {**LINES[0], "context": "one\u2028two\x85three"}
    text = "\ufeff\r\n" + json.dumps(odd, ensure_ascii=False) + "\r\n\r\n"
    (tmp_path / "odd.jsonl").write_bytes(text.encode())
    (one,) = read_questions(tmp_path / "odd.jsonl")
    assert (one.name, one.context) == ("2", "one\u2028two\x85three")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"context": "a", ', "line 2: Expecting property name"),
        ("[1, 2]", "line 2: is a list, not an object"),
        ({"question": "q", "answer": "a"}, "line 2: has no 'context'"),
        ({"context": "c", "answer": "a"}, "line 2: has no 'question'"),
        ({"context": "c", "question": "q"}, "line 2: has neither 'answer' nor 'answers'"),
        ({"context": "c", "question": "q", "answer": "a", "answers": []}, "has both 'answer' and"),
        ({"context": "c", "question": "q", "answers": []}, "has an empty list of 'answers'"),
        ({"context": "c", "question": "q", "answer": " "}, "has an empty 'answer'"),
        ({"context": "c", "question": "q", "answers": ["a", None]}, "'answers' that is null"),
        ({"context": ["c"], "question": "q", "answer": "a"}, "'context' that is a list"),
        ({"context": "c", "question": True, "answer": "a"}, "'question' that is true or false"),
        ({"context": "\ud800", "question": "q", "answer": "a"}, "half of a surrogate pair"),
        ({"context": "c", "question": "q", "answer": "a", "id": {}}, "'id' that is an object"),
        ("[" * 100_000, "line 2 is nested too deeply"),
    ],
)
def test_a_wrong_line_is_named(line, message, tmp_path):
    path = written(tmp_path / "wrong.jsonl", LINES[0], line, LINES[1])
    with pytest.raises(at.ConfigError) as caught:
        read_questions(path)
    assert message in str(caught.value)
    assert 'Expected one object per line: {"context"' in str(caught.value)
    assert "1 of 3 lines of" in str(caught.value)


def test_several_wrong_lines_are_named_together(tmp_path):
    path = written(tmp_path / "wrong.jsonl", *(["nonsense"] * 7), LINES[0])
    with pytest.raises(at.ConfigError, match=r"7 of 8 lines .*line 1: .*line 5: .*; and 2 more"):
        read_questions(path)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe\x00"])
def test_a_file_without_questions(content, tmp_path):
    (tmp_path / "none.jsonl").write_bytes(content)
    with pytest.raises(at.ConfigError, match="Expected one object per line"):
        read_questions(tmp_path / "none.jsonl")
    with pytest.raises(at.ConfigError, match="there is no file"):
        read_questions(tmp_path / "missing.jsonl")


# -------------------------------------------------------------------- the prompt


def test_the_default_prompt_is_the_papers(file, decoder):
    first, _, third = OwnQuestions(data=str(file)).items(decoder)
    context = LINES[0]["context"]
    expected = f"Question: Which key?\n\nContext: {context}\n\nAnswer:"
    assert bytes(first.tokens).decode() == expected
    assert bytes(first.closed).decode() == "Question: Which key?\n\nAnswer:"
    assert bytes(first.gold).decode() == " red"
    # Braces in the data are not fields.
    assert "A {context} with {question}." in bytes(third.tokens).decode()


@pytest.mark.parametrize(
    ("template", "whole", "closed", "gold"),
    [
        ("{context}\n\nQ: {question}\nA:\n", "C\n\nQ: Q?\nA:\n", "Q: Q?\nA:\n", "gold"),
        ("Text: {context}\nQ: {question}\nA: ", "Text: C\nQ: Q?\nA:", "Q: Q?\nA:", " gold"),
        ("{context} {question}", "C Q?", " Q?", " gold"),
        ("{question}\n{context}", "Q?\nC", "Q?", " gold"),
        ('{{"q": "{question}"}}\n\n{context}\n\n=', '{{"q": "Q?"}}\n\nC\n\n=', '{{"q": "Q?"}}\n\n=',
         " gold"),
    ],
)  # fmt: skip
def test_a_template_of_ones_own(template, whole, closed, gold, decoder):
    found = question_of(decoder, "one", "Q?", "C", ["gold"], template)
    texts = (bytes(tokens).decode() for tokens in (found.tokens, found.closed, found.gold))
    assert tuple(texts) == (whole, closed, gold)
    assert filled(template, "Q?", "C").rstrip(" ") == whole


def test_without_its_context_the_papers_template_is_a_closed_book():
    assert without_context(TEMPLATE) == "Question: {question}\n\nAnswer: "


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{question}", r"has \{context\} 0 times"),
        ("{context} {contxt}", r"has \{question\} 0 times"),
        ("{context} {question} {question}", r"has \{question\} 2 times"),
        ("", r"has \{question\} 0 times"),
    ],
)
def test_a_template_needs_both_fields(template, message):
    with pytest.raises(at.ConfigError, match=message):
        OwnQuestions(data="mine.jsonl", template=template)


# -------------------------------------------------------------------- measuring


def test_scores_are_those_of_the_other_question_tasks(file, decoder):
    task = OwnQuestions(data=str(file), new_tokens=3, limit=2)
    items = task.items(decoder)
    assert [item.name for item in items] == ["1", "tower"]
    (scores,) = task.measure(decoder, items, system("MT", 64, chunk=16), batch=2)
    assert [name for name, _ in scores] == ["1", "tower"]
    measured = {
        "log_likelihood", "exact_match", "f1", "contains", "admitted", "present", "bytes",
        "entries", "seconds",
    }  # fmt: skip
    assert all(set(score) == measured for _, score in scores)
    assert all(score["log_likelihood"] < 0 for _, score in scores)


def test_any_right_answer_counts():
    task = OwnQuestions(data="mine.jsonl")
    from attendre_core.evaluation.tasks.answering import Answered
    from attendre_core.evaluation.tasks.question import Question

    item = Question("tower", [], [], [], ("1889", "in the year of the fair"))
    score = task._score(item, Answered("In the year of the fair!", -1.0, 1.0, 1.0, 8, 4.0, 0.1))
    assert (score["exact_match"], score["f1"]) == (1.0, 1.0)


GRID = ["--policies", "MT,LRA-sum", "--size", "32", "--chunk", "16", "--new-tokens", "2"]


def run(capsys, *arguments):
    code = main(["eval", "qa", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_measures_stores_and_continues(file, byte_llama, tmp_path, capsys):
    out = tmp_path / "results"
    base = ["--model", byte_llama, "--data", file, *GRID, "--out", out]
    code, shown, _ = run(capsys, *base, "--limit", "2", "--json")
    assert code == 0
    answer = json.loads(shown)
    assert answer["task"] == "qa"
    rows = {row["policy"]: row for row in answer["rows"]}
    assert set(rows) == {
        "full", "no-memory", "closed-book", "MT", "LRA-sum", "first-M", "random", "pinned",
    }  # fmt: skip
    assert all(row["items"] == 2 for row in rows.values())
    before = (out / "results.jsonl").read_text()
    # The rest of the questions is added to what is there.
    assert run(capsys, *base)[0] == 0
    assert (out / "results.jsonl").read_text().startswith(before)
    identity, measured = read_results(out / "results.jsonl")
    assert identity["template"] == TEMPLATE
    assert all(set(each.scores) == {"1", "tower", "tower#2"} for each in measured)
    # Another template is another experiment.
    code, _, error = run(capsys, *base, "--template", "{context} {question}")
    assert code == 2
    assert "template" in error


CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_prompt_can_be_wrapped_in_the_chat_template(file, decoder, byte_llama, tmp_path, capsys):
    pytest.importorskip("jinja2")
    folder = shutil.copytree(byte_llama, tmp_path / "chat")
    (folder / "chat_template.jinja").unlink()
    base = ["--model", folder, "--data", file, *GRID, "--no-controls", "--out", tmp_path / "out"]
    code, _, error = run(capsys, *base, "--chat")
    assert code == 2
    assert "no chat template" in error
    (folder / "chat_template.jinja").write_text(CHATML)
    model = at.load(folder)
    (item, *_) = OwnQuestions(data=str(file), chat=True).items(model)
    prompt = filled(TEMPLATE, "Which key?", LINES[0]["context"]).strip()
    assert model.text(item.tokens) == f"<user>{prompt}<end><assistant>"
    assert model.text(item.closed) == "<user>Question: Which key?\n\nAnswer:<end><assistant>"
    assert model.text(item.gold) == "red"
    assert run(capsys, *base, "--chat")[0] == 0
    assert read_results(tmp_path / "out" / "results.jsonl")[0]["chat"] is True
    # With and without are two experiments.
    assert run(capsys, *base)[0] == 2
    code, _, error = run(capsys, *base, "--chat", "--seed", "1")
    assert code == 2
    assert "--chat" in error


def test_a_wrong_line_costs_no_results(file, byte_llama, tmp_path, capsys):
    out = tmp_path / "results"
    base = ["--model", byte_llama, *GRID, "--no-controls", "--out", out]
    assert run(capsys, *base, "--data", file)[0] == 0
    before = (out / "results.jsonl").read_bytes()
    wrong = written(tmp_path / "wrong.jsonl", LINES[0], "oops")
    code, shown, error = run(capsys, *base, "--data", wrong)
    assert (code, shown) == (2, "")
    assert "line 2: Expecting value" in error
    assert (out / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], 'Give JSON lines of {"context", "question", "answer"} with --data'),
        (["--data", "FILE", "--template", "{question}"], "has {context} 0 times, expected once"),
        (["--data", "FILE", "--depth", "0.5"], "--depth does not apply to this task"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_line(
    options, message, file, byte_llama, tmp_path, capsys
):
    words = [str(file) if word == "FILE" else word for word in options]
    code, _, error = run(capsys, "--model", byte_llama, *words, "--out", tmp_path / "out")
    assert code == 2
    assert message in error
    assert len(error.splitlines()) == 1
