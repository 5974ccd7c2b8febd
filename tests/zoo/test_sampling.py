"""Tokens are chosen on the device as a plain loop over rows in NumPy would choose them."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend
from attendre_core.zoo import sampling
from attendre_core.zoo.sampling import Chooser, Sampling, candidates, log_softmax

ROWS, WORDS, STEPS = 5, 60, 20
WAYS = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.6, top_k=7),
    Sampling(temperature=1.3, top_p=0.8),
    Sampling(temperature=2.0, top_p=0.3, top_k=20),
    Sampling(temperature=1.0, top_k=1000),
    Sampling(temperature=1.0, top_p=1e-6),
]
#: Whole numbers, so that many tokens are equally likely.
LOGITS = np.random.default_rng(1).integers(-4, 5, (STEPS, ROWS, WORDS)).astype(np.float32)
NEVER = (3, 59)


def one_by_one(way, logits, generator):
    """Choose from logits (vocabulary,), written down from the documentation."""
    if way.temperature == 0:
        return int(np.argmax(logits))
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[: way.top_k]
    weight = np.exp((logits[order].astype(np.float64) - logits.max()) / way.temperature)
    share = weight / weight.sum()
    kept, total = [], 0.0
    for token, part in zip(order, share, strict=True):
        if total >= way.top_p:
            break
        kept.append((token, part))
        total += part
    wanted = generator.random() * total
    for token, part in kept:
        wanted -= part
        if wanted < 0:
            return token
    return kept[-1][0]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("never", [(), NEVER])
def test_tokens_are_those_of_a_plain_loop(way, never, library, monkeypatch):
    monkeypatch.setattr(sampling, "_AHEAD", 16)  # random numbers are drawn more than once
    choose = Chooser(library, way, seed=7, never=never)
    generators = [np.random.default_rng((7, row)) for row in range(ROWS)]
    for logits in LOGITS:
        allowed = logits.copy()
        allowed[:, list(never)] = -np.inf
        want = [one_by_one(way, allowed[row], generators[row]) for row in range(ROWS)]
        ids = choose(backend(library).from_numpy(logits))
        assert backend(library).to_numpy(ids).tolist() == want


def test_of_equals_the_lowest_id_is_taken(library):
    logits = np.zeros((2, 9), np.float32)
    logits[1, [4, 6]] = 1.0
    ids = Chooser(library, Sampling(), never=(0,))(backend(library).from_numpy(logits))
    assert backend(library).to_numpy(ids).tolist() == [1, 4]


def test_the_last_token_is_reached_and_nothing_beyond(library):
    """A number just below 1 takes the last token inside top_p, however sums are rounded."""
    logits = backend(library).from_numpy(np.zeros((1, 3), np.float32))
    for top_p, want in ((1.0, 2), (0.5, 1)):
        just_below = np.nextafter(np.float32(1), np.float32(0))[None]
        chance = backend(library).from_numpy(just_below)
        ids = Sampling(temperature=1.0, top_p=top_p).choose(logits, chance)
        assert backend(library).to_numpy(ids).tolist() == [want]


def test_candidates_are_the_likeliest_tokens(library):
    logits = LOGITS[0] + np.float32(0.125) * LOGITS[1]
    chances, ids = candidates(library, backend(library).from_numpy(logits), 6, NEVER)
    want = log_softmax(logits.astype(np.float64))
    hidden = want.copy()
    hidden[:, list(NEVER)] = -np.inf
    order = np.argsort(-hidden, axis=1, kind="stable")[:, :6]
    assert ids.tolist() == order.tolist()
    np.testing.assert_allclose(chances, np.take_along_axis(want, order, axis=1), rtol=1e-5)


def test_a_vocabulary_smaller_than_the_candidates(library):
    chances, ids = candidates(library, backend(library).from_numpy(LOGITS[0][:, :2]), 6, (0,))
    assert ids[:, 0].tolist() == [1] * ROWS
    assert (chances[:, 1] == -np.inf).all()


def test_sampled_texts_are_the_same_on_every_library(library, tiny_folder):
    options = {"temperature": 1.5, "top_p": 0.9, "seed": 3}
    rows = [[5, 6, 7], [9, 8]]
    want = at.load(tiny_folder, backend="numpy").generate(rows, 12, **options)
    assert at.load(tiny_folder, backend=library).generate(rows, 12, **options) == want
    alone = at.load(tiny_folder, backend=library).generate(rows[:1], 12, **options)
    assert alone == want[:1], "a text depends on its neighbours"


@pytest.mark.parametrize("way", [*WAYS, None], ids=str)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_nothing_is_chosen_among_numbers_that_are_none(way, number, library):
    """Not the first token, which a search for the largest would return."""
    logits = LOGITS[0].copy()
    logits[2, 5] = number
    logits[3] = np.nan
    given = backend(library).from_numpy(logits)
    if way is None:
        chances, _ = candidates(library, given, 4)
        assert np.isnan(chances).any(axis=1).tolist() == [False, False, True, True, False]
        return
    ids = backend(library).to_numpy(Chooser(library, way, seed=7)(given))
    assert ids[2] == ids[3] == -1
    assert (ids[[0, 1, 4]] >= 0).all()
