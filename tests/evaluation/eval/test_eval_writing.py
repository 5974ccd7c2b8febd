"""What a memory does to what is written: continuations, and conversations on one stream."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attendre_core as at
from attendre_core.cli import main
from attendre_core.evaluation import load_tiny, system
from attendre_core.evaluation.tasks import Continuation, MultiTurn
from attendre_core.evaluation.tasks.continuation import continued
from attendre_core.evaluation.tasks.repetition import copied_share, repeated_share

TEXT = "Some say it was Mark Twain who wrote about rivers, and some say that it was not him. " * 20


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(TEXT)
    return str(file)


def scores_of(task, model, name, kv=32, batch=8, items=None):
    tested = system(name, kv, chunk=16)
    found = task.measure(model, items or task.items(model), tested, batch)
    return [score for scores in found for score in scores]


def without_time(scores):
    return [(name, {k: v for k, v in score.items() if k != "seconds"}) for name, score in scores]


# ---------------------------------------------------------------- continuation


def test_repetition_is_counted_in_runs_of_four():
    assert repeated_share([1, 2, 3]) == 0
    assert repeated_share([1, 2, 3, 4] * 3) == pytest.approx(1 - 4 / 9)
    assert repeated_share([1, 1, 1, 1, 1], run=2) == 0.75
    assert copied_share([1, 2, 3, 4, 5], [9, 1, 2, 3, 4, 9]) == 0.5


def test_full_attention_continues_as_generate_does(decoder, text):
    task = Continuation(data=text, tokens=60, new_tokens=12, limit=3)
    items = task.items(decoder)
    expected = decoder.generate([item.tokens for item in items], max_new_tokens=12)
    assert all(len(row) == 12 for row in expected)
    for name in ("full", "MT+oracle"):
        scores = scores_of(task, decoder, name, kv=80)
        for (_, score), row, item in zip(scores, expected, items, strict=True):
            assert score["repeated"] == pytest.approx(repeated_share(row))
            assert score["copied"] == pytest.approx(copied_share(row, item.tokens))


def test_a_continuation_never_ends_early(decoder):
    """The likeliest token is made an end token; it is not written."""
    row = list(TEXT.encode()[:20])
    stream = decoder.stream()
    stream.feed(row)
    (plain,) = continued(*stream.writer(4), 4)
    ending = at.zoo.Model(
        decoder.architecture, decoder.params, tokenizer=decoder.tokenizer, end=(plain[0],)
    )
    stream = ending.stream()
    stream.feed(row)
    (other,) = continued(*stream.writer(4), 4)
    assert plain[0] not in other
    assert len(other) == 4


def test_samples_depend_on_their_text_and_the_seed_alone(decoder):
    rows = [list(TEXT.encode()[i : i + 30]) for i in (0, 7, 11)]

    def written(chosen, seed):
        stream = decoder.stream(len(chosen))
        stream.feed([rows[i] for i in chosen])
        seeds = [(seed, i) for i in chosen]
        return continued(*stream.writer(12), 12, temperature=1.0, seeds=seeds)

    together = written([0, 1, 2], 0)
    assert together == [written([i], 0)[0] for i in range(3)]
    assert together != written([0, 1, 2], 1)
    assert len({tuple(row) for row in together}) == 3


def test_generated_tokens_inside_the_memory_change_what_is_written(decoder, text):
    task = Continuation(data=text, tokens=60, new_tokens=60, limit=4)
    beside, inside = (scores_of(task, decoder, name, kv=16) for name in ("AS", "AS+inside"))
    assert without_time(beside) != without_time(inside)
    with pytest.raises(at.ConfigError, match=r"Leave \+inside out"):
        scores_of(task, decoder, "AS+inside+oracle")


def test_a_continuation_is_refused_where_it_means_nothing(text):
    with pytest.raises(at.ConfigError, match="only a decoder"):
        Continuation(data=text).items(load_tiny("encoder-decoder"))
    with pytest.raises(at.ConfigError, match="at least 2 and 4"):
        Continuation(data=text, new_tokens=3)


# ---------------------------------------------------------------- conversations


@pytest.fixture(scope="module")
def talks():
    return MultiTurn(tokens=1100, facts=3, new_tokens=4, limit=3)


def test_scripts(decoder, talks):
    items = talks.items(decoder)
    assert len({len(item.turns) for item in items}) == 1
    for item in items:
        told = decoder.text([token for turn in item.turns for token in turn.told])
        assert 800 < len(told) <= 1100 + 60
        asked = [turn for turn in item.turns if turn.gold]
        assert len(asked) == 1 + 3
        assert len({turn.answer for turn in asked[1:]}) == 3
        for turn in asked:
            question = decoder.text(turn.told)
            name = question.partition("code of the ")[2].partition("?")[0]
            assert f"the code of the {name} is {turn.answer}." in told
            assert decoder.text(turn.gold) == f" {turn.answer}"
            place = item.turns.index(turn)
            before = decoder.text([t for one in item.turns[:place] for t in one.told])
            assert f"is {turn.answer}." in before
    assert talks.items(decoder) == items
    assert MultiTurn(tokens=1100, facts=3, new_tokens=4, limit=1).items(decoder) == items[:1]


def test_everything_is_read_on_one_stream(decoder, talks):
    """Full attention over the script and what was written, turn by turn, by hand."""
    (item,) = talks.items(decoder)[:1]
    row: list[int] = []
    likely, right = [], []
    for turn in item.turns:
        row += turn.told
        if turn.gold:
            scores = np.asarray(decoder.logits(row + turn.gold)[0], dtype=np.float64)
            scores -= np.log(np.exp(scores).sum(axis=-1, keepdims=True))
            first = len(row) - 1
            likely.append(np.mean([scores[first + i, t] for i, t in enumerate(turn.gold)]))
        written = decoder.generate(row, max_new_tokens=4, stop="\n")
        line = decoder.text(written).partition("\n")[0]
        if turn.gold:
            right.append(turn.answer in line)
        stop = written.index(10) if 10 in written else len(written)
        row += [*written[:stop], 10]
    ((_, score),) = scores_of(talks, decoder, "full", items=[item])
    assert score["log_likelihood"] == pytest.approx(np.mean(likely), abs=1e-4)
    assert score["right"] == np.mean(right)


def test_a_conversation_does_not_depend_on_its_neighbours(decoder, talks):
    one = without_time(scores_of(talks, decoder, "H2O", batch=1))
    three = without_time(scores_of(talks, decoder, "H2O", batch=3))
    for (name, alone), (other, together) in zip(one, three, strict=True):
        assert name == other
        assert alone == pytest.approx(together, abs=1e-4)


def test_closed_book_hears_only_the_question(decoder, talks):
    (item,) = talks.items(decoder)[:1]
    ((_, score),) = scores_of(talks, decoder, "closed-book", items=[item])
    wanted = []
    for turn in item.turns:
        if turn.gold:
            scores = np.asarray(decoder.logits(turn.told + turn.gold)[0], dtype=np.float64)
            scores -= np.log(np.exp(scores).sum(axis=-1, keepdims=True))
            first = len(turn.told) - 1
            wanted.append(np.mean([scores[first + i, t] for i, t in enumerate(turn.gold)]))
    assert score["log_likelihood"] == pytest.approx(np.mean(wanted), abs=1e-4)


def test_too_short_a_script_is_refused(decoder):
    with pytest.raises(at.ConfigError, match="the shortest such script has"):
        MultiTurn(tokens=100).items(decoder)
    with pytest.raises(at.ConfigError, match="only a decoder"):
        MultiTurn().items(load_tiny("encoder-decoder"))


# ---------------------------------------------------------------- the command


def test_commands(byte_llama, tmp_path, capsys, text):
    common = [
        "--model", str(byte_llama), "--limit", "2", "--size", "64", "--chunk", "32",
        "--policies", "MT,AS,AS+inside", "--no-controls", "--json",
    ]  # fmt: skip
    talk = ["eval", "multi-turn", *common, "--context-tokens", "1500", "--new-tokens", "2"]
    assert main([*talk, "--out", str(tmp_path / "talk")]) == 0
    rows = {row["policy"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == ["MT", "AS", "AS+inside"]
    assert rows["MT"]["cost"] == 1
    assert main([*talk, "--mode", "oracle", "--out", str(tmp_path / "none")]) == 2
    assert "+oracle means nothing here" in capsys.readouterr().err
    more = ["eval", "continuation", *common, "--data", text, "--new-tokens", "8"]
    more += ["--context-tokens", "100", "--policies", "MT,AS+oracle"]
    assert main([*more, "--out", str(tmp_path / "more")]) == 0
    rows = {row["policy"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == ["MT", "AS+oracle"]
    assert set(rows["MT"]) >= {"repeated", "copied", "entries", "cost"}
