"""`Stream.read` hands out hidden states one chunk at a time, and an iterator may be abandoned."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation import load_tiny
from attendre_core.zoo.stream import Stream

MEMORY = at.preset("LFA-0", kv_size=16, q_size=6, chunk=4)
TOKENS = np.random.default_rng(0).integers(1, 60, 43).tolist()


def rows_of(outputs):
    """Return hidden states by position, as the one row of a stream had them come out."""
    return {
        int(place): np.asarray(x)
        for hidden in outputs
        for x, place, real in zip(
            np.asarray(hidden.x)[0], hidden.position[0], hidden.valid[0], strict=True
        )
        if real
    }


@pytest.fixture
def stream() -> Stream:
    return load_tiny("prefix-lm", memory=MEMORY).stream()


@pytest.fixture
def whole() -> dict[int, np.ndarray]:
    stream = load_tiny("prefix-lm", memory=MEMORY).stream()
    return rows_of([*stream.read(TOKENS), *stream.finish()])


def same(got, want):
    assert got.keys() == want.keys()
    assert all(np.array_equal(got[place], want[place]) for place in want)


def test_a_chunk_is_read_when_it_is_asked_for(stream, monkeypatch):
    read = []
    advance = stream._advance
    monkeypatch.setattr(stream, "_advance", lambda rows: read.append(rows) or advance(rows))
    outputs = stream.read(TOKENS)
    assert (len(read), stream.lengths) == (0, (43,))
    next(outputs)
    assert [len(rows[0]) for rows in read] == [4]
    assert len(list(outputs)) == 9
    assert len(read) == 10


@pytest.mark.parametrize("asked", [0, 1, 7])
@pytest.mark.parametrize("then", ["read", "feed", "finish", "save"])
def test_what_an_abandoned_iterator_left_is_read_next(stream, whole, asked, then, tmp_path):
    outputs = stream.read(TOKENS[:30])
    first = [next(outputs) for _ in range(asked)]
    if then == "read":
        same(rows_of([*first, *stream.read(TOKENS[30:]), *stream.finish()]), whole)
    elif then == "feed":
        stream.feed(TOKENS[30:])
        late = rows_of([*first, *stream.finish()])
        same(late, {place: whole[place] for place in late})
        assert set(range(40, 43)) < late.keys()
    elif then == "finish":
        got = rows_of([*first, *stream.finish()])
        assert list(got) == list(range(30))
    else:
        stream.save(tmp_path / "stream.safetensors")
        stream = stream.model.restore(tmp_path / "stream.safetensors")
        same(rows_of([*first, *stream.read(TOKENS[30:]), *stream.finish()]), whole)


def test_an_iterator_goes_on_after_other_calls(stream, whole):
    outputs = stream.read(TOKENS[:30])
    first = [next(outputs)]
    more = stream.read(TOKENS[30:])
    first += [next(more), next(outputs)]
    same(rows_of([*first, *outputs, *more, *stream.finish()]), whole)


def test_bad_tokens_are_refused_at_once(stream):
    with pytest.raises(at.errors.ConfigError, match="expected 0 to"):
        stream.read([10_000])
    assert stream.lengths == (0,)


def test_a_probe_sees_what_an_abandoned_iterator_left(stream):
    other = stream.copy()
    next(stream.read(TOKENS))
    other.feed(TOKENS)
    want, got = other.probe([5]), stream.probe([5])
    assert np.array_equal(got.x, want.x)
    assert got.position.tolist() == [[43]]
