"""The paper's path runs on arrays whose values cannot be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance import no_reads
from attendre_conformance.policies.subjects import PARAMS, SHIPPED
from attendre_core.modules import table_shape

B, S, M, H, G, D = 2, 3, 6, 4, 2, 4

OPTIONS: dict[str, dict[str, Any]] = {
    "compete": {},
    "visible": {"present": "visible"},
    "per-head": {"per_head": True},
    "sinks-pin-recent": {"sinks": 1, "pin": ((2, 4),), "protect_recent": 1},
    "random-ties": {"ties": at.RandomTies(3), "scale": 2.0},
    "gather": {"retrieval": "gather"},
    "approximate": {"retrieval": "approximate", "passes": 4},
}
ENCODINGS: dict[str, Any] = {
    "none": at.NoPosition(),
    "rope": at.RoPE(rotary_dim=2),
    "interleaved": at.RoPE(interleaved=True, scaling=at.YaRN(4.0, 64)),
    "lm-infinite": at.LMInfinite(2),
    "t5": at.T5Bias(8, 16),
    "transformer-xl": at.TransformerXLPositions(4),
    "disentangled": at.DisentangledPositions(9, 8),
    "alibi": at.ALiBi(),
    "in-cache": at.InCache(at.LMInfinite(2)),
    "learned": at.LearnedPositions(4),
}


def put(found: Any, *arrays: Any) -> list[Any]:
    return [found.from_numpy(array) for array in arrays]


def chunk_arrays(seed: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)

    def content(heads: int) -> Any:
        return rng.standard_normal((B, S, heads, D)).astype(np.float32)

    position = np.tile(np.arange(S, dtype=np.int32) + S * seed, (B, 1))
    valid = rng.random((B, S)) > 0.2
    return content(H), content(G), content(G), position, valid


def table(found: Any, encoding: Any) -> Any:
    """Return the learned arrays of a scheme."""
    inner = getattr(encoding, "inner", encoding)
    shape = table_shape(inner, H, D)
    return None if shape is None else found.from_numpy(np.ones(shape, dtype=np.float32))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("policy", SHIPPED)
def test_memory_reads_no_value(policy: str, options: str) -> None:
    memory = at.KeyValueMemory(M, SHIPPED[policy], **OPTIONS[options])
    with no_reads.forbidden() as found:
        state = memory.init(batch=B, heads=H, kv_heads=G, head_dim=D, xp=found.xp, chunk=S)
        given = {}
        if policy in PARAMS:
            given["policy_params"] = {k: found.from_numpy(x) for k, x in PARAMS[policy].items()}
        for seed in range(4):
            query, key, value, position, valid = put(found, *chunk_arrays(seed))
            asked = (query, position, valid)
            state, evicted = memory.insert(state, key, value, position, valid, **given)
            state, output = memory.attend(state, *asked, top_k=3, causal=seed > 1, **given)
            state, dense = memory.attend(state, *asked, **given)
            state, retrieved = memory.retrieve(state, *asked, top_k=2, **given)
        state = memory.store(state, key, value, **given)
        state, _ = memory.settle(state)
        state = memory.reset(state, valid[:, 0])
    shown = no_reads.reveal((state, evicted, output, dense, retrieved.similarity))
    assert np.all(np.isfinite(shown[2]))
    assert np.all(np.isfinite(shown[3]))
    assert shown[0].position.shape[0] == B


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("present", ["compete", "visible"])
def test_layer_reads_no_value(encoding: str, top_k: int | None, present: Any) -> None:
    layer = at.AttendreLayer(
        at.KeyValueMemory(M, at.LFA(1e-3), present=present),
        at.DataOnlyMemory(4),
        top_k=top_k,
        causal=present == "visible",
        encoding=ENCODINGS[encoding],
    )
    with no_reads.forbidden() as found:
        params = table(found, layer.encoding)
        carry = found.from_numpy(np.zeros((B, S, 3), dtype=np.float32))
        state = layer.init(
            batch=B, heads=H, kv_heads=G, head_dim=D, carry_dim=3, xp=found.xp, chunk=S
        )
        for seed in range(3):
            query, key, value, position, valid = put(found, *chunk_arrays(seed))
            chunk = at.Chunk(query, key, value, position, valid, carry)
            state, out = layer.step(state, chunk, encoding_params=params)
        _, drained = layer.drain(state, 2, encoding_params=params)
        _, flushed = layer.flush(state, encoding_params=params)
    for output in (out, drained, flushed):
        assert np.all(np.isfinite(no_reads.reveal(output.value)))


@pytest.mark.parametrize("policy", [at.FIFO(), at.LFA(initial=at.ConstantScore(0.0))])
def test_queue_reads_no_value(policy: Any) -> None:
    queue = at.DataOnlyMemory(4, policy)
    with no_reads.forbidden() as found:
        _, _, value, position, valid = put(found, *chunk_arrays(0))
        state = queue.init((value,))
        for _ in range(3):
            state, evicted = queue.insert(state, (value,), position=position, valid=valid)
        everything = queue.get_all(state)
    assert no_reads.reveal(everything.valid).shape == (B, 4)
    assert no_reads.reveal(evicted.valid).shape == (B, S)


@pytest.mark.parametrize(
    "read",
    [
        bool,
        int,
        float,
        list,
        np.asarray,
        lambda x: x.item(),
        lambda x: 1 in x,
        lambda x: no_reads.xp.nonzero(x),
        lambda x: x[x > 0],
        lambda x: no_reads.backend().to_numpy(x),
        lambda x: x.__setitem__(0, 1.0),
    ],
)
def test_the_wall_holds(read: Any) -> None:
    """Every way to read is refused, or the tests above would show nothing."""
    x = no_reads.backend().from_numpy(np.ones(1, dtype=np.float32))
    with pytest.raises(no_reads.ValueReadError):
        read(x)
