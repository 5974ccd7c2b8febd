"""What a policy is shown, what it may return, and what is said when it returns something else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import Backend, backend, namespace_of

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]
B, G, H, D, SIZE = 2, 2, 4, 4, 6


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Backend:
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return backend(request.param)


@dataclass(frozen=True)
class LongestKeys(at.Policy):
    """Keep the entries with the longest keys: every entry comes with a score of its own."""

    def enter(self, stored: at.Stored, new: Any) -> Any:
        xp = namespace_of(new.key)
        lengths = xp.sum(new.key * new.key, axis=-1)
        return lengths if stored.score.ndim == 3 else xp.sum(lengths, axis=1)


@dataclass(frozen=True)
class Returning(at.Policy):
    """Return what it was made with."""

    scores: Any = None
    observed: Any = None

    def enter(self, stored: at.Stored, new: Any) -> Any:
        return super().enter(stored, new) if self.scores is None else self.scores

    def observe(self, stored: at.Stored, attention: at.Attention) -> Any:
        return self.observed


def chunks(lengths: tuple[int, ...], seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw keys and which of them are real; what is not real is NaN."""
    rng = np.random.default_rng(seed)
    drawn = []
    for length in lengths:
        valid = rng.random((B, length)) < 0.8
        key = rng.normal(size=(B, length, G, D)).astype(np.float32)
        key[~valid] = np.nan
        drawn.append((key, valid))
    return drawn


class TestScoresForEachEntry:
    lengths = (3, 8, 1, 5, 4)

    @pytest.mark.thorough("jax")
    @pytest.mark.parametrize("per_head", [False, True])
    @pytest.mark.parametrize("present", ["compete", "visible"])
    def test_the_best_of_all_stay(self, library: Backend, present: Any, per_head: bool) -> None:
        """Entries are compared one by one, in a chunk that is longer than the memory, too."""
        memory = at.KeyValueMemory(SIZE, LongestKeys(), present=present, per_head=per_head)
        self.check(library, memory, memory.insert)

    @pytest.mark.parametrize("per_head", [False, True])
    @pytest.mark.parametrize("library", ["torch", "jax"], indirect=True)
    def test_compiled(self, library: Backend, per_head: bool) -> None:
        memory = at.KeyValueMemory(SIZE, LongestKeys(), per_head=per_head)

        def insert(state: Any, key: Any, value: Any, *, valid: Any) -> Any:
            return memory.insert(state, key, value, valid=valid)

        self.check(library, memory, library.compile(insert), lengths=(8, 8, 8))

    def check(
        self, library: Backend, memory: at.KeyValueMemory, insert: Any, lengths: Any = lengths
    ) -> None:
        state = memory.init(batch=B, heads=G, head_dim=D, xp=library, chunk=max(lengths))
        scores, gone = [], 0
        for key, valid in chunks(lengths):
            clean = np.where(valid[..., None, None], key, 0.0)
            scores.append(np.where(valid[..., None], (clean**2).sum(axis=-1), -np.inf))
            given = (library.from_numpy(key), library.from_numpy(key))
            state, evicted = insert(state, *given, valid=library.from_numpy(valid))
            gone += int(library.to_numpy(evicted.valid).sum())
        if memory.present == "visible":
            state, evicted = memory.settle(state)
            gone += int(library.to_numpy(evicted.valid).sum())
        every = np.concatenate(scores, axis=1)  # (batch, time, G)
        every = every.transpose(0, 2, 1) if memory.per_head else every.sum(axis=2)[:, None]
        held, score = (library.to_numpy(x) for x in (state.valid, state.score))
        held, score = (x.reshape(B, -1, x.shape[-1]) for x in (held, score))
        assert gone == np.isfinite(every).sum() - held.sum()
        for row in range(B):
            for head in range(every.shape[1]):
                best = np.sort(every[row, head])[-SIZE:]
                kept = np.sort(score[row, head][held[row, head]])
                np.testing.assert_allclose(kept, best, rtol=1e-6)

    def test_one_score_for_all_of_a_row_is_that_score_for_each(self, library: Backend) -> None:
        each = Returning(library.from_numpy(np.asarray([[3.0] * 4, [-1.0] * 4], np.float32)))
        row = Returning(library.from_numpy(np.asarray([3.0, -1.0], np.float32)))
        x = library.from_numpy(np.ones((B, 4, G, D), np.float32))
        states = []
        for policy in (each, row):
            memory = at.KeyValueMemory(SIZE, policy)
            state = memory.init(batch=B, heads=G, head_dim=D, xp=library)
            for _ in range(3):
                state, _ = memory.insert(state, x, x)
            states.append([library.to_numpy(state.score), library.to_numpy(state.position)])
        for one, other in zip(*states, strict=True):
            assert (one == other).all()

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_scores_that_are_not_finite_raise_where_values_may_be_read(
        self, library: Backend, bad: float
    ) -> None:
        scores = np.asarray([[1.0, 2.0, 3.0], [4.0, bad, 6.0]], np.float32)
        memory = at.KeyValueMemory(SIZE, Returning(library.from_numpy(scores)))
        empty = memory.init(batch=B, heads=G, head_dim=D, xp=library)
        x = library.from_numpy(np.ones((B, 3, G, D), np.float32))
        with pytest.raises(at.NonFiniteError, match="Returning.enter scored an entry with NaN or"):
            memory.insert(empty, x, x)
        assert not library.to_numpy(empty.valid).any()
        valid = library.from_numpy(np.asarray([[True] * 3, [True, False, True]]))
        state, _ = memory.insert(empty, x, x, valid=valid)  # padding may have any score
        assert np.isfinite(library.to_numpy(state.score)).all()

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_without_checks_of_values_no_score_stays_that_is_not_finite(
        self, library: Backend, bad: float
    ) -> None:
        scores = np.asarray([[-1.0, -2.0, 3.0], [4.0, bad, -6.0]], np.float32)
        memory = at.KeyValueMemory(SIZE, Returning(library.from_numpy(scores)))
        state = memory.init(batch=B, heads=G, head_dim=D, xp=library)
        x = library.from_numpy(np.ones((B, 3, G, D), np.float32))
        with at.value_checks(False):
            for _ in range(3):
                state, evicted = memory.insert(state, x, x)
        assert np.isfinite(library.to_numpy(state.score)).all()
        assert np.isfinite(library.to_numpy(evicted.score)).all()
        assert np.sort(library.to_numpy(state.score)[0]).tolist() == [-1, -1, -1, 3, 3, 3]
        kept = np.sort(library.to_numpy(state.score)[1]).tolist()
        assert kept == [0, 0, 0, 4, 4, 4], "such an entry comes in with 0"

    @pytest.mark.parametrize("library", ["torch", "jax"], indirect=True)
    def test_compiled_code_stores_no_score_that_is_not_finite(self, library: Backend) -> None:
        scores = library.from_numpy(np.asarray([[1.0, np.nan], [np.inf, 2.0]], np.float32))
        x = library.from_numpy(np.ones((B, 2, G, D), np.float32))
        memory = at.KeyValueMemory(SIZE, LongestKeys())
        state = memory.init(batch=B, heads=G, head_dim=D, xp=library)

        def insert(state: Any, x: Any, scores: Any) -> Any:
            return at.KeyValueMemory(SIZE, Returning(scores)).insert(state, x, x)[0]

        state = library.compile(insert)(state, x, scores)
        assert library.to_numpy(state.valid).sum() == 4
        assert np.isfinite(library.to_numpy(state.score)).all()

    @pytest.mark.parametrize(
        ("per_head", "shape", "expected"),
        [
            (False, (B, 4), r"\(2,\), one score for each row, or \(2, 3\), one for each new"),
            (False, (B, G, 3), r"\(2,\), one score"),
            (False, (), r"returned shape \(\)"),
            (True, (B,), r"\(2, 2\), one score for each row, or \(2, 2, 3\), one for each"),
            (True, (B, 3), r"returned shape \(2, 3\), expected \(2, 2\)"),
        ],
    )
    def test_other_shapes_are_refused(self, per_head: bool, shape: Any, expected: str) -> None:
        policy = Returning(np.zeros(shape, np.float32))
        memory = at.KeyValueMemory(SIZE, policy, per_head=per_head)
        x = np.ones((B, 3, G, D), np.float32)
        with pytest.raises(at.ShapeError, match=f"Returning.enter: .*{expected}"):
            memory.insert(memory.init(batch=B, heads=G, head_dim=D), x, x)


class TestObserving:
    def stored(self, policy: at.Policy) -> tuple[at.KeyValueMemory, Any, np.ndarray]:
        memory = at.KeyValueMemory(SIZE, policy)
        x = np.ones((B, 3, G, D), np.float32)
        state, _ = memory.insert(memory.init(batch=B, heads=G, head_dim=D), x, x)
        return memory, state, x

    def test_nothing_returned_leaves_the_scores(self) -> None:
        memory, state, x = self.stored(at.Policy())
        after, _ = memory.attend(state, x)
        assert (after.score == state.score).all()
        assert (after.observed == after.valid).all()

    def test_other_shapes_are_refused(self) -> None:
        memory, state, x = self.stored(Returning(observed=np.zeros((B, SIZE + 1))))
        with pytest.raises(at.ShapeError, match=r"observe: returned shape \(2, 7\), expected \(2"):
            memory.attend(state, x)

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_scores_that_are_not_finite_raise_or_are_left(self, bad: float) -> None:
        scores = np.full((B, SIZE), 7.0, np.float32)
        scores[1, 1] = bad
        memory, state, x = self.stored(Returning(observed=scores))
        with pytest.raises(at.NonFiniteError, match="attend: Returning scored an entry with NaN"):
            memory.attend(state, x)
        with at.value_checks(False):
            after, _ = memory.attend(state, x)
        assert after.score[1, 1] == state.score[1, 1]
        assert not after.observed[1, 1]
        assert (after.score[0, :3] == 7.0).all()
        scores[:, 3:] = np.nan  # empty slots, which no query sees
        scores[1, 1] = 7.0
        memory.attend(state, x)


@dataclass(frozen=True)
class Watching(at.Policy):
    """Keep all that it is shown."""

    shown: list[Any] = field(default_factory=list, hash=False, compare=False)

    def enter(self, stored: at.Stored, new: Any) -> Any:
        self.shown.append((stored, new))
        return super().enter(stored, new)

    def observe(self, stored: at.Stored, attention: at.Attention) -> None:
        self.shown.append((stored, attention))


class TestWhatIsShown:
    position = np.asarray([[10, 11, 12, 13], [20, 21, 22, 23]], np.int32)
    valid = np.asarray([[True, True, True, True], [True, False, True, False]])

    def inserted(self, **options: Any) -> tuple[at.KeyValueMemory, Watching, Any, np.ndarray]:
        policy = Watching()
        memory = at.KeyValueMemory(SIZE, policy, **options)
        rng = np.random.default_rng(0)
        key, value = rng.normal(size=(2, B, 4, G, D)).astype(np.float32)
        ids = {"document": self.position * 2}
        state = memory.init(like=key, aux=ids)
        state, _ = memory.insert(
            state, key, value, self.position, self.valid, aux=ids, pinned=self.position == 12
        )
        return memory, policy, state, key

    @pytest.mark.parametrize("per_head", [False, True])
    @pytest.mark.parametrize("present", ["compete", "visible"])
    def test_new_entries(self, present: Any, per_head: bool) -> None:
        _, policy, _, key = self.inserted(present=present, per_head=per_head)
        ((stored, new),) = policy.shown
        assert not stored.valid.any()
        assert new.key.shape == new.value.shape == (B, G, 4, D)
        assert (new.key == key.transpose(0, 2, 1, 3))[
            np.broadcast_to(self.valid[:, None, :, None], new.key.shape)
        ].all()
        assert new.count.tolist() == [4, 2]
        record = (B, G, 4) if per_head else (B, 4)
        axes = (slice(None), None) if per_head else (slice(None),)
        for found, wanted in (
            (new.position, self.position),
            (new.valid, self.valid),
            (new.pinned, self.position == 12),
            (new.aux["document"], self.position * 2),
        ):
            assert found.shape == record
            assert (found == wanted[axes])[np.broadcast_to(self.valid[axes], record)].all()
        arrivals = np.asarray([[0, 1, 2, 3], [0, 0, 1, 1]])[axes]
        real = np.broadcast_to(self.valid[axes], record)
        assert (new.arrival == arrivals)[real].all()

    def test_an_entry_that_is_not_finite_is_not_valid(self) -> None:
        policy = Watching()
        memory = at.KeyValueMemory(SIZE, policy)
        key = np.ones((1, 3, 1, 2), np.float32)
        key[0, 1] = np.nan
        with at.value_checks(False):
            memory.insert(memory.init(like=key), key, np.ones_like(key))
        ((_, new),) = policy.shown
        assert new.valid.tolist() == [[True, False, True]]
        assert new.count.tolist() == [2]

    @pytest.mark.parametrize("per_head", [False, True])
    def test_age_counts_arrivals_since(self, per_head: bool) -> None:
        memory, policy, state, key = self.inserted(per_head=per_head)
        memory.attend(state, key)
        stored, _ = policy.shown[-1]
        assert stored.age.shape == stored.arrival.shape
        ages, places = (x[:, 0] if per_head else x for x in (stored.age, stored.position))
        found = [dict(zip(p[p >= 0].tolist(), a[p >= 0].tolist(), strict=True))
                 for p, a in zip(places, ages, strict=True)]  # fmt: skip
        assert found == [{10: 3, 11: 2, 12: 1, 13: 0}, {20: 1, 22: 0}]

    def test_a_queue_has_ages_too_and_a_view_without_a_clock_says_so(self) -> None:
        @dataclass(frozen=True)
        class Youngest(at.Policy):
            """Let the newest go first."""

            def priority(self, stored: at.Stored) -> Any:
                return stored.age.astype(np.float32)

        queue = at.DataOnlyMemory(3, Youngest())
        numbers = np.arange(7, dtype=np.int32)[None]
        state, gone = queue.insert(queue.init(numbers), numbers)
        assert sorted(queue.get_all(state).data[0].tolist()) == [0, 1, 2]
        assert sorted(gone.data[gone.valid].tolist()) == [3, 4, 5, 6]
        none = np.zeros((1, 1), np.int32)
        with pytest.raises(AttributeError, match="keeps no clock"):
            at.Stored(None, None, none, none, none, none, none, none).age  # noqa: B018

    @pytest.mark.parametrize("per_head", [False, True])
    @pytest.mark.parametrize("top_k", [None, 2])
    @pytest.mark.parametrize(
        "encoding", [None, at.RoPE(), at.RoPE(scaling=at.YaRN(4.0, 16)), at.LMInfinite(2)], ids=str
    )
    def test_queries_keys_values_and_outputs(
        self, encoding: Any, top_k: int | None, per_head: bool
    ) -> None:
        memory, policy, state, _ = self.inserted(per_head=per_head)
        query = np.random.default_rng(1).normal(size=(B, 5, H, D)).astype(np.float32)
        real = np.asarray([[True] * 5, [True, True, False, True, False]])
        at_query = np.asarray([range(10, 15), range(20, 25)], np.int32)
        _, output = memory.attend(state, query, at_query, real, top_k, encoding=encoding)
        stored, seen = policy.shown[-1]
        assert seen.query.shape == (B, G, H // G, 5, D)
        assert seen.key.shape == seen.value.shape == (B, G, SIZE, D)
        assert seen.output.shape == (B, G, H // G, 5, D)
        assert seen.logits.shape == seen.weights.shape == (B, G, H // G, 5, SIZE)
        shown = seen.query.transpose(0, 3, 1, 2, 4).reshape(query.shape)
        np.testing.assert_allclose(shown[real], query[real], rtol=1e-6)
        assert not shown[~real].any()
        for found, kept in ((seen.key, state.key), (seen.value, state.value)):
            assert (found == kept).all()
        assert (stored.key == state.key).all()
        shown = seen.output.transpose(0, 3, 1, 2, 4).reshape(query.shape)
        np.testing.assert_allclose(shown[real], output[real], rtol=1e-6, atol=1e-6)
        assert (seen.position == at_query).all()
        assert (seen.valid == real).all()
        sums = np.where(seen.valid[:, None, None, :], seen.weights.sum(axis=-1), 1.0)
        np.testing.assert_allclose(sums, 1.0, rtol=1e-6)
        assert seen.last(5) is seen
        recent = seen.last(4)
        assert recent.valid.tolist() == [[True] * 4, [False, True, True, True]]
        assert recent.position[recent.valid].tolist() == [11, 12, 13, 14, 20, 21, 23]
        assert recent.logits.shape[3] == 4
        np.testing.assert_allclose(recent.weights[0], seen.weights[0, :, :, 1:], rtol=1e-5)
        last = seen.last()
        places = [4, 3]
        assert last.position.tolist() == [[14], [23]]
        allowed = np.broadcast_to(seen.allowed, seen.logits.shape)
        for row, place in enumerate(places):
            wanted = query[row, place].reshape(G, H // G, D)
            np.testing.assert_allclose(last.query[row, :, :, 0], wanted, rtol=1e-6)
            one, many = (np.where(allowed[row, :, :, place], x, 0.0) for x in
                         (last.logits[row, :, :, 0], seen.logits[row, :, :, place]))  # fmt: skip
            np.testing.assert_allclose(one, many, rtol=1e-5, atol=1e-5)


class TestPriority:
    """What is compared when entries compete."""

    @dataclass(frozen=True)
    class ByAge(at.Policy):
        """First in, first out, in the words of a user."""

        def priority(self, stored: at.Stored) -> Any:
            xp = namespace_of(stored.score)
            return -xp.astype(stored.age, stored.score.dtype)

    @pytest.mark.thorough("jax")
    @pytest.mark.parametrize("per_head", [False, True])
    @pytest.mark.parametrize("present", ["compete", "visible"])
    def test_ages_of_old_and_new_entries_are_counted_from_the_same_clock(
        self, library: Backend, present: Any, per_head: bool
    ) -> None:
        kept = []
        for policy in (self.ByAge(), at.FIFO()):
            memory = at.KeyValueMemory(SIZE, policy, present=present, per_head=per_head)
            state = memory.init(batch=1, heads=1, head_dim=2, xp=library, chunk=8)
            for length in (5, 4, 8, 1, 6):
                x = library.from_numpy(np.ones((1, length, 1, 2), np.float32))
                state, _ = memory.insert(state, x, x)
            kept.append(np.sort(library.to_numpy(state.position)).tolist())
        assert kept[0] == kept[1]


class TestRefused:
    @pytest.mark.parametrize("memory", [at.KeyValueMemory, at.DataOnlyMemory])
    def test_a_class_instead_of_a_policy(self, memory: Any) -> None:
        with pytest.raises(at.ConfigError, match=r"policy is the class LFA, expected an instance"):
            memory(8, at.LFA)
        with pytest.raises(at.ConfigError, match=r"Write policy=LongestKeys\(\)"):
            memory(8, LongestKeys)

    @pytest.mark.parametrize("memory", [at.KeyValueMemory, at.DataOnlyMemory])
    @pytest.mark.parametrize("policy", ["LFA", None, 3])
    def test_what_is_no_policy(self, memory: Any, policy: Any) -> None:
        with pytest.raises(at.ConfigError, match=r"policy is .*no method.*subclass of at.Policy"):
            memory(8, policy)

    def test_a_class_that_is_no_policy_but_has_some_of_its_methods(self) -> None:
        class Half:
            """Written without the base class."""

            sinks = 0

            def enter(self, stored: Any, new: Any) -> None: ...
            def observe(self, stored: Any, attention: Any) -> None: ...
            def priority(self, stored: Any) -> None: ...

        with pytest.raises(at.ConfigError, match=r"no method init.*subclass of at.Policy"):
            at.KeyValueMemory(8, Half())
