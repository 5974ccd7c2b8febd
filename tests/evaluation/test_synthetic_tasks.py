"""The synthetic tasks: every document is what its description says."""

from __future__ import annotations

import numpy as np
import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks import SYNTHETIC, LookAhead, PastOnly, SyntheticTask, word
from attendre_core.evaluation.tasks.synthetic import SHORTEST
from attendre_core.evaluation.tasks.synthetic_words import (
    ANSWER,
    BEGIN,
    CONTEXT,
    KEYS,
    NOISE,
    QUESTIONS,
    VALUES,
    VOCABULARY,
)

EVERY = [task(answers) for task in SYNTHETIC.values() for answers in ("repeat", "single")]


def named(task: SyntheticTask) -> str:
    return f"{task.name}-{task.answers}"


@pytest.fixture(params=EVERY, ids=named)
def task(request: pytest.FixtureRequest) -> SyntheticTask:
    found: SyntheticTask = request.param
    return found


def places(tokens: np.ndarray, kind: range) -> np.ndarray:
    return np.flatnonzero((tokens >= kind.start) & (tokens < kind.stop))


class TestDocuments:
    def test_the_frame(self, task: SyntheticTask) -> None:
        for document in task.documents(1, 100):
            tokens = document.tokens
            assert tokens[0] == BEGIN
            assert tokens[-1] == ANSWER
            assert np.flatnonzero(tokens == CONTEXT).tolist() == [document.context]
            (asked_at,) = places(tokens, QUESTIONS)
            assert 3 <= asked_at <= 6
            assert tokens[asked_at] == QUESTIONS[document.question]
            assert places(tokens, KEYS)[0] > document.context
            assert document.context < 10

    def test_lengths_are_whole_chunks(self, task: SyntheticTask) -> None:
        sizes = {d.tokens.size for d in task.documents(2, 300)}
        assert sizes == {16 * n for n in range(8, 33)}

    def test_owners_are_the_keys_of_the_records(self, task: SyntheticTask) -> None:
        for document in task.documents(3, 50):
            tokens = document.tokens
            assert places(tokens, VALUES).tolist() == document.values.tolist()
            assert (tokens[places(tokens, KEYS)] - KEYS.start).tolist() == document.owners.tolist()

    def test_a_key_has_one_value(self, task: SyntheticTask) -> None:
        for document in task.documents(4, 50):
            pairs = set(
                zip(document.owners, document.tokens[document.values].tolist(), strict=True)
            )
            assert len({key for key, _ in pairs}) == len(pairs)
            assert (document.question, document.answer) in pairs

    def test_the_answer_recurs_or_stands_in_the_middle(self, task: SyntheticTask) -> None:
        times = []
        for document in task.documents(5, 100):
            found = np.flatnonzero(document.owners == document.question)
            times.append(found.size)
            if task.answers == "single":
                records = document.owners.size
                assert records // 4 <= found[0] < records - records // 4
        assert min(times) >= 1
        assert (max(times) == 1) == (task.answers == "single")

    def test_every_word_is_used(self, task: SyntheticTask) -> None:
        seen = set(np.concatenate([d.tokens for d in task.documents(6, 200)]).tolist())
        assert seen == set(range(1, VOCABULARY))

    def test_a_seed_fixes_a_document_whatever_their_number(self, task: SyntheticTask) -> None:
        few, many = list(task.documents(7, 3)), list(task.documents(7, 9))
        for one, other in zip(few, many, strict=False):
            assert np.array_equal(one.tokens, other.tokens)
        (different,) = task.documents(8, 1)
        assert not np.array_equal(different.tokens, few[0].tokens)

    def test_the_shortest_has_one_record(self, task: SyntheticTask) -> None:
        for seed in range(50):
            document = task.document(np.random.default_rng(seed), SHORTEST)
            assert document.owners.tolist() == [document.question]

    def test_too_short(self, task: SyntheticTask) -> None:
        with pytest.raises(ConfigError, match=f"length is {SHORTEST - 1}, expected at least"):
            task.document(np.random.default_rng(0), SHORTEST - 1)

    def test_closed_book_has_no_context(self, task: SyntheticTask) -> None:
        for document in task.documents(9, 20):
            tokens = document.closed_book
            assert tokens.size == document.context + 2
            assert tokens[-1] == ANSWER
            assert places(tokens, VALUES).size == 0


def test_look_ahead_needs_the_future() -> None:
    gaps = []
    for document in LookAhead().documents(0, 100):
        gaps += (places(document.tokens, KEYS) - document.values).tolist()
    assert set(gaps) == set(range(5, 11))


def test_past_only_needs_the_past() -> None:
    for document in PastOnly().documents(0, 20):
        assert np.array_equal(places(document.tokens, KEYS), document.values - 1)


def test_a_task_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match="answers is 'often', expected 'repeat' or 'single'"):
        LookAhead("often")  # type: ignore[arg-type]


def test_words_are_all_different() -> None:
    words = [word(token) for token in range(VOCABULARY)]
    assert len(set(words)) == VOCABULARY
    assert word(NOISE[-1]) == "noise27"
    assert word(VOCABULARY) == "unknown80"
