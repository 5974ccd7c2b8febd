"""Tiers inside layers, stacks and models, and the systems that are made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation import load_tiny

BATCH, SEQ, HEADS, KV_HEADS, DIM = 2, 8, 4, 2, 8
KV, T = at.KeyValueMemory, at.Tier


def chunks(count: int, seed: int = 0) -> list[at.Chunk]:
    rng = np.random.default_rng(seed)

    def numbers(heads: int) -> Any:
        return rng.standard_normal((BATCH, SEQ, heads, DIM)).astype(np.float32)

    return [at.Chunk(numbers(HEADS), numbers(KV_HEADS), numbers(KV_HEADS)) for _ in range(count)]


def run(layer: at.AttendreLayer, some: list[at.Chunk], **params: Any) -> tuple[Any, list[Any]]:
    state = layer.init(batch=BATCH, heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, chunk=SEQ)
    outputs = []
    for chunk in some:
        state, out = layer.step(state, chunk, **params)
        outputs.append(out)
    return state, outputs


def attention(query: Any, key: Any, value: Any) -> Any:
    """Softmax attention of one query over (n, dim) keys and values, in float64."""
    logits = np.asarray(key, np.float64) @ np.asarray(query, np.float64) / np.sqrt(DIM)
    weight = np.exp(logits - logits.max())
    weight = weight / weight.sum()
    return weight @ np.asarray(value, np.float64), weight


# ------------------------------------------------------------------ Compressive Transformer


def compressive_transformer(
    some: list[at.Chunk], compress: str, rate: int, cached: int, kept: int, weights: Any = None
) -> list[Any]:
    """The system in plain loops: a cache, what leaves it is compressed into a second cache.

    A segment sees the compressed memories, the cache and itself up to its own position. Then it
    enters the cache, and what no longer fits is compressed: the mean, the maximum, or a
    convolution of stride ``rate``.
    """
    outputs = []
    caches: list[Any] = [[[] for _ in range(KV_HEADS)] for _ in range(BATCH)]
    packed: list[Any] = [[[] for _ in range(KV_HEADS)] for _ in range(BATCH)]
    for chunk in some:
        out = np.zeros((BATCH, SEQ, HEADS, DIM))
        for b in range(BATCH):
            # What does not fit any more leaves the cache, in order.
            for g in range(KV_HEADS):
                cache = caches[b][g]
                old = cache[: max(len(cache) - cached, 0)]
                caches[b][g] = cache[len(old) :]
                groups = [old[i : i + rate] for i in range(0, len(old), rate)]
                for group in groups:
                    keys = np.stack([entry[0] for entry in group])
                    values = np.stack([entry[1] for entry in group])
                    if compress == "mean":
                        new = keys.mean(0), values.mean(0)
                    elif compress == "max":
                        new = keys.max(0), values.max(0)
                    else:
                        new = (
                            sum(k @ w for k, w in zip(keys, weights["key"][g], strict=True)),
                            sum(v @ w for v, w in zip(values, weights["value"][g], strict=True)),
                        )
                    packed[b][g].append(new)
                packed[b][g] = packed[b][g][-kept:]
                own = list(zip(chunk.key[b, :, g], chunk.value[b, :, g], strict=True))
                for i in range(SEQ):
                    seen = [*packed[b][g], *caches[b][g], *own[: i + 1]]
                    keys, values = (np.stack([entry[n] for entry in seen]) for n in (0, 1))
                    for h in range(g * HEADS // KV_HEADS, (g + 1) * HEADS // KV_HEADS):
                        out[b, i, h] = attention(chunk.query[b, i, h], keys, values)[0]
                caches[b][g] = caches[b][g] + own
        outputs.append(out)
    return outputs


@pytest.mark.parametrize("compress", ["mean", "max", "conv"])
def test_compressive_transformer_is_its_formula(compress: str) -> None:
    """A Transformer-XL cache whose evicted entries are compressed into a second one."""
    rate, cached, kept = 4, 16, 3
    how = {"mean": at.MeanPool(rate), "max": at.MaxPool(rate), "conv": at.Convolution(rate)}
    memory = at.Tiers(KV(cached, at.FIFO(), present="visible"), T(KV(kept), compress=how[compress]))
    weights = {
        name: (np.random.default_rng(n).standard_normal((KV_HEADS, rate, DIM, DIM)) / 4).astype(
            np.float32
        )
        for n, name in enumerate(("key", "value"))
    }
    params = None
    if compress == "conv":
        params = memory.parameters(HEADS, DIM)._replace(compress=(weights,))
    some = chunks(7)
    layer = at.AttendreLayer(memory, causal=True)
    _, outputs = run(layer, some, policy_params=params)
    want = compressive_transformer(some, compress, rate, cached, kept, weights)
    for got, expected in zip(outputs, want, strict=True):
        np.testing.assert_allclose(got.value, expected, atol=2e-5)


def test_most_used_keeps_what_got_attention() -> None:
    """Of the entries that leave the cache, those with the largest sum of weights are kept."""
    memory = at.Tiers(KV(SEQ, at.Usage()), T(KV(100), compress=at.MostUsed(4)))
    state = memory.init(batch=BATCH, heads=KV_HEADS, head_dim=DIM)
    kept: list[list[int]] = [[] for _ in range(BATCH)]
    for number, chunk in enumerate(chunks(4)):
        state, _ = memory.insert(state, chunk.key, chunk.value)
        state, _ = memory.attend(state, chunk.query)
        usage = np.zeros((BATCH, SEQ))
        tier = memory.tiers(state)[1]
        for b, i, h in np.ndindex(BATCH, SEQ, HEADS):
            g = h // (HEADS // KV_HEADS)
            held = tier.valid[b]
            keys = np.concatenate([chunk.key[b, :, g], tier.key[b, g][held]])
            usage[b] += attention(chunk.query[b, i, h], keys, keys)[1][:SEQ]
        for b in range(BATCH):
            assert sorted(tier.position[b][tier.valid[b]].tolist()) == kept[b]
            best = np.argsort(-usage[b])[: SEQ // 4]
            kept[b] = sorted(kept[b] + [number * SEQ + int(i) for i in best])


def test_the_preset_is_a_compressive_transformer() -> None:
    config = at.preset("Compressive-Transformer", kv_size=64, chunk=16)
    memory = config.kv_memory()
    assert memory == at.Tiers(
        KV(32, at.FIFO(), present="visible"), T(KV(32), compress=at.MeanPool(4))
    )
    assert config.name == "Compressive-Transformer+chunk=16:64"
    assert at.preset(config.name) == config
    with pytest.raises(at.ConfigError, match="Leave some to the first"):
        at.MemoryConfig(at.FIFO(), 32, tiers=(T(KV(32)),))


# ------------------------------------------------------------------ gates


def test_gate_mixes_local_attention_and_memory() -> None:
    """LongMem's and Memorizing Transformer's gate, with the memory on the device and a top K."""
    top_k, some = 3, chunks(4, seed=2)
    memory = at.Tiers(KV(SEQ), T(KV(2 * SEQ), top_k=top_k), read=at.Gate())
    gate = np.asarray([-2.0, 0.0, 1.0, 3.0], dtype=np.float32)
    params = memory.parameters(HEADS, DIM)._replace(gate=gate)
    _, outputs = run(at.AttendreLayer(memory, causal=True), some, policy_params=params)
    for number, chunk in enumerate(some):
        before = some[max(number - 2, 0) : number]
        for b, i, h in np.ndindex(BATCH, SEQ, HEADS):
            g, query = h // (HEADS // KV_HEADS), chunk.query[b, i, h]
            want = attention(query, chunk.key[b, : i + 1, g], chunk.value[b, : i + 1, g])[0]
            if before:
                keys = np.concatenate([one.key[b, :, g] for one in before])
                values = np.concatenate([one.value[b, :, g] for one in before])
                best = np.argsort(-(keys @ query))[:top_k]
                share = 1 / (1 + np.exp(-gate[h]))
                far = attention(query, keys[best], values[best])[0]
                want = share * far + (1 - share) * want
            np.testing.assert_allclose(outputs[number].value[b, i, h], want, atol=2e-5)


def test_a_gate_learns() -> None:
    """Gradients reach the gate and the compressor."""
    torch = pytest.importorskip("torch")
    memory = at.Tiers(KV(SEQ), T(KV(SEQ), compress=at.Convolution(2)), read=at.Gate())
    params = memory.parameters(HEADS, DIM, kv_heads=KV_HEADS, xp="torch")
    learned = [params.gate, *params.compress[0].values()]
    for x in learned:
        x.requires_grad_()
    state = memory.init(batch=BATCH, heads=KV_HEADS, head_dim=DIM, xp="torch")
    for chunk in chunks(3):
        query, key, value = (torch.asarray(x) for x in chunk[:3])
        state, _ = memory.insert(state, key, value, policy_params=params)
        state, output = memory.attend(state, query, policy_params=params)
    output.square().sum().backward()
    assert all(x.grad is not None and float(x.grad.abs().sum()) > 0 for x in learned)


# ------------------------------------------------------------------ layers and stacks


def test_a_layer_hands_out_what_it_evicts() -> None:
    some = chunks(4)
    asks = at.AttendreLayer(KV(12), evicted=True)
    _, outputs = run(asks, some)
    gone = [p for out in outputs for p in out.evicted.position[0][out.evicted.valid[0]].tolist()]
    assert sorted(gone) == list(range(4 * SEQ - 12))
    _, silent = run(at.AttendreLayer(KV(12)), some)
    assert all(out.evicted is None for out in silent)
    tiers = at.AttendreLayer(at.Tiers(KV(8), T(KV(4))), evicted=True)
    _, outputs = run(tiers, some)
    again = [p for out in outputs for p in out.evicted.position[0][out.evicted.valid[0]].tolist()]
    assert sorted(again) == sorted(gone)


def test_a_trace_tells_what_left_the_last_tier() -> None:
    """The reasons and thresholds are those of the last tier, also where it refuses an entry."""
    some = chunks(6)
    trace, whole = at.Trace(), at.Trace()
    tiers = at.Tiers(KV(9), T(KV(8)))
    for record, memory in ((trace, tiers), (whole, KV(17))):
        for out in run(at.AttendreLayer(memory, trace=True), some)[1]:
            record.add(out.trace)
    left = [(e.position, e.step, e.reason) for e in trace.evictions()]
    assert sorted(left) == sorted((e.position, e.step, e.reason) for e in whole.evictions())
    assert len(left) == 6 * SEQ - 17
    assert trace.survival() == whole.survival()
    picky = at.Trace()
    ranked = at.Tiers(KV(9, at.LRU()), T(KV(4, at.LRA("sum"))))
    layer = at.AttendreLayer(ranked, trace=True)
    state, _ = run(layer, some[:5])
    after, out = layer.step(state, some[5])
    picky.add(out.trace)
    kept = ranked.tiers(after.kv)[1]
    assert picky.evictions()
    for eviction in picky.evictions():
        assert eviction.position not in kept.position[0][kept.valid[0]]
        assert eviction.score <= eviction.threshold


def test_entries_beside_tiers_are_in_the_softmax() -> None:
    """As beside one memory of the same entries; so a probe's own tokens see each other."""
    some, (asked, *_) = chunks(4), chunks(1, seed=9)
    layers = [
        at.AttendreLayer(memory, encoding=at.RoPE(), causal=True)
        for memory in (at.Tiers(KV(20), T(KV(12))), KV(32))
    ]
    answers = []
    for layer in layers:
        state, _ = run(layer, some)
        answers.append(layer.probe(state, *asked[:3])[1])
    np.testing.assert_allclose(answers[0], answers[1], atol=2e-6)


def test_waiting_queries_attend_to_tiers() -> None:
    """FIFO tiers are one memory of their sum, also for queries that wait, flushed or drained."""
    some = chunks(5)
    q_memory = at.DataOnlyMemory(6)
    layers = [
        at.AttendreLayer(memory, q_memory, encoding=at.RoPE())
        for memory in (at.Tiers(KV(10), T(KV(9))), KV(19))
    ]
    (state, outputs), (state2, outputs2) = (run(layer, some) for layer in layers)
    rest = [layers[0].flush(state)[1], layers[0].drain(state, 2)[1], layers[1].flush(state2)[1]]
    for got, want in zip([*outputs, rest[0], rest[1]], [*outputs2, rest[2], rest[2]], strict=True):
        np.testing.assert_allclose(got.value, want.value, atol=2e-6)


def test_decoding_keeps_what_was_read() -> None:
    some = chunks(5)
    memory = at.Tiers(KV(10, present="visible"), T(KV(3), compress=at.MeanPool(4)))
    layer = at.AttendreLayer(memory, encoding=at.RoPE())
    state, _ = run(layer, some)
    decoder, after = layer.decoding(state, room=4)
    before = decoder.kv_memory.tiers(after.kv)
    for _ in range(6):
        one = at.Chunk(*(x[:, :1] for x in chunks(1)[0][:3]))
        after, out = decoder.step(after, one)
        assert np.isfinite(out.value).all()
    now = decoder.kv_memory.tiers(after.kv)
    for b in range(BATCH):
        for old, new in zip(before, now, strict=True):
            read, held = (set(x.position[b][x.valid[b]].tolist()) for x in (old, new))
            assert read
            assert read <= held
        assert set(now[0].position[b][now[0].valid[b]].tolist()) >= {42, 43, 44, 45}


def test_mistakes_are_explained() -> None:
    with pytest.raises(at.ConfigError, match="expected one or more"):
        at.Tiers(KV(4))
    with pytest.raises(at.ConfigError, match="present='compete'"):
        T(KV(4, present="visible"))
    with pytest.raises(at.ConfigError, match="per_head is"):
        at.Tiers(KV(4), T(KV(4, per_head=True)))
    with pytest.raises(at.ConfigError, match="cannot be traced"):
        at.AttendreLayer(at.Tiers(KV(4), T(KV(4), at.MeanPool(2))), trace=True)
    with pytest.raises(at.ConfigError, match="entry by entry"):
        T(KV(4), top_k=2, by=0)
    gated = at.Tiers(KV(4), T(KV(4)), read=at.Gate())
    one = np.ones((1, 1, 1, 4), dtype=np.float32)
    with pytest.raises(at.ConfigError, match="have no entries beside them"):
        gated.attend(gated.init(like=one), one, beside=at.Beside(one, one))
    memory = at.Tiers(KV(4), T(KV(4), compress=at.Convolution(2)))
    state = memory.init(batch=1, heads=1, head_dim=4)
    entries = np.ones((1, 9, 1, 4), dtype=np.float32)
    with pytest.raises(at.ConfigError, match="it has parameters"):
        memory.insert(state, entries, entries)
    with pytest.raises(at.StateError, match="expected a TiersState"):
        memory.insert(KV(4).init(batch=1, heads=1, head_dim=4), entries, entries)  # type: ignore[arg-type]


def test_reports_say_what_each_tier_holds() -> None:
    memory = at.Tiers(KV(4), T(KV(3)))
    state = memory.init(batch=1, heads=1, head_dim=4)
    entries = np.ones((1, 9, 1, 4), dtype=np.float32)
    state, _ = memory.insert(state, entries, entries)
    one, two = memory.reports(state)
    assert (one.used, one.inserted, one.evicted) == ((4,), (9,), (5,))
    assert (two.used, two.inserted, two.evicted) == ((3,), (5,), (2,))
    whole = memory.report(state)
    assert (whole.slots, whole.used, whole.inserted, whole.evicted) == (7, (7,), (9,), (2,))
    assert memory.nbytes(1, 1, 4) == sum(
        x.nbytes for x in (*state[:8], *state[9:14], *state.tiers[0][:4])
    )


# ------------------------------------------------------------------ models


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_model_reads_through_tiers_and_goes_on_after_saving(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    name = "Compressive-Transformer+chunk=8:32"
    model = load_tiny("prefix-lm", memory=name, backend=backend)
    tokens = np.random.default_rng(0).integers(1, 50, 90).tolist()
    stream = model.stream()
    stream.feed(tokens[:60])
    stream.save(tmp_path / "stream.safetensors")
    other = model.restore(tmp_path / "stream.safetensors")
    for one in (stream, other):
        one.feed(tokens[60:])
    one, two = (model.backend.to_numpy(x.next_logits()) for x in (stream, other))
    np.testing.assert_array_equal(one, two)
    used = stream.reports()[0]
    assert used.used[0] >= 30
    assert len(model.generate(tokens, max_new_tokens=4)) >= 1


def test_a_model_with_large_fifo_tiers_is_the_model() -> None:
    """While nothing is compressed or evicted, tiers change nothing."""
    tokens = np.random.default_rng(1).integers(1, 50, 40).tolist()
    tiers = at.MemoryConfig(at.FIFO(), 64, chunk=8, tiers=(T(KV(48)),))
    whole = at.MemoryConfig(at.FIFO(), 64, chunk=8)
    outputs = [load_tiny("prefix-lm", memory=memory).logits(tokens) for memory in (tiers, whole)]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=5e-5)
