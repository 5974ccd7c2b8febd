"""Empty states: what is said, what is shown, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import Backend, backend
from attendre_core.tree import tree_leaves

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]
B, S, G, H, D, V = 2, 5, 2, 4, 8, 6


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Backend:
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return backend(request.param)


def made(library: Backend, *shape: int, dtype: Any = np.float32) -> Any:
    return library.from_numpy(np.ones(shape, dtype=dtype))


def described(library: Backend, state: Any) -> list[Any]:
    """Shapes, types and numbers of everything in a state."""
    return [
        (tuple(leaf.shape), str(leaf.dtype), library.to_numpy(leaf).tolist())
        for leaf in tree_leaves(state)
    ]


@pytest.mark.thorough("jax")  # layers are tested below
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("present", ["compete", "visible"])
def test_a_memory_like_a_chunk_is_the_one_that_words_describe(
    library: Backend, present: Any, per_head: bool
) -> None:
    memory = at.KeyValueMemory(7, at.LFA(), present=present, per_head=per_head)
    key, ids = made(library, B, S, G, D), made(library, B, S, dtype=np.int32)
    shown = memory.init(like=key, value_dim=V, aux={"document": ids})
    said = memory.init(
        batch=B, heads=H, kv_heads=G, head_dim=D, xp=library, value_dim=V, chunk=S,
        aux={"document": ids},
    )  # fmt: skip
    assert described(library, shown) == described(library, said)
    assert shown.key.shape[2] == (7 + S if present == "visible" else 7)
    shown, _ = memory.insert(shown, key, made(library, B, S, G, V), aux={"document": ids})
    assert int(library.to_numpy(shown.valid).sum()) == B * S * (G if per_head else 1)


def test_what_is_said_beside_an_example_counts(library: Backend) -> None:
    memory = at.KeyValueMemory(7, present="visible")
    key = made(library, B, S, G, D)
    state = memory.init(like=key, batch=3, kv_heads=1, head_dim=4, chunk=2)
    assert tuple(state.key.shape) == (3, 1, 7 + 2, 4)
    if "bfloat16" in library.capabilities:
        assert "bfloat16" in str(memory.init(like=key, dtype="bfloat16").key.dtype)


@pytest.mark.parametrize("waiting", [None, 3])
@pytest.mark.parametrize("present", ["compete", "visible"])
def test_a_layer_like_a_chunk_is_the_one_that_words_describe(
    library: Backend, present: Any, waiting: int | None
) -> None:
    queue = None if waiting is None else at.DataOnlyMemory(waiting)
    layer = at.AttendreLayer(at.KeyValueMemory(7, at.LFA(), present=present), queue)
    ids, label = made(library, B, S, dtype=np.int32), made(library, B, S, 2)
    chunk = at.Chunk(
        made(library, B, S, H, D), made(library, B, S, G, D), made(library, B, S, G, V),
        carry=made(library, B, S, 9), document=ids, metadata={"label": label},
    )  # fmt: skip
    shown = layer.init(like=chunk)
    said = layer.init(
        batch=B, heads=H, kv_heads=G, head_dim=D, carry_dim=9, xp=library, value_dim=V,
        documents=True, metadata={"label": label}, chunk=S,
    )  # fmt: skip
    assert described(library, shown) == described(library, said)
    state = shown
    for _ in range(3):
        state, out = layer.step(state, chunk)
    assert tuple(out.value.shape) == (B, S, H, V)
    assert tuple(out.metadata["label"].shape) == (B, S, 2)


def test_a_layer_like_a_short_chunk_has_the_room_that_was_asked_for() -> None:
    layer = at.AttendreLayer(at.KeyValueMemory(7, present="visible"))
    x = np.ones((B, S, G, D), dtype=np.float32)
    state = layer.init(like=at.Chunk(x, x, x), chunk=9)
    assert state.kv.key.shape[2] == 7 + 9


def test_types_and_devices_are_those_of_the_example() -> None:
    torch = pytest.importorskip("torch")
    key = torch.ones(B, S, G, D, dtype=torch.bfloat16, device="meta")
    state = at.KeyValueMemory(4).init(like=key)
    assert state.key.dtype == torch.bfloat16
    assert state.score.dtype == torch.float32
    assert {leaf.device.type for leaf in tree_leaves(state)} == {"meta"}
    layer = at.AttendreLayer(at.KeyValueMemory(4), at.DataOnlyMemory(2))
    carry = torch.ones(B, S, 3, device="meta")  # the residual stream may have a type of its own
    shown = layer.init(like=at.Chunk(key, key, key, carry=carry))
    assert shown.queue.data[0].dtype == torch.bfloat16
    assert shown.queue.data[1].dtype == torch.float32
    assert {leaf.device.type for leaf in tree_leaves(shown)} == {"meta"}


@pytest.mark.thorough("jax")  # where scans need it, and show it
def test_room_for_a_visible_chunk_is_fixed_from_the_start(library: Backend) -> None:
    memory = at.KeyValueMemory(6, present="visible")
    for chunk, slots in ((3, 9), (None, 6 + 128)):
        state = memory.init(batch=1, heads=1, head_dim=2, xp=library, chunk=chunk)
        assert state.key.shape[2] == memory.slots(chunk) == slots
        for length in (3, 1, 2):
            entries = made(library, 1, length, 1, 2)
            state, evicted = memory.insert(state, entries, entries)
            assert state.key.shape[2] == slots
            assert evicted.key.shape[1] == slots - 6
    small = memory.init(batch=1, heads=1, head_dim=2, xp=library, chunk=3)
    longer = made(library, 1, 4, 1, 2)
    with pytest.raises(at.ConfigError, match=r"chunk has 4 entries, .* at most 3. .*chunk=4"):
        memory.insert(small, longer, longer)
    assert at.KeyValueMemory(6).init(batch=1, heads=1, head_dim=2, chunk=3).key.shape[2] == 6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heads": G, "head_dim": D}, "batch was left out"),
        ({"batch": B, "head_dim": D}, "heads was left out"),
        ({"batch": B, "heads": G}, "head_dim was left out. Give batch, heads, head_dim, or an"),
        ({"batch": 0, "heads": G, "head_dim": D}, "batch is 0"),
        ({"batch": B, "heads": G, "head_dim": 2.5}, "head_dim is 2.5"),
        ({"batch": B, "heads": G, "head_dim": D, "chunk": 0}, "chunk is 0"),
        ({"batch": B, "heads": G, "head_dim": D, "dtype": "int32"}, "dtype is int32"),
        ({"like": np.ones((B, S, D))}, r"like has shape \(2, 5, 8\)"),
    ],
)
def test_what_makes_no_state_is_refused(given: Any, message: str) -> None:
    with pytest.raises((at.ConfigError, at.DTypeError, at.ShapeError), match=message):
        at.KeyValueMemory(4, present="visible").init(**given)


def test_sizes_are_given_by_name() -> None:
    """Two heads of 16, or 16 K/V heads of 64: nobody has to remember which comes first."""
    with pytest.raises(TypeError, match="positional"):
        at.KeyValueMemory(4).init(1, 2, 16)
    with pytest.raises(TypeError, match="positional"):
        at.AttendreLayer(at.KeyValueMemory(4)).init(1, 2, 16)
    with pytest.raises(at.ConfigError, match="AttendreLayer.init: batch was left out"):
        at.AttendreLayer(at.KeyValueMemory(4)).init(heads=2)


def test_heads_mean_the_same_to_a_memory_and_to_a_layer() -> None:
    memory = at.KeyValueMemory(4)
    layer = at.AttendreLayer(memory)
    for more, kv_heads in (({}, 4), ({"kv_heads": 2}, 2)):
        state = memory.init(batch=1, heads=4, head_dim=8, **more)
        other = layer.init(batch=1, heads=4, head_dim=8, **more)
        assert state.key.shape == other.kv.key.shape == (1, kv_heads, 4, 8)
