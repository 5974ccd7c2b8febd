"""A stream or answer that two threads use at once raises, and is as one of them left it."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import attendre_core as at
from attendre_core.errors import StateError
from attendre_core.evaluation import load_tiny
from attendre_core.zoo.alone import Alone
from attendre_core.zoo.answer import Answer
from attendre_core.zoo.generate import Written

TOKENS = [3, 7, 11, 5] * 10
USES = {
    "feed": lambda stream, folder: stream.feed([1]),
    "read": lambda stream, folder: list(stream.read([1])),
    "finish": lambda stream, folder: stream.finish(),
    "copy": lambda stream, folder: stream.copy(),
    "first": lambda stream, folder: stream.first(),
    "probe": lambda stream, folder: stream.probe([1]),
    "writer": lambda stream, folder: stream.writer(1),
    "next_logits": lambda stream, folder: stream.next_logits(),
    "generate": lambda stream, folder: stream.generate(2),
    "reports": lambda stream, folder: stream.reports(),
    "entries": lambda stream, folder: stream.entries(),
    "save": lambda stream, folder: stream.save(folder / "stream.safetensors"),
}


def begun():
    return load_tiny("prefix-lm", memory="attendre+sinks=1:32").stream()


class Waiting:
    """Lets the first step of a stream wait until it is told to go on."""

    def __init__(self, stream):
        self.inside, self.go_on = threading.Event(), threading.Event()
        read = stream._reader.read

        def slowly(*given):
            self.inside.set()
            assert self.go_on.wait(60)
            return read(*given)

        stream._reader.read = slowly


def test_whatever_a_second_thread_does_is_refused(tmp_path):
    stream, alone = begun(), begun()
    waiting = Waiting(stream)
    with ThreadPoolExecutor(1) as pool:
        fed = pool.submit(stream.feed, TOKENS)
        assert waiting.inside.wait(60)
        for use in USES.values():
            with pytest.raises(StateError, match="Stream: another thread is using it"):
                use(stream, tmp_path)
        waiting.go_on.set()
        fed.result()
    assert not list(tmp_path.iterdir())
    alone.feed(TOKENS)
    assert stream.lengths == alone.lengths
    np.testing.assert_array_equal(stream.next_logits(), alone.next_logits())
    for use in USES.values():  # the first thread has left
        use(stream, tmp_path)


def test_readers_that_were_begun_before(tmp_path):
    """The iterators of two calls of `read` advance one stream."""
    stream = begun()
    first, second = stream.read(TOKENS), stream.read(TOKENS)
    waiting = Waiting(stream)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(next, first)
        assert waiting.inside.wait(60)
        with pytest.raises(StateError, match="another thread"):
            next(second)
        waiting.go_on.set()
        taken.result()
    assert stream.lengths == (2 * len(TOKENS),)
    alone = begun()
    alone.feed(TOKENS + TOKENS)
    stream.feed([])
    np.testing.assert_array_equal(stream.next_logits(), alone.next_logits())


def test_many_threads():
    """Each feeds the same tokens or is refused; the stream has read what was not refused."""
    stream, alone = begun(), begun()

    def feed(_):
        try:
            stream.feed(TOKENS)
        except StateError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        count = sum(pool.map(feed, range(64)))
    assert 1 <= count <= 64
    for _ in range(count):
        alone.feed(TOKENS)
    assert stream.lengths == alone.lengths
    np.testing.assert_array_equal(stream.next_logits(), alone.next_logits())


def test_copies_are_free():
    stream = begun()
    stream.feed(TOKENS)
    twin = stream.copy()
    with ThreadPoolExecutor(1) as pool, stream._alone:
        pool.submit(twin.feed, TOKENS).result()
        with pytest.raises(StateError):
            pool.submit(stream.feed, TOKENS).result()


def test_answers():
    """An answer in use is not taken for one that failed."""
    inside, go_on, failed, ended = threading.Event(), threading.Event(), [], []

    def written():
        inside.set()
        assert go_on.wait(60)
        yield Written(0, 5, "word", end=False)

    answer = Answer(written(), ended.append, lambda: failed.append(True))
    with ThreadPoolExecutor(1) as pool:
        piece = pool.submit(next, answer)
        assert inside.wait(60)
        for use in (lambda: next(answer), answer.stop, answer.end, lambda: answer.text):
            with pytest.raises(StateError, match="Answer: another thread"):
                use()
        go_on.set()
        assert piece.result() == "word"
    assert not failed
    assert answer.text == "word"
    assert ended == [answer]


def test_a_guard_is_copied_open():
    guard = Alone("Stream")
    with guard, pickle.loads(pickle.dumps(guard)), ThreadPoolExecutor(1) as pool:
        pool.submit(pickle.loads(pickle.dumps(guard)).__enter__).result()


def test_chats(chat_folder, tmp_path):
    chat = at.load(chat_folder, memory=64).chat()
    uses = (
        lambda: chat.send("more", 1), lambda: chat.read("more"), chat.fork,
        lambda: chat.save(tmp_path / "chat"),
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool, chat._alone:
        for use in uses:
            with pytest.raises(StateError, match="Chat: another thread"):
                pool.submit(use).result()
    assert not chat.messages
    assert not (tmp_path / "chat").exists()
