"""Reading TriviaQA, comparing answers, and building contexts."""

from __future__ import annotations

import json

import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks import TriviaQA
from attendre_core.evaluation.tasks.contexts import ContextRule, context_of
from attendre_core.evaluation.tasks.normalisation import (
    contains,
    exact_match,
    f1,
    normalised,
)
from attendre_core.evaluation.tasks.passages import Example, Passage, as_written, split
from attendre_core.evaluation.tasks.question import question_of
from attendre_core.evaluation.tasks.templates import TEMPLATE
from attendre_core.evaluation.tasks.triviaqa_files import read_triviaqa

# ---------------------------------------------------------------- comparing answers


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("The Beatles", "beatles"),
        ("a  b\tc", "b c"),
        ("Rock-n-Roll", "rock n roll"),
        ("O\u2019Neill\u00b4s `x` \u2018y\u2019", "o neill s x y"),
        ("snake_case", "snake case"),
        ("Theatre, an atheist", "theatre atheist"),
        ("U.S.A.", "u s"),  # the official rules take the last letter for an article
        ("", ""),
    ],
)
def test_normalisation_follows_the_official_rules(text, want):
    assert normalised(text) == want


def test_exact_match_takes_any_alias():
    assert exact_match("mark twain.", ["Samuel Clemens", "Mark Twain"])
    assert not exact_match("Mark", ["Samuel Clemens", "Mark Twain"])
    assert not exact_match("anything", [])


def test_f1_is_that_of_the_best_alias():
    assert f1("Mark Twain", ["nobody", "Mark Twain"]) == 1
    assert f1("Mark Spitz", ["Mark Twain"]) == 0.5
    assert f1("", ["Mark Twain"]) == 0
    assert f1("of of of", ["of mice of men"]) == pytest.approx(2 * 2 / 7)


def test_contains_looks_for_whole_words():
    assert contains("He lived in New-York.", ["new york"])
    assert not contains("He lived in New Yorkshire", ["new york"])
    assert not contains("anything", ["the"])


# ---------------------------------------------------------------- reading files


def entry(number, **more):
    answer = {"Value": "Paris", "Aliases": ["City of Light", "Paris"]}
    return {"QuestionId": f"q{number}", "Question": "Capital?", "Answer": answer, **more}


@pytest.fixture
def official(tmp_path):
    """Two questions in the official form, with evidence of both kinds."""
    evidence = tmp_path / "evidence"
    (evidence / "wikipedia").mkdir(parents=True)
    (evidence / "web" / "7").mkdir(parents=True)
    (evidence / "wikipedia" / "France.txt").write_text("Its capital is Paris.")
    (evidence / "web" / "7" / "7_1.txt").write_text("Nothing to see.")
    (tmp_path / "qa").mkdir()
    file = tmp_path / "qa" / "web-dev.json"
    pages = [{"Filename": "France.txt", "Title": "France"}]
    results = [{"Filename": "7/7_1.txt", "Title": "A page"}, {"Filename": "gone.txt"}]
    data = [entry(1, EntityPages=pages, SearchResults=results), entry(1, EntityPages=pages)]
    file.write_text(json.dumps({"Data": data}))
    return file


def test_the_official_form(official):
    first, second = read_triviaqa(official)
    assert first == Example(
        "q1", "Capital?", ("Paris", "City of Light"),
        (
            Passage("France", "Its capital is Paris.", True),
            Passage("A page", "Nothing to see.", False),
        ),
    )  # fmt: skip
    assert second.name == "q1#2"
    assert read_triviaqa(official, official.parent.parent / "evidence") == [first, second]


def test_answers_of_people_count_as_the_official_evaluation_counts_them(official):
    data = json.loads(official.read_text())
    data["Data"][0]["Answer"]["HumanAnswers"] = ["Paname"]
    official.write_text(json.dumps(data))
    first, second = read_triviaqa(official)
    assert exact_match("paname", first.answers)
    assert not exact_match("paname", second.answers)


def test_a_question_that_names_no_document_is_left_out(official):
    data = json.loads(official.read_text())
    data["Data"].insert(0, entry(9, EntityPages=[], SearchResults=[]))
    official.write_text(json.dumps(data))
    assert [example.name for example in read_triviaqa(official)] == ["q1", "q1#2"]


def test_evidence_beyond_the_limit_is_not_read(official, decoder):
    """Behind the limit stands a question without evidence, which would be refused."""
    data = json.loads(official.read_text())
    data["Data"].insert(1, entry(2, EntityPages=[{"Filename": "gone.txt"}]))
    official.write_text(json.dumps(data))
    assert [example.name for example in read_triviaqa(official, limit=1)] == ["q1"]
    assert len(TriviaQA(data=str(official), limit=1).items(decoder)) == 1
    with pytest.raises(ConfigError, match="none of the documents of question q2"):
        TriviaQA(data=str(official), limit=2).items(decoder)


def test_evidence_outside_of_its_folder_is_not_read(official):
    secret = official.parent / "secret.txt"
    secret.write_text("Paris")
    stolen = [{"Filename": "../../qa/secret.txt"}]
    official.write_text(json.dumps({"Data": [entry(1, EntityPages=stolen)]}))
    with pytest.raises(ConfigError, match="none of the documents of question q1"):
        read_triviaqa(official)


def test_json_lines(tmp_path):
    file = tmp_path / "some.jsonl"
    docs = [{"title": "t", "text": "Paris!"}, {"text": "no", "has_answer": True}]
    line = {"id": "x", "question": "Capital?", "answers": ["Paris"], "docs": docs}
    file.write_text(json.dumps(line) + "\n\n")
    (example,) = read_triviaqa(file)
    assert example.passages == (Passage("t", "Paris!", True), Passage("", "no", True))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[]", "is not a TriviaQA file"),
        ("a.json", '{"Data": [{"Question": "?"}]}', "has no 'Answer'"),
        ("a.jsonl", '{"question": "?"}', "line 1 of .*answers"),
        ("a.jsonl", "not json", "line 1"),
        ("a.jsonl", "\n", "no questions"),
    ],
)
def test_broken_files_are_refused_with_reasons(tmp_path, name, text, message):
    (tmp_path / "evidence").mkdir()
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_triviaqa(tmp_path / name)


def test_missing_files_are_named(tmp_path, official):
    with pytest.raises(ConfigError, match="there is no file .*nowhere"):
        read_triviaqa(tmp_path / "nowhere.json")
    with pytest.raises(ConfigError, match="no evidence folder .*none"):
        read_triviaqa(official, tmp_path / "none")


@pytest.mark.parametrize("name", ["wikipedia-dev", "wikipedia-train", "web-dev", "web-train"])
def test_the_official_sample(data, name):
    examples = read_triviaqa(data(f"qa/triviaqa-sample/qa/{name}.json"))
    assert examples
    for example in examples:
        assert example.question.endswith("?")
        assert example.passages
        assert any(passage.has_answer for passage in example.passages)


def test_the_thousand_questions(data):
    examples = read_triviaqa(data("qa/triviaqa_test1000_wiki.jsonl"))
    assert len(examples) == 1000
    assert sum(len(example.passages) for example in examples) == 3502
    assert sum(any(p.has_answer for p in example.passages) for example in examples) == 736


# ---------------------------------------------------------------- contexts and prompts


def example(number, *texts, answer="Paris"):
    passages = tuple(Passage("", text, contains(text, [answer])) for text in texts)
    return Example(f"q{number}", "Capital?", (answer,), passages)


OTHERS = [example(i, f"filler {i} " + "word " * 10) for i in range(1, 30)]
ASKED = example(0, "It is Paris.", "It is not.", "Paris again.")


def test_a_context_without_a_length_is_all_evidence(decoder):
    context = context_of(decoder, ASKED, OTHERS, ContextRule())
    assert context.text == "It is Paris.\n\nIt is not.\n\nParis again."
    assert [passage.text for passage in context.gold] == ["It is Paris.", "Paris again."]


@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_the_answer_stands_at_its_depth(decoder, depth):
    context = context_of(decoder, ASKED, OTHERS, ContextRule(tokens=600, depth=depth)).text
    assert context.count("Paris") == 1
    assert 560 < len(context) <= 600
    assert context.index("Paris") / len(context) == pytest.approx(depth, abs=0.08)
    assert "It is not." in context


def test_contexts_depend_on_the_seed_and_not_on_the_order_of_questions(decoder):
    contexts = [
        context_of(decoder, ASKED, OTHERS, ContextRule(tokens=600, seed=seed)) for seed in range(3)
    ]
    assert len(set(contexts)) == 3
    assert context_of(decoder, ASKED, OTHERS, ContextRule(tokens=600, seed=1)) == contexts[1]


def test_more_passages_with_the_answer(decoder):
    context = context_of(decoder, ASKED, OTHERS, ContextRule(tokens=600, gold=2)).text
    assert context.count("Paris") == 2


def test_fillers_never_tell_the_answer(decoder):
    telling = [example(i, "Somebody says: Paris") for i in range(1, 30)]
    context = context_of(decoder, ASKED, telling, ContextRule(tokens=600)).text
    assert context.count("Paris") == 1


def test_questions_without_the_answer_are_left_out(decoder):
    assert context_of(decoder, OTHERS[3], OTHERS, ContextRule(tokens=600)) is None


def test_impossible_contexts_are_refused(decoder):
    with pytest.raises(ConfigError, match="passages of 14 tokens, but the context has 10"):
        context_of(decoder, ASKED, OTHERS, ContextRule(tokens=10))
    with pytest.raises(ConfigError, match="depth is 2"):
        ContextRule(depth=2)
    with pytest.raises(ConfigError, match="gold is 0"):
        ContextRule(gold=0)


def test_documents_are_split_into_passages():
    document = Passage("t", " ".join(f"w{i}" for i in range(230)), True)
    pieces = split(document, ("w150",))
    assert [piece.has_answer for piece in pieces] == [False, True, False]
    assert " ".join(piece.text for piece in pieces) == document.text


def test_the_answer_as_the_evidence_writes_it():
    passage = Passage("", "Ball, Zoë ball, and Zoë ball. zoe bull", True)
    answers = ("Zoe Bull", "Zoë Ball", "Zoe Ball")
    assert as_written(answers, [passage]) == ("Zoë ball", *answers)
    assert as_written(answers, []) == answers
    assert as_written(("Ball", "Zoë ball"), [passage])[0] == "ball"


def test_the_prompt_is_the_papers_template(decoder):
    question = question_of(decoder, "1", "Who {x}?", "So {y}.", ["Twain", "Mark Twain"])
    whole = TEMPLATE.format(question="Who {x}?", context="So {y}.")
    assert whole == "Question: Who {x}?\n\nContext: So {y}.\n\nAnswer: "
    # The space behind the colon belongs to the answer: together they are the same text.
    assert decoder.text(question.tokens + question.gold) == whole + "Twain"
    assert decoder.text(question.closed) == "Question: Who {x}?\n\nAnswer:"


def test_a_question_needs_an_answer(decoder):
    with pytest.raises(ConfigError, match="question 1: there is no answer"):
        question_of(decoder, "1", "Who?", "Me.", [])
