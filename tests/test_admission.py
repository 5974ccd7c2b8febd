"""Scores of newcomers and who gets in, in machine code, against the plain bodies."""

import numpy as np
import pytest

import attendre_core as at
from attendre_core import numba_kernels, ops
from attendre_core.backend import backend, machine_code

pytestmark = pytest.mark.skipif(
    not numba_kernels.installed(), reason="needs numba: pip install 'attendre-core[compiled]'"
)
LIBRARIES = ["numpy", "torch"]
#: Scores of a full memory of 70 slots: all different, ties, one value, both zeros, far apart.
SCORES = {
    "normal": lambda rng: rng.normal(size=70),
    "few values": lambda rng: rng.integers(-2, 3, size=70).astype(float),
    "one value": lambda rng: np.full(70, 3.3),
    "zeros": lambda rng: rng.choice([0.0, -0.0], size=70),
    "two heaps": lambda rng: rng.normal(size=70) + 1e6 * (np.arange(70) > 30),
    "large": lambda rng: rng.normal(size=70) * 1e15,
    "tiny": lambda rng: rng.normal(size=70) * 1e-15,
}


@pytest.fixture(params=LIBRARIES)
def library(request):
    pytest.importorskip(request.param)
    return backend(request.param)


def inserted(library, memory, score, chunks, generic):
    """Fill a memory, give it scores, insert more; return all that is left and handed back."""
    rng = np.random.default_rng(1)
    xp = library.xp
    state = memory.init(batch=2, heads=2, head_dim=4, xp=library)
    make = lambda *shape: library.from_numpy(rng.normal(size=shape).astype(np.float32))  # noqa: E731
    state, _ = memory.insert(state, make(2, 70, 2, 4), make(2, 70, 2, 4))
    shape = tuple(state.score.shape)
    state = state._replace(
        score=xp.broadcast_to(library.from_numpy(score.astype(np.float32)), shape) + 0.0
    )
    results = []
    for count in chunks:
        entries = make(2, count, 2, 4), make(2, count, 2, 4)
        if generic:
            with at.force_generic():
                state, evicted = memory.insert(state, *entries)
        else:
            state, evicted = memory.insert(state, *entries)
        results += [evicted.position, evicted.score, state.score]
        held = xp.sum(state.key * state.value, axis=-1)  # which entry is where
        results += [xp.argsort(held, axis=-1)]
        results += [state.position, state.evictions, state.refusals]
    return [library.to_numpy(x) for x in results]


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("sigmas", [0.0, 1.0])
@pytest.mark.parametrize("spread", SCORES)
def test_the_same_entries_enter_and_leave(library, spread, sigmas, per_head):
    policy = at.LRA("sum", initial=at.InitialScore(sigmas))
    memory = at.KeyValueMemory(70, policy, per_head=per_head)
    score = SCORES[spread](np.random.default_rng(0))
    own, generic = (
        inserted(library, memory, score, (1, 13, 70), generic) for generic in (False, True)
    )
    # A mean is rounded as the numbers that it is made of, however small it comes out itself.
    rounding = 1e-6 * float(np.abs(score.astype(np.float32)).max())
    for one, other in zip(own, generic, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=rounding)
        if one.dtype.kind != "f":
            assert (one == other).all()


def spied(library, monkeypatch, name):
    kernel, answers = library.kernels[name], []

    def spy(*args, **options):
        answers.append(kernel(*args, **options))
        return answers[-1]

    monkeypatch.setitem(library.kernels, name, spy)
    return answers


def test_scores_are_made_in_machine_code_as_soon_as_the_memory_is_full(library, monkeypatch):
    answers = spied(library, monkeypatch, "mean_less_deviations")
    score = SCORES["normal"](np.random.default_rng(0))
    inserted(library, at.KeyValueMemory(70, at.LFA()), score, (5,), False)
    declined = [answer is NotImplemented for answer in answers]
    assert declined == [True, False]  # empty at first, then full
    for policy in (at.FIFO(), at.AttentionSink(4), at.LFA(initial=at.ConstantScore(1.0))):
        inserted(library, at.KeyValueMemory(70, policy), score, (5,), False)
    assert len(answers) == 2, "asked for a policy that needs no statistics"


@pytest.mark.parametrize(
    "memory",
    [
        at.KeyValueMemory(70, at.LFA()),
        at.KeyValueMemory(70, at.FIFO()),
        at.KeyValueMemory(70, at.AttentionSink(4)),
        at.KeyValueMemory(70, at.LFA(), sinks=4),
        at.KeyValueMemory(70, at.LFA(), protect_recent=3),
        at.KeyValueMemory(70, at.LFA(), ties=at.RandomTies(3)),
        at.KeyValueMemory(70, at.LFA(), pin=((0, 2),)),
        at.KeyValueMemory(70, at.LFA(), per_head=True),
    ],
    ids=str,
)
def test_slots_are_found_in_machine_code_for_every_memory(library, memory, monkeypatch):
    answers = spied(library, monkeypatch, "admit")
    score = SCORES["few values"](np.random.default_rng(0))
    own = inserted(library, memory, score, (1, 13, 70), False)
    assert len(answers) == 4
    assert not any(answer is NotImplemented for answer in answers)
    generic = inserted(library, memory, score, (1, 13, 70), True)
    assert len(answers) == 4 + 1, "only the first chunk is inserted by the kernel"
    for one, other in zip(own, generic, strict=True):
        if one.dtype.kind != "f":
            assert (one == other).all()


def test_pinned_entries_are_left_to_the_generic_code(library, monkeypatch):
    answers = spied(library, monkeypatch, "mean_less_deviations")
    memory = at.KeyValueMemory(4, at.LFA())
    one = library.from_numpy(np.ones((1, 4, 1, 2), dtype=np.float32))
    pins = library.from_numpy(np.asarray([[True, False, False, False]]))
    state = memory.init(batch=1, heads=1, head_dim=2, xp=library)
    state, _ = memory.insert(state, one, one, pinned=pins)
    state, _ = memory.insert(state, one, one)
    assert answers == [NotImplemented, NotImplemented]
    assert 0 in library.to_numpy(state.position)


def test_scores_that_have_to_be_bounded_are_left_to_the_generic_code():
    yes = np.ones((1, 8), dtype=bool)
    for largest, declined in ((1e36, False), (1e38, True), (np.inf, True), (np.nan, True)):
        score = np.asarray([[0, 1, 2, 3, 4, 5, 6, largest]], dtype=np.float32)
        found = numba_kernels.mean_less_deviations(score, yes, 1.0)
        assert (found is NotImplemented) == declined


@pytest.mark.parametrize("name", ["admit", "mean_less_deviations"])
def test_other_types_and_a_switch_leave_it_to_the_generic_code(name):
    score = np.asarray([[3.0, 1.0, 2.0]])
    order = np.asarray([[0, 1, 2]], dtype=np.int32)
    more = {
        "admit": (order, np.asarray([[4.0]], dtype=np.float32), order[:, :1] + 3),
        "mean_less_deviations": (order >= 0, 1.0),
    }[name]
    kernel = getattr(numba_kernels, name)
    assert kernel(score.astype(np.float32), *more) is not NotImplemented
    assert kernel(score, *more) is NotImplemented
    with machine_code(False):
        assert kernel(score.astype(np.float32), *more) is NotImplemented


@pytest.mark.parametrize("count", [1, 5, 40])
def test_who_gets_in_is_what_the_op_says(library, count):
    """Empty slots, pinned ones, ties, both zeros; newcomers that may not enter."""
    rng = np.random.default_rng(count)
    odd = np.asarray([np.inf, -np.inf, 0.0, -0.0, 1.0, 1.0, -2.0, 1.7e38], dtype=np.float32)
    mine, theirs = rng.choice(odd, size=(3, 2, 40)), rng.choice(odd, size=(3, 2, count))
    age = rng.permuted(np.tile(np.arange(-5, 35, dtype=np.int32), (3, 2, 1)), axis=-1)
    since = np.broadcast_to(np.arange(35, 35 + count, dtype=np.int32), theirs.shape)
    given = [library.from_numpy(np.ascontiguousarray(x)) for x in (mine, age, theirs, since)]
    kernel = library.kernels["admit"](*given)
    assert kernel is not NotImplemented
    for one, other in zip(kernel, ops.admit.plain(*given), strict=True):
        assert (library.to_numpy(one) == library.to_numpy(other)).all()


class TestWriting:
    """Keys and values written in place, in PyTorch."""

    torch = pytest.importorskip("torch") if numba_kernels.installed() else None

    def arguments(self, heads_first=False):
        torch = self.torch
        arrays = [torch.zeros(2, 3, 10, 4) for _ in range(2)]
        new = [torch.arange(2.0 * 5 * 3 * 4).reshape(2, 5, 3, 4) + i for i in range(2)]
        new = [x.permute(0, 2, 1, 3) for x in new]
        if heads_first:
            new = [x.contiguous() for x in new]
        index = torch.stack([torch.randperm(10)[:5] for _ in range(2)])
        return arrays, index, new, torch.tensor([[True, False, True, True, True]] * 2)

    @pytest.mark.parametrize("heads_first", [False, True])
    def test_it_writes_what_pytorch_writes(self, heads_first):
        from attendre_torch import kernels, machine_code

        arrays, index, new, write = self.arguments(heads_first)
        wanted = kernels.write_slots(
            [x.clone() for x in arrays], index, new, write, axis=2, donate=True
        )
        versions = [x._version for x in arrays]
        found = machine_code.write_slots(arrays, index, new, write, axis=2, donate=True)
        for one, other, array, version in zip(found, wanted, arrays, versions, strict=True):
            assert self.torch.equal(one, other)
            assert one.data_ptr() == array.data_ptr()
            assert array._version > version

    def test_it_copies_unless_donated(self):
        from attendre_torch import machine_code

        arrays, index, new, write = self.arguments()
        found = machine_code.write_slots(arrays, index, new, write, axis=2, donate=False)
        assert not arrays[0].any()
        assert found[0].any()

    def test_gradients_are_recorded(self):
        from attendre_torch import machine_code

        arrays, index, new, write = self.arguments()
        new = [x.clone().requires_grad_() for x in new]
        found = machine_code.write_slots(arrays, index, new, write, axis=2, donate=True)
        found[1].sum().backward()
        assert new[1].grad[:, :, 1].abs().sum() == 0
        assert (new[1].grad[:, :, 0] == 1).all()

    def test_inference_mode(self):
        from attendre_torch import machine_code

        with self.torch.inference_mode():
            arrays, index, new, write = self.arguments()
            found = machine_code.write_slots(arrays, index, new, write, axis=2, donate=True)
        assert found[0].any()
