"""Reading questions with a memory: likelihoods, answers, controls, diagnostics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation import load_tiny, system
from attendre_core.evaluation.tasks.answering import answered, log_likelihood
from attendre_core.evaluation.tasks.question import question_of
from attendre_core.evaluation.tasks.watched import memory_bytes
from attendre_core.zoo.generate import log_softmax

CONTEXT = "Some say it was Mark Twain who wrote about rivers, and some say it was not. " * 3


@pytest.fixture(scope="module")
def questions(decoder):
    return [
        question_of(decoder, "1", "Who wrote it?", CONTEXT, ["Mark Twain"]),
        question_of(decoder, "2", "And who read it?", CONTEXT[:90], ["I", "me"]),
        question_of(decoder, "3", "What?", CONTEXT[30:], ["rivers"]),
    ]


def expected(model, question):
    """The mean log-probability of the answer, from one pass over the whole text."""
    row = question.tokens + question.gold
    scores = log_softmax(np.asarray(model.logits(row)[0], dtype=np.float64))
    first = len(question.tokens)
    return np.mean([scores[first + i - 1, token] for i, token in enumerate(question.gold)])


def read(model, questions, name, kv=64, chunk=16, **options):
    found = system(name, kv, chunk=chunk)
    return [a for batch in answered(model, questions, found, **options) for a in batch]


def test_the_likelihood_of_full_attention(decoder, questions):
    found = read(decoder, questions, "full")
    for answer, question in zip(found, questions, strict=True):
        assert answer.log_likelihood == pytest.approx(expected(decoder, question), abs=1e-4)
    prompts = [question.tokens for question in questions]
    texts = [decoder.text(row) for row in decoder.generate(prompts, max_new_tokens=16)]
    assert [a.text for a in found] == [(t.strip().splitlines() or [""])[0].strip() for t in texts]


def test_a_memory_that_holds_everything_changes_nothing(decoder, questions):
    full, held = read(decoder, questions, "full"), read(decoder, questions, "LRA-sum", kv=512)
    for one, other in zip(full, held, strict=True):
        assert one.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-4)
        assert one.text == other.text
        assert other.admitted == other.present == 1


def test_the_batch_changes_nothing(decoder, questions):
    one = read(decoder, questions, "LFA-1e-3", batch=1)
    three = read(decoder, questions, "LFA-1e-3", batch=3)
    for alone, together in zip(one, three, strict=True):
        assert alone.log_likelihood == pytest.approx(together.log_likelihood, abs=1e-5)
        assert alone.text == together.text
        assert alone[2:-1] == pytest.approx(together[2:-1])  # The last one is the time.


def test_writing_an_answer_at_once_equals_token_by_token(decoder, questions):
    memory = at.preset("LRA-sum", 64, chunk=16)
    stream = decoder.with_memory(memory).stream(len(questions))
    stream.feed([question.tokens for question in questions])
    golds = [question.gold for question in questions]
    at_once = log_likelihood(*stream.writer(16), golds)
    writer, logits = stream.writer(16)
    totals = np.zeros(len(golds))
    for step in range(max(len(gold) for gold in golds)):
        active = np.asarray([step < len(gold) for gold in golds])
        tokens = np.asarray([gold[min(step, len(gold) - 1)] for gold in golds])
        scores = log_softmax(logits.astype(np.float64))[np.arange(len(golds)), tokens]
        totals += np.where(active, scores, 0)
        logits = writer.write(tokens, active)
    assert at_once == pytest.approx(totals / [len(gold) for gold in golds], abs=1e-5)


def test_controls_read_what_they_say(decoder, questions):
    closed = read(decoder, questions[:1], "closed-book", chunk=64)[0]
    assert closed.log_likelihood == pytest.approx(
        expected(decoder, questions[0]._replace(tokens=questions[0].closed)), abs=1e-4
    )
    last = read(decoder, questions[:1], "no-memory")[0]
    end = questions[0]._replace(tokens=questions[0].tokens[-16:])
    assert last.log_likelihood == pytest.approx(expected(decoder, end), abs=1e-4)


def test_diagnostics_tell_a_frozen_memory(decoder, questions):
    frozen = read(decoder, questions[:1], "first-M", kv=32)[0]
    moving = read(decoder, questions[:1], "MT", kv=32)[0]
    assert frozen.admitted == 0
    assert frozen.present < 0.3
    assert moving.admitted == moving.present == 1


class Words:
    """A tokenizer for the tiny models: one token a letter, one that ends a text."""

    def encode(self, text):
        return [4 + letter % 70 for letter in text.encode()] + [1]

    def decode(self, tokens):
        return " ".join(str(token) for token in tokens)


def test_an_encoder_decoder_answers_from_its_decoder():
    model = load_tiny("encoder-decoder")
    model.tokenizer = Words()
    some = [
        question_of(model, "1", "Who?", CONTEXT[:40], ["Twain"]),
        question_of(model, "2", "And who was it?", CONTEXT[:20], ["me"]),
    ]
    assert some[0].gold == model.tokens("Twain")
    for name, kv in (("full", 16), ("LFA-0", 256)):
        found = system(name, kv, kv - 1 if name != "full" else 0, chunk=16)
        (answers,) = answered(model, some, found, new_tokens=3)
        for answer, question in zip(answers, some, strict=True):
            start = [model.architecture.start, *question.gold[:-1]]
            logits = np.asarray(model.logits(question.tokens, start)[0], dtype=np.float64)
            scores = log_softmax(logits)[np.arange(len(question.gold)), question.gold]
            assert answer.log_likelihood == pytest.approx(scores.mean(), abs=1e-4)
            written = model.generate(question.tokens, max_new_tokens=3)
            assert answer.text == model.text(written)


def test_no_text_is_written_if_none_is_asked_for(decoder, questions):
    assert read(decoder, questions[:1], "MT", new_tokens=0)[0].text == ""


def test_bytes(decoder):
    full = memory_bytes(decoder, system("full", 50), 100)
    assert full == 2 * 4 * (2 * 8) * 100 * 2
    assert memory_bytes(decoder, system("closed-book", 50), 10) == full / 10
    small = system("MT", 50, chunk=25)
    held = memory_bytes(decoder, small, 100)
    assert full / 2 < held < full / 2 * 1.3
    waiting = memory_bytes(decoder, system("MT", 50, 20), 100)
    assert waiting - held == 2 * (20 * ((32 + 32) * 4 + 13) + 4)
    visible = replace(small, memory=replace(small.memory, present="visible"))
    assert memory_bytes(decoder, visible, 100) == pytest.approx(1.5 * held, rel=0.01)
