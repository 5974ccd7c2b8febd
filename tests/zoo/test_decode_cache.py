"""Writing against prepared keys: the same logits as stepping the memories, token for token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo.compiled_cache import CompiledCache
from attendre_core.zoo.decode_cache import DecodeCache
from attendre_core.zoo.writer import Memories

#: Positions beyond 20 are clamped: what was read first is far away from what is written.
LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 20, "tie_word_embeddings": True,
}  # fmt: skip
MEMORIES = {
    "roomy": at.preset("MT", kv_size=64, chunk=8),
    "evicting": at.preset("LFA-1e-3", kv_size=16, chunk=8, sigmas=0.0),
    "visible": at.preset("TOVA", kv_size=16, chunk=8),
    "per head": at.preset("attendre-causal+fixed", kv_size=16, chunk=8),
    "per head, without clamp": at.preset("attendre-causal+fixed+model", kv_size=16, chunk=8),
    "without clamp": replace(
        at.preset("LRA-sum", kv_size=16, chunk=8, sigmas=0.0), positions="model"
    ),
}
RNG = np.random.default_rng(0)
ALIKE = [RNG.integers(0, 256, size=37).tolist() for _ in range(2)]
RAGGED = [RNG.integers(0, 256, size=n).tolist() for n in (41, 9)]


def both(folder, library, memory, rows, room=12, dtype="float32"):
    """Return a writer over memories and one over a cache, after the same input."""
    model = at.load(folder, memory=memory, backend=library, dtype=dtype)
    writers = []
    for cached in (False, True):
        stream = model.stream(len(rows))
        stream.feed(rows)
        writer, _ = stream.writer(room)
        assert writer._cached
        writer._cached = cached
        writers.append(writer)
    return writers


def close(one, other, tolerance=2e-5):
    np.testing.assert_allclose(one, other, atol=tolerance * np.abs(one).max(), rtol=0)


@pytest.fixture(params=["numpy", "torch", "jax"])
def library(request):
    pytest.importorskip(request.param)
    return request.param


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("rows", [ALIKE, RAGGED], ids=["alike", "ragged"])
@pytest.mark.parametrize("name", sorted(MEMORIES))
def test_logits_are_those_of_stepped_memories(name, rows, library, made_up):
    plain, prepared = both(made_up(LLAMA), library, MEMORIES[name], rows)
    for step in range(10):
        tokens = np.asarray([7 * step % 256, 11 * step % 256])
        active = np.asarray([True, step % 4 != 3])  # a row that pauses
        want, got = plain.write(tokens, active), prepared.write(tokens, active)
        close(want[active], got[active])
    assert prepared.position.tolist() == plain.position.tolist()
    assert type(plain._layers) is Memories
    assert type(prepared._layers) is (CompiledCache if library == "jax" else DecodeCache)


@pytest.mark.thorough("jax")
def test_the_oldest_written_goes_when_the_room_is_full(library, made_up):
    memory = at.preset("MT", kv_size=16, chunk=8)
    plain, prepared = both(made_up(LLAMA), library, memory, ALIKE[:1], room=3)
    for step in range(9):
        close(*(w.write(np.asarray([step + 40]), np.asarray([True])) for w in (plain, prepared)))


@pytest.mark.parametrize("before", [0, 3])
def test_rows_are_reordered(before, library, made_up):
    plain, prepared = both(made_up(LLAMA), library, MEMORIES["evicting"], RAGGED)
    yes = np.asarray([True, True])
    for step in range(before):
        for writer in (plain, prepared):
            writer.write(np.asarray([step, step + 1]), yes)
    for writer in (plain, prepared):
        writer.reorder(np.asarray([1, 1]))
    for step in range(3):
        close(*(w.write(np.asarray([5, 6 + step]), yes) for w in (plain, prepared)))


def test_half_precision_attends_in_single_precision(made_up):
    pytest.importorskip("torch")
    args = (made_up(LLAMA), "torch", MEMORIES["evicting"], ALIKE)
    plain, prepared = both(*args, dtype="bfloat16")
    for step in range(4):
        tokens = np.asarray([step, step + 9])
        want, got = (w.write(tokens, np.asarray([True, True])) for w in (plain, prepared))
        close(want, got, tolerance=0.03)


def test_generated_entries_that_compete_are_not_prepared(made_up):
    memory = replace(at.preset("MT", kv_size=16, chunk=8), decode="inside")
    stream = at.load(made_up(LLAMA), memory=memory, backend="numpy").stream()
    stream.feed(ALIKE[0])
    writer, _ = stream.writer(4)
    writer.write(np.asarray([1]), np.asarray([True]))
    assert type(writer._layers) is Memories


def test_nothing_is_written_into_the_stream(library, made_up):
    stream = at.load(made_up(LLAMA), memory=MEMORIES["evicting"], backend=library).stream()
    stream.feed(ALIKE[0])
    first = stream.generate(8)
    assert stream.generate(8) == first


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("name", sorted(MEMORIES))
def test_probing_says_what_writing_would_say(name, library, made_up):
    (probed, written) = both(made_up(LLAMA), library, MEMORIES[name], RAGGED)
    tokens = np.asarray([[3, 1, 4], [1, 5, 0]])
    valid = np.asarray([[True, True, True], [True, True, False]])
    want = probed.probe(tokens, valid)
    for step in range(3):
        got = written.write(tokens[:, step], valid[:, step])
        close(want[valid[:, step], step], got[valid[:, step]])
    np.testing.assert_array_equal(probed.probe(tokens, valid), want)
    with pytest.raises(at.StateError, match="before the first one is written"):
        written.probe(tokens, valid)
