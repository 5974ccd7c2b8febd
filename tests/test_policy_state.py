"""A policy's own state and its parameters: where they go, and gradients that come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import Backend, backend, namespace_of

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]
B, S, G, H, D, SIZE, STEPS = 2, 4, 2, 4, 3, 6, 5


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Backend:
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return backend(request.param)


@dataclass(frozen=True)
class Remembering(at.Policy):
    """Count a row's queries and add them up; new entries come in with the count so far."""

    def init(self, stored: at.Stored) -> Any:
        xp = namespace_of(stored.key)
        empty = xp.sum(stored.key, axis=(1, 2))  # (batch, head_dim), of an empty memory
        return {"count": xp.zeros_like(stored.clock), "sums": (empty * 0.0,)}

    def enter(self, stored: at.Stored, new: Any) -> Any:
        xp = namespace_of(stored.score)
        count = xp.astype(stored.policy_state["count"], stored.score.dtype)
        if stored.score.ndim == 3:
            return xp.broadcast_to(count[:, None], tuple(stored.score.shape[:2])) + 0.0
        return count

    def remember(self, stored: at.Stored, attention: at.Attention) -> Any:
        xp = namespace_of(stored.score)
        past = stored.policy_state
        number = xp.sum(xp.astype(attention.valid, xp.int32), axis=1, dtype=xp.int32)
        return {
            "count": past["count"] + number,
            "sums": (past["sums"][0] + xp.sum(attention.query, axis=(1, 2, 3)),),
        }

    def priority(self, stored: at.Stored) -> Any:
        """Compare scores by what is remembered: the older half of the count goes."""
        xp = namespace_of(stored.score)
        count = stored.policy_state["count"]
        count = xp.reshape(count, count.shape + (1,) * (stored.score.ndim - 1))
        return stored.score - xp.astype(count, stored.score.dtype)


def stream(library: Backend, steps: int = STEPS) -> list[tuple[Any, Any, Any]]:
    rng = np.random.default_rng(3)
    drawn = []
    for _ in range(steps):
        key = rng.normal(size=(B, S, G, D)).astype(np.float32)
        query = rng.normal(size=(B, S, H, D)).astype(np.float32)
        valid = rng.random((B, S)) < 0.7
        drawn.append(tuple(map(library.from_numpy, (key, query, valid))))
    return drawn


def remembered(library: Backend, state: Any) -> tuple[np.ndarray, np.ndarray]:
    kept = state.policy_state
    return library.to_numpy(kept["count"]), library.to_numpy(kept["sums"][0])


def expected(library: Backend, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    count, sums = np.zeros(B, np.int64), np.zeros((B, D))
    for _, query, valid in stream(library, steps):
        real = library.to_numpy(valid)
        count += real.sum(axis=1)
        sums += np.where(real[..., None, None], library.to_numpy(query), 0.0).sum(axis=(1, 2))
    return count, sums


def step_of(memory: at.KeyValueMemory) -> Any:
    def step(state: Any, key: Any, query: Any, valid: Any) -> Any:
        state, _ = memory.insert(state, key, key, valid=valid)
        state, _ = memory.attend(state, query, valid=valid)
        return state

    return step


class TestState:
    # JAX compiles each operation by itself: compiled steps show the same in a tenth of the time.
    @pytest.mark.thorough("jax")
    @pytest.mark.parametrize("per_head", [False, True])
    @pytest.mark.parametrize("present", ["compete", "visible"])
    def test_it_is_carried_from_step_to_step(
        self, library: Backend, present: Any, per_head: bool
    ) -> None:
        memory = at.KeyValueMemory(SIZE, Remembering(), present=present, per_head=per_head)
        state = memory.init(batch=B, heads=G, head_dim=D, xp=library, chunk=S)
        assert not remembered(library, state)[0].any()
        step = step_of(memory)
        for number, given in enumerate(stream(library)):
            before = remembered(library, state)[0]
            state, _ = memory.insert(state, given[0], given[0], valid=given[2])
            assert (remembered(library, state)[0] == before).all(), "inserting changes nothing"
            valid, arrival = (library.to_numpy(x) for x in (state.valid, state.arrival))
            newest = valid & (arrival == arrival.max(axis=-1, keepdims=True))
            score = library.to_numpy(state.score)
            wanted = np.broadcast_to(before.reshape((B,) + (1,) * (score.ndim - 1)), score.shape)
            assert (score[newest] == wanted[newest]).all(), f"step {number}: entered otherwise"
            state, _ = memory.attend(state, given[1], valid=given[2])
        count, sums = expected(library)
        assert (remembered(library, state)[0] == count).all()
        np.testing.assert_allclose(remembered(library, state)[1], sums, rtol=1e-5, atol=1e-5)
        settled, _ = memory.settle(state)
        assert (remembered(library, settled)[0] == count).all()
        again, _ = memory.retrieve(state, given[1], valid=given[2])
        real = library.to_numpy(given[2]).sum(axis=1)
        assert (remembered(library, again)[0] == count + real).all()
        nothing, _ = memory.attend(state, given[1][:, :0, ...])
        assert (remembered(library, nothing)[0] == count).all()
        assert step(state, *given).policy_state["count"].dtype == state.policy_state["count"].dtype

    @pytest.mark.parametrize("library", ["torch", "jax"], indirect=True)
    @pytest.mark.parametrize("present", ["compete", "visible"])
    def test_compiled_code_carries_it(self, library: Backend, present: Any) -> None:
        memory = at.KeyValueMemory(SIZE, Remembering(), present=present)
        step = library.compile(step_of(memory))
        state = plain = memory.init(batch=B, heads=G, head_dim=D, xp=library, chunk=S)
        for given in stream(library):
            state, plain = step(state, *given), step_of(memory)(plain, *given)
        assert (remembered(library, state)[0] == expected(library)[0]).all()
        for one, other in zip(remembered(library, state), remembered(library, plain), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
        assert (library.to_numpy(state.position) == library.to_numpy(plain.position)).all()

    def test_a_scan_carries_it(self) -> None:
        jax = pytest.importorskip("jax")
        found = backend("jax")
        layer = at.AttendreLayer(
            at.KeyValueMemory(SIZE, Remembering(), present="visible"), at.DataOnlyMemory(3)
        )
        parts = [at.Chunk(q, k, k, valid=v) for k, q, v in stream(found)]
        chunks = jax.tree.map(lambda *x: jax.numpy.stack(x), *parts)
        empty = layer.init(like=parts[0])
        last, _ = jax.lax.scan(layer.step, empty, chunks)
        last, _ = layer.flush(last)
        assert (remembered(found, last.kv)[0] == expected(found)[0]).all()
        np.testing.assert_allclose(remembered(found, last.kv)[1], expected(found)[1], rtol=1e-4)

    def test_rows_are_emptied_and_reordered_with_it(self, library: Backend) -> None:
        layer = at.AttendreLayer(at.KeyValueMemory(SIZE, Remembering()), at.DataOnlyMemory(2))
        chunks = [at.Chunk(q, k, k, valid=v) for k, q, v in stream(library)]
        state = layer.init(like=chunks[0])
        for chunk in chunks:
            state, _ = layer.step(state, chunk)
        count, sums = remembered(library, state.kv)
        assert (count > 0).all()
        emptied = layer.reset(state, library.from_numpy(np.asarray([True, False])))
        assert remembered(library, emptied.kv)[0].tolist() == [0, count[1]]
        assert (remembered(library, emptied.kv)[1] == np.stack([0 * sums[0], sums[1]])).all()
        turned = layer.reorder(state, library.from_numpy(np.asarray([1, 0, 1], np.int32)))
        assert remembered(library, turned.kv)[0].tolist() == [count[1], count[0], count[1]]
        assert (remembered(library, turned.kv)[1] == sums[[1, 0, 1]]).all()

    def test_other_libraries_and_decoding_take_it_along(self, library: Backend) -> None:
        layer = at.AttendreLayer(at.KeyValueMemory(SIZE, Remembering()), causal=True)
        chunks = [at.Chunk(q, k, k, valid=v) for k, q, v in stream(library)]
        state = layer.init(like=chunks[0])
        for chunk in chunks:
            state, _ = layer.step(state, chunk)
        count = remembered(library, state.kv)[0]
        numbers = at.convert(state, "numpy")
        assert (numbers.kv.policy_state["count"] == count).all()
        for room in (None, 4):
            decoder, kept = layer.decoding(state, room)
            kept, _ = decoder.step(kept, chunks[0])
            more = library.to_numpy(chunks[0].valid).sum(axis=1) if room is None else 0
            assert (remembered(library, kept.kv)[0] == count + more).all()

    def test_a_trace_asks_for_a_priority_with_it(self) -> None:
        layer = at.AttendreLayer(at.KeyValueMemory(SIZE, Remembering()), trace=True)
        trace, found = at.Trace(), backend("numpy")
        state = None
        for key, query, valid in stream(found):
            chunk = at.Chunk(query, key, key, valid=valid)
            state = layer.init(like=chunk) if state is None else state
            state, out = layer.step(state, chunk)
            trace.add(out.trace)
        assert trace.evictions()

    def test_policies_without_a_state_have_none_and_are_not_asked(self) -> None:
        @dataclass(frozen=True)
        class Forgetful(at.LFA):
            """Fail when it is asked to remember."""

            def remember(self, stored: at.Stored, attention: at.Attention) -> Any:
                raise AssertionError("asked to remember")

        memory = at.KeyValueMemory(SIZE, Forgetful())
        state = memory.init(batch=B, heads=G, head_dim=D)
        for given in stream(backend("numpy")):
            state = step_of(memory)(state, *given)
        assert state.policy_state is None


@dataclass(frozen=True)
class Learned(at.Policy):
    """Score new entries by a learned direction and seen ones by learned gains of heads."""

    def enter(self, stored: at.Stored, new: Any) -> Any:
        xp = namespace_of(new.key)
        return xp.sum(new.key * stored.params["direction"], axis=(1, 3))

    def observe(self, stored: at.Stored, attention: at.Attention) -> Any:
        amounts = attention.weights * stored.params["gain"][None, :, None, None, None]
        return stored.score + attention.pool(amounts, unseen=stored.score * 0.0)

    def priority(self, stored: at.Stored) -> Any:
        return stored.score * stored.params["sign"]


def parameters(library: Backend, sign: float = 1.0) -> dict[str, Any]:
    given = {"direction": [1.0, -2.0, 0.5], "gain": [0.3, 0.7], "sign": [sign]}
    return {name: library.from_numpy(np.asarray(x, np.float32)) for name, x in given.items()}


class TestParameters:
    def run(self, library: Backend, params: Any, steps: int = 3, **options: Any) -> Any:
        memory = at.KeyValueMemory(SIZE, Learned(), **options)
        state = memory.init(batch=B, heads=G, head_dim=D, xp=library, chunk=S)
        for key, query, _ in stream(library, steps):
            state, _ = memory.insert(state, key, key, policy_params=params)
            state, _ = memory.attend(state, query, policy_params=params)
            state, _ = memory.retrieve(state, query, top_k=2, policy_params=params)
        if memory.present == "visible":
            state, _ = memory.settle(state, policy_params=params)
        return state

    @pytest.mark.parametrize("present", ["compete", "visible"])
    def test_they_reach_every_method(self, library: Backend, present: Any) -> None:
        first = self.run(library, parameters(library), steps=1, present=present)
        (key, query, _), *_ = stream(backend("numpy"))
        logits = np.einsum("bqghd,bsgd->bgqhs", query.reshape(B, S, G, H // G, D), key) / D**0.5
        raised = np.exp(logits)
        weights = (raised / raised.sum(axis=-1, keepdims=True)).sum(axis=(2, 3))
        start = (key @ np.asarray([1.0, -2.0, 0.5], np.float32)).sum(axis=2)
        wanted = start + 2 * np.einsum("bgs,g->bs", weights, [0.3, 0.7])
        position, score = (library.to_numpy(x) for x in (first.position, first.score))
        for row in range(B):
            order = np.argsort(np.where(position[row] < 0, 99, position[row]))[:S]
            np.testing.assert_allclose(score[row][order], wanted[row], rtol=1e-5, atol=1e-5)
        # Turned around by a parameter, the memory keeps the worst instead of the best.
        best, worst = (
            library.to_numpy(self.run(library, parameters(library, sign), present=present).score)
            for sign in (1.0, -1.0)
        )
        assert best.mean() > worst.mean()

    def test_a_layer_hands_them_on(self, library: Backend) -> None:
        params = parameters(library)
        states = []
        for trace in (False, True):
            layer = at.AttendreLayer(
                at.KeyValueMemory(SIZE, Learned()), at.DataOnlyMemory(3), trace=trace
            )
            chunks = [at.Chunk(q, k, k) for k, q, _ in stream(library)]
            state = layer.init(like=chunks[0])
            for chunk in chunks:
                state, _ = layer.step(state, chunk, policy_params=params)
            for end in (layer.flush(state, policy_params=params),
                        layer.drain(state, 2, policy_params=params)):  # fmt: skip
                states.append(end[0].kv.score)
        for score in states[1:]:
            np.testing.assert_allclose(
                library.to_numpy(score), library.to_numpy(states[0]), rtol=1e-5, atol=1e-6
            )

    @pytest.mark.parametrize("present", ["compete", "visible"])
    def test_gradients_reach_them_in_torch(self, present: Any) -> None:
        torch = pytest.importorskip("torch")
        found = backend("torch")
        fixed = parameters(found)
        leaves = [fixed[name].double().requires_grad_() for name in ("direction", "gain")]

        def scores(direction: Any, gain: Any) -> Any:
            params = {"direction": direction, "gain": gain, "sign": fixed["sign"].double()}
            memory = at.KeyValueMemory(SIZE, Learned(), present=present)
            state = memory.init(batch=B, heads=G, head_dim=D, xp=found, dtype="float64", chunk=S)
            for key, query, _ in stream(found, 3):
                key, query = key.double(), query.double()
                state, _ = memory.insert(state, key, key, policy_params=params)
                state, _ = memory.attend(state, query, policy_params=params)
            return state.score

        assert torch.autograd.gradcheck(scores, leaves)
        for slope in torch.autograd.grad(scores(*leaves).square().sum(), leaves):
            assert slope.abs().min() > 0

    @pytest.mark.parametrize("present", ["compete", "visible"])
    def test_gradients_reach_them_in_jax(self, present: Any) -> None:
        jax = pytest.importorskip("jax")
        found = backend("jax")

        def loss(params: Any) -> Any:
            return jax.numpy.sum(self.run(found, params, present=present).score ** 2)

        params = parameters(found)
        slopes = jax.jit(jax.grad(loss))(params)
        run = jax.jit(loss)
        for name in ("direction", "gain"):
            for place in range(len(params[name])):
                near = [
                    float(run({**params, name: params[name].at[place].add(step)}))
                    for step in (1e-2, -1e-2)
                ]
                wanted = (near[0] - near[1]) / 2e-2
                assert abs(wanted) > 0.1
                assert float(slopes[name][place]) == pytest.approx(wanted, rel=1e-2)

    @pytest.mark.parametrize("library", ["torch", "jax"], indirect=True)
    def test_compiled_code_takes_them_as_arguments(self, library: Backend) -> None:
        memory = at.KeyValueMemory(SIZE, Learned())

        def step(state: Any, key: Any, query: Any, params: Any) -> Any:
            state, _ = memory.insert(state, key, key, policy_params=params)
            return memory.attend(state, query, policy_params=params)[0]

        run = library.compile(step)
        for sign in (1.0, -1.0):
            params = parameters(library, sign)
            state = plain = memory.init(batch=B, heads=G, head_dim=D, xp=library)
            for key, query, _ in stream(library, 3):
                state, plain = run(state, key, query, params), step(plain, key, query, params)
            assert (library.to_numpy(state.position) == library.to_numpy(plain.position)).all()
            np.testing.assert_allclose(
                library.to_numpy(state.score), library.to_numpy(plain.score), rtol=1e-5, atol=1e-5
            )
