"""The last positions and entries that int32 can count: they work, and the next is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend
from attendre_core.checks import LAST_POSITION

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
@pytest.mark.parametrize("policy", [at.FIFO(), at.AttentionSink(2), at.LFA(1e-3)], ids=repr)
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
