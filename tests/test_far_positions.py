"""The last positions and entries that int32 can count: they work, and the next is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend
from attendre_core.checks import FIRST_POSITION, LAST_POSITION

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param)
    return backend(request.param)


def keys(found: Any, count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return found.from_numpy(rng.standard_normal((1, count, 1, 4)).astype(np.float32))


def late(found: Any, memory: Any, clock: int) -> Any:
    """Make a state whose row has had this many entries."""
    state = memory.init(batch=1, heads=1, head_dim=4, xp=found.name, chunk=3)
    return state._replace(clock=found.from_numpy(np.asarray([clock], dtype=np.int32)))


@pytest.mark.parametrize("present", ["compete", "visible"])
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(at.FIFO(), marks=pytest.mark.thorough("jax")),
        pytest.param(at.AttentionSink(2), marks=pytest.mark.thorough("jax")),
        at.LFA(1e-3),
    ],
    ids=repr,
)
def test_the_last_entries_are_read_like_the_first(library: Any, policy: Any, present: Any) -> None:
    memory = at.KeyValueMemory(4, policy, present=present)

    def kept(first: int) -> list[int]:
        state = late(library, memory, first)
        for step in range(4):
            key = keys(library, 3, step)
            state, _ = memory.insert(state, key, key)
            state, _ = memory.attend(state, key, causal=True)
        at_ = library.to_numpy(state.position)[library.to_numpy(state.valid)]
        return sorted((at_.astype(np.int64) - first).tolist())

    first = 1000 if policy.sinks else 0  # sinks are the first entries of all
    assert kept(LAST_POSITION + 1 - 12) == kept(first)


def test_the_next_entry_is_refused(library: Any) -> None:
    memory = at.KeyValueMemory(4)
    state = late(library, memory, LAST_POSITION - 1)
    key = keys(library, 3)
    with pytest.raises(at.StateError, match="position 2147483647 is beyond 2147483646"):
        memory.insert(state, key, key)
    state, _ = memory.insert(state, keys(library, 2), keys(library, 2))
    assert int(library.to_numpy(state.position).max()) == LAST_POSITION
    assert int(library.to_numpy(state.clock)[0]) == 2**31 - 1, "not wrapped"


def test_a_queue_refuses_it_too() -> None:
    queue = at.DataOnlyMemory(4)
    data = (np.zeros((1, 3, 2), np.float32),)
    state = queue.init(data)._replace(clock=np.asarray([LAST_POSITION], dtype=np.int32))
    with pytest.raises(at.StateError, match="beyond 2147483646"):
        queue.insert(state, data)


@pytest.mark.parametrize("library", ["numpy", "array_api_strict", "torch"], indirect=True)
def test_positions_that_do_not_fit_are_refused(library: Any) -> None:
    memory = at.KeyValueMemory(4)
    state = late(library, memory, 0)
    key = keys(library, 2)
    far = library.from_numpy(np.asarray([[5, 2**31 + 5]]))
    for call in (memory.attend, lambda s, k, position: memory.insert(s, k, k, position)):
        with pytest.raises(at.StateError, match="position 2147483653 is beyond"):
            call(state, key, position=far)
    valid = library.from_numpy(np.asarray([[True, False]]))
    state, _ = memory.insert(state, key, key, far, valid)  # padding may hold any number
    kept = library.to_numpy(state.position)[library.to_numpy(state.valid)]
    assert kept.tolist() == [5]


def test_a_stream_ends_before_positions_wrap() -> None:
    from attendre_core.evaluation import load_tiny

    stream = load_tiny("prefix-lm", memory="LRA-sum+visible+chunk=4:16").stream()
    stream.feed([1, 2, 3, 4])
    stream._read[:] = LAST_POSITION - 8
    stream.feed([5, 6, 7, 8])
    with pytest.raises(at.StateError, match=r"Stream.feed: position \d+ is beyond"):
        stream.feed([1] * 6)
    assert stream.lengths == (LAST_POSITION - 4,), "what does not fit is not read in part"
    with pytest.raises(at.StateError, match=r"generate: position \d+ is beyond"):
        stream.generate(max_new_tokens=9)


def test_the_cache_for_transformers_ends_before_positions_wrap() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from attendre_torch import AttendreCache

    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    cache = AttendreCache(model, "LRA-sum+visible+chunk=4:8")
    tokens = torch.asarray([[1, 2, 3, 4]])
    with torch.no_grad():
        model(tokens, past_key_values=cache)
        cache.layers[0].seen = LAST_POSITION - 1
        with pytest.raises(at.StateError, match="AttendreCache: position"):
            model(tokens, past_key_values=cache)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("place", [-(2**31), -(2**30) - 1, 2**31 - 1])
def test_positions_that_no_entry_can_have_are_refused(library: Any, kind: Any, place: int) -> None:
    if kind is np.int64 and library.name == "jax":
        pytest.skip("JAX has no int64 by default")
    memory = at.KeyValueMemory(4)
    state, _ = memory.insert(late(library, memory, 0), keys(library, 2), keys(library, 2))
    wrong = library.from_numpy(np.asarray([[5, place]], dtype=kind))
    told = "is before -1073741824" if place < 0 else "is beyond 2147483646"
    for call in (
        memory.attend,
        memory.retrieve,
        lambda s, k, position: memory.store(s, k, k, position),
    ):
        with pytest.raises(at.StateError, match=f"position {place} {told}"):
            call(state, keys(library, 2), position=wrong)
    queue = at.DataOnlyMemory(4)
    with pytest.raises(at.StateError, match=told):
        queue.insert(queue.init((keys(library, 2),)), (keys(library, 2),), wrong)


@pytest.mark.parametrize("clock", [-1, -(2**31)])
def test_a_clock_that_has_wrapped_is_refused(library: Any, clock: int) -> None:
    memory = at.KeyValueMemory(4)
    with pytest.raises(at.StateError, match=f"has counted {clock} entries"):
        memory.insert(late(library, memory, clock), keys(library, 1), keys(library, 1))


def test_spans_beyond_the_last_position_pin_what_there_is(library: Any) -> None:
    memory = at.KeyValueMemory(4, pin=((2, 2**40), (2**40, 2**41)))
    state = late(library, memory, 0)
    state, _ = memory.insert(state, keys(library, 4), keys(library, 4))
    assert library.to_numpy(state.position)[library.to_numpy(state.pinned)].tolist() in (
        [2, 3], [3, 2],
    )  # fmt: skip


def test_wide_windows_see_everything(library: Any) -> None:
    memory = at.KeyValueMemory(4)
    state = late(library, memory, LAST_POSITION - 7)
    state, _ = memory.insert(state, keys(library, 4), keys(library, 4))
    outputs = [
        library.to_numpy(memory.attend(state, keys(library, 2, 3), encoding=encoding)[1])
        for encoding in (at.NoPosition(), at.Window(2**40))
    ]
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: at.KeyValueMemory(2**31),
        lambda: at.DataOnlyMemory(2**40),
        lambda: at.LMInfinite(2**31 - 1),
        lambda: at.T5Bias(max_distance=2**31),
    ],
)
def test_settings_that_int32_cannot_hold_are_refused(make: Any) -> None:
    with pytest.raises(at.ConfigError, match="expected"):
        make()


def drained(layer: Any, first: int, library: Any) -> tuple[list[int], Any]:
    """Read four chunks from this entry on; return the outputs and their positions from it."""
    chunk = [keys(library, 3, seed) for seed in range(4)]
    state = layer.init(like=at.Chunk(chunk[0], chunk[0], chunk[0]))

    def moved(part: Any) -> Any:
        clock = library.from_numpy(np.asarray([first], dtype=np.int32))
        return part._replace(clock=clock)

    inner = state.kv
    kv = moved(inner)
    if hasattr(inner, "tiers"):
        kv = inner._replace(tiers=tuple(moved(tier) for tier in inner.tiers), clock=kv.clock)
    state = state._replace(kv=kv, queue=moved(state.queue))
    outputs = []
    for part in chunk:
        state, out = layer.step(state, at.Chunk(part, part, part))
        outputs.append(out)
    outputs.append(layer.flush(state)[1])
    real = [library.to_numpy(out.valid) for out in outputs]
    at_ = [library.to_numpy(o.position)[r] for o, r in zip(outputs, real, strict=True)]
    values = [library.to_numpy(o.value)[r] for o, r in zip(outputs, real, strict=True)]
    return (np.concatenate(at_).astype(np.int64) - first).tolist(), np.concatenate(values)


@pytest.mark.thorough("jax")
def test_a_layer_reads_and_flushes_the_last_entries_like_the_first(library: Any) -> None:
    layer = at.AttendreLayer(
        at.KeyValueMemory(6, at.LFA(1e-3)), q_memory=at.DataOnlyMemory(5), causal=True,
        encoding=at.Window(4),
    )  # fmt: skip
    far, near = (drained(layer, first, library) for first in (LAST_POSITION + 1 - 12, 0))
    assert far[0] == near[0] == list(range(12))
    np.testing.assert_allclose(far[1], near[1], atol=1e-6)


def test_wide_positions_in_compiled_code_do_not_wrap() -> None:
    """Their values cannot be read there: they become the nearest that int32 holds."""
    torch = pytest.importorskip("torch")
    from attendre_core import checks

    def narrow(position: Any) -> Any:
        return checks.positions("here", "position", position)

    given = torch.asarray([[5, 2**40, -(2**40), 2**31 + 7]])
    with at.value_checks(False):
        found = narrow(given)  # loads the backend, too
    assert found.dtype == torch.int32
    assert found.tolist() == [[5, LAST_POSITION, FIRST_POSITION, LAST_POSITION]]
    found = torch.compile(narrow, backend="eager", fullgraph=True)(given)
    assert found.tolist() == [[5, LAST_POSITION, FIRST_POSITION, LAST_POSITION]]
