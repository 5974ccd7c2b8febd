"""Tasks with facts hidden in small talk, words to be counted, and key-value retrieval."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter

import numpy as np
import pytest

import attendre_core as at
from attendre_core.cli import main
from attendre_core.evaluation import system
from attendre_core.evaluation.sweep import read_results
from attendre_core.evaluation.tasks import (
    CommonWords,
    FrequentWords,
    HiddenKeys,
    HiddenQueries,
    HiddenValues,
    KeyValues,
    MultiKey,
    Needle,
    Variables,
)
from attendre_core.evaluation.tasks.answering import Answered
from attendre_core.evaluation.tasks.filler import filler_sentences, hidden_among

HIDING = (HiddenKeys, HiddenValues, HiddenQueries, Variables)
COUNTING = (CommonWords, FrequentWords)


def text_of(model, item):
    return model.text(item.tokens)


def context_of(model, item):
    return model.text(item.tokens[: item.context]).removeprefix("Context: ")


@pytest.mark.parametrize("task", [*HIDING, *COUNTING])
def test_contexts_have_the_length_that_was_asked_for(decoder, task):
    for tokens in (600, 900):
        for item in task(limit=3, tokens=tokens).items(decoder):
            assert 0.85 * tokens < len(context_of(decoder, item)) <= tokens


@pytest.mark.parametrize("task", [*HIDING, *COUNTING])
def test_items_depend_on_the_seed_and_their_number_alone(decoder, task):
    few, many = task(limit=2, tokens=600).items(decoder), task(limit=4, tokens=600).items(decoder)
    assert few == many[:2]
    assert len({text_of(decoder, item) for item in many}) == 4
    assert task(limit=1, tokens=600, seed=1).items(decoder)[0].tokens != few[0].tokens
    settings = [task(), task(seed=1), task(tokens=99), task(question="first"), task(new_tokens=0)]
    told = [each.identity() for each in settings]
    assert all(one != other for i, one in enumerate(told) for other in told[:i])


@pytest.mark.parametrize("task", HIDING)
def test_everything_that_is_asked_for_is_in_the_context(decoder, task):
    for item in task(limit=4, tokens=800).items(decoder):
        context, rest = context_of(decoder, item), text_of(decoder, item)[item.context :]
        assert all(part in context for part in item.parts)
        assert not any(part in rest for part in item.parts)
        assert decoder.text(item.gold) == " " + ", ".join(item.parts)
        assert rest.startswith("\n\nQuestion: ")


def test_the_code_of_the_key_that_is_asked_for(decoder):
    for item in HiddenKeys(limit=5, tokens=800, keys=6).items(decoder):
        asked = re.search(r"What is the code of the ([\w ]+)\?", text_of(decoder, item))[1]
        told = dict(re.findall(r"The code of the ([\w ]+) is (\d+)\.", context_of(decoder, item)))
        assert len(told) == 6
        assert item.parts == (told[asked],)


def test_two_of_four_codes(decoder):
    for item in HiddenQueries(limit=5, tokens=800).items(decoder):
        asked = re.search(r"codes of the (.+) and of the (.+)\?", text_of(decoder, item)).groups()
        told = dict(re.findall(r"The code of the ([\w ]+) is (\d+)\.", context_of(decoder, item)))
        assert item.parts == tuple(told[name] for name in asked)
        assert len(told) == 4


def test_a_chain_of_variables_leads_to_its_number(decoder):
    for item in Variables(limit=5, tokens=900).items(decoder):
        number = re.search(r"have the value (\d+)\?", text_of(decoder, item))[1]
        values: dict[str, str] = {}
        told = re.findall(r"Variable (\w+) is set to (\w+)\.", context_of(decoder, item))
        for name, value in told:
            values[name] = values.get(value, value)  # what it is set to was told before
        assert len(told) == 8
        assert {name for name, value in values.items() if value == number} == set(item.parts)
        assert all(value.isdigit() for value in values.values())


@pytest.mark.parametrize("task", COUNTING)
def test_the_words_that_are_asked_for_are_the_most_frequent(decoder, task):
    for item in task(limit=4, tokens=700).items(decoder):
        counts = Counter(re.findall("[a-z]+", context_of(decoder, item)))
        most = counts.most_common(4)
        assert {word for word, _ in most[:3]} == set(item.parts)
        assert most[2][1] > most[3][1]
        if task is FrequentWords:
            assert [word for word, _ in most[:3]] == list(item.parts)
            assert most[0][1] > most[1][1] > most[2][1]


def test_the_question_can_come_first(decoder):
    (item,) = HiddenKeys(limit=1, tokens=600, question="first").items(decoder)
    assert text_of(decoder, item).startswith("Question: What is the code")
    last = [
        Needle(limit=1, question="last"),
        MultiKey(limit=1, keys=4, question="last"),
    ]
    for task in last:
        text = text_of(decoder, task.items(decoder)[0])
        assert text.startswith("Context: ")
        assert task.identity()["question"] == "last"
        assert "question" not in type(task)().identity()


def test_a_depth_puts_all_needles_in_one_place(decoder):
    (item,) = HiddenValues(limit=1, tokens=600, depth=0.0).items(decoder)
    assert context_of(decoder, item).startswith("One code of the ")
    with pytest.raises(at.ConfigError, match=r"depth is 1\.5"):
        HiddenValues(depth=1.5)


def test_filler_can_be_a_text_of_your_own(decoder, tmp_path):
    file = tmp_path / "talk.txt"
    file.write_text("Nothing happened here. Nobody saw it! Was it so?")
    (item,) = HiddenKeys(limit=1, tokens=600, data=str(file)).items(decoder)
    context = context_of(decoder, item)
    assert "Nothing happened here." in context
    assert "every evening" not in context
    with pytest.raises(at.ConfigError, match="there is no file"):
        HiddenKeys(limit=1, data="nowhere.txt").items(decoder)


def test_too_short_a_context_is_refused(decoder):
    with pytest.raises(at.ConfigError, match="--context-tokens"):
        HiddenValues(limit=1, tokens=50).items(decoder)
    with pytest.raises(at.ConfigError, match="--context-tokens"):
        CommonWords(limit=1, tokens=20).items(decoder)


def test_needles_keep_their_order():
    rng = np.random.default_rng(0)
    text = hidden_among(["N1.", "N2.", "N3."], filler_sentences(rng), 900, len, rng)
    assert re.findall(r"N\d", text) == ["N1", "N2", "N3"]


def test_part_of_an_answer_counts_in_part(decoder):
    task = HiddenValues(limit=1, tokens=600)
    (item,) = task.items(decoder)
    half = Answered(f"{item.parts[1]} and {item.parts[3]}", -1.0, 1.0, 1.0, 8, 4.0, 0.1)
    assert task._score(item, half)["contains"] == 0.5
    whole = half._replace(text=", ".join(item.parts) + ".")
    score = task._score(item, whole)
    assert score["contains"] == score["exact_match"] == 1


def test_key_values_of_a_file(decoder, tmp_path):
    file = tmp_path / "records.jsonl.gz"
    records = [[f"key-{i}", f"value-{i}"] for i in range(30)]
    line = json.dumps({"ordered_kv_records": records, "key": "key-20", "value": "value-20"})
    file.write_bytes(gzip.compress(f"{line}\n".encode()))
    (item,) = KeyValues(data=str(file), tokens=300).items(decoder)
    text = text_of(decoder, item)
    assert 200 < item.context <= 300 + len("Context: ")
    assert '"key-20": "value-20"' in text
    assert text.endswith('The value of the key "key-20" is "')
    assert decoder.text(item.gold) == "value-20"
    with pytest.raises(at.ConfigError, match="too few for one record"):
        KeyValues(data=str(file), tokens=10).items(decoder)


def test_real_key_values(decoder, data):
    file = str(data("qa/kv-retrieval-75_keys.jsonl.gz"))
    items = KeyValues(data=file, limit=3, tokens=1000).items(decoder)
    for item in items:
        assert 900 < item.context < 1010
        assert decoder.text(item.gold) in context_of(decoder, item)


def test_oracles_read_the_context_alone(decoder):
    task = HiddenKeys(limit=2, tokens=200, keys=2, new_tokens=2)
    items = task.items(decoder)
    systems = [system("MT+oracle", 32, chunk=16), system("AS+oracle", 32, chunk=16)]
    (results,) = task.measure_oracles(decoder, items, systems, batch=2)
    (alone,) = task.measure(decoder, items, systems[1], batch=2)
    for (name, shared), (other, single) in zip(results[1], alone, strict=True):
        assert name == other
        assert shared["log_likelihood"] == pytest.approx(single["log_likelihood"], abs=1e-5)
    assert results[0] != results[1]


@pytest.mark.parametrize(
    "task", ["multi-value", "multi-query", "variables", "common-words", "frequent-words"]
)
def test_commands(byte_llama, tmp_path, capsys, task):
    command = [
        "eval", task, "--model", str(byte_llama), "--context-tokens", "300", "--limit", "2",
        "--new-tokens", "2", "--size", "64", "--chunk", "32", "--policies", "MT,AS+oracle",
        "--no-controls", "--out", str(tmp_path),
    ]  # fmt: skip
    assert main(command) == 0
    capsys.readouterr()
    identity, measured = read_results(tmp_path / "results.jsonl")
    assert identity["task"] == task
    assert [found.cell.policy for found in measured] == ["MT", "AS+oracle"]
    assert all(len(found.scores) == 2 for found in measured)


def test_modes_of_a_command(byte_llama, tmp_path, capsys):
    command = [
        "eval", "multi-key", "--model", str(byte_llama), "--context-tokens", "250", "--limit", "3",
        "--new-tokens", "0", "--size", "64", "--chunk", "32", "--policies", "MT,attendre-causal",
        "--mode", "bounded,oracle", "--no-controls", "--batch", "2", "--out", str(tmp_path),
    ]  # fmt: skip
    assert main([*command, "--json"]) == 0
    rows = {row["policy"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == ["MT", "attendre-causal", "MT+oracle", "attendre-causal+oracle"]
    assert rows["attendre-causal+oracle"]["memory"] == "attendre-causal+oracle:64"
    assert rows["attendre-causal"]["bytes"] > rows["attendre-causal+oracle"]["bytes"]
    # Again: nothing is measured.
    before = (tmp_path / "results.jsonl").read_bytes()
    assert main(command) == 0
    assert (tmp_path / "results.jsonl").read_bytes() == before
    capsys.readouterr()
    assert main([*command[:-1], str(tmp_path / "b"), "--policies", "full+oracle"]) == 2
    assert "there is no oracle of it" in capsys.readouterr().err
    assert main([*command[:-1], str(tmp_path / "b"), "--wait", "8"]) == 2
    assert "no query waits" in capsys.readouterr().err


def test_a_task_without_a_context_has_no_oracle(tmp_path, capsys):
    command = ["eval", "synthetic", "--model", "prefix-lm", "--limit", "1", "--no-controls"]
    assert main([*command, "--mode", "oracle", "--policies", "MT", "--out", str(tmp_path)]) == 2
    assert "+oracle means nothing here" in capsys.readouterr().err


def test_records_and_small_talk_are_not_mixed_up(byte_llama, tmp_path, capsys):
    command = ["eval", "multi-key", "--model", str(byte_llama), "--out", str(tmp_path)]
    assert main([*command, "--context-tokens", "300", "--data", "records.jsonl.gz"]) == 2
    assert "use the task kv" in capsys.readouterr().err
