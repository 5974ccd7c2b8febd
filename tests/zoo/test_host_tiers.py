"""Models whose memories go on in host memory: as full attention, saved, copied, the device flat."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation import load_tiny
from attendre_core.tree import tree_leaves
from attendre_core.zoo.saving import read_arrays, write_arrays

LIBRARIES = ("numpy", "torch", pytest.param("jax", marks=pytest.mark.thorough))
NAME = "MT+host=200+model+chunk=8:8"


def causal_model(memory: Any, library: str = "numpy") -> at.Model:
    pytest.importorskip(library)
    model = load_tiny("prefix-lm", backend=library)
    if isinstance(memory, str):
        memory = at.preset(memory)
    return at.Model(
        model.architecture, model.params, memory=memory, library=library, attention="causal"
    )


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 60, count).tolist()


def next_of(stream: Any) -> np.ndarray:
    return np.asarray(stream.model.backend.to_numpy(stream.next_logits()))


def all_found(name: str = NAME) -> at.MemoryConfig:
    """Each query finds everything in the store."""
    config = at.preset(name)
    return replace(config, host=replace(config.host, top_k=200))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_store_that_holds_and_finds_all_is_full_attention(library: str) -> None:
    """Logits, and greedy tokens against the store, which generation leaves as it is."""
    row = tokens(100)
    model, full = causal_model(all_found(), library), causal_model(None, library)
    stream = model.stream()
    stream.feed(row)
    want = np.asarray(full.backend.to_numpy(full.logits(row)))[0]
    np.testing.assert_allclose(next_of(stream)[0], want[-1], atol=1e-4)
    assert {store.lengths for store in stream.stores} == {(92,)}
    assert stream.generate(6) == full.generate(row, 6)
    stream.feed(tokens(20, 1))
    assert {store.lengths for store in stream.stores} == {(108,)}, "four tokens wait for a chunk"
    few = causal_model("MT+model+chunk=8:8", library)
    other = few.stream()
    other.feed(row)
    assert np.abs(next_of(other)[0] - want[-1]).max() > 1e-2, "eight entries are not enough"


@pytest.mark.parametrize("decode", ["separate", "inside"])
def test_streams_and_copies_do_not_disturb_each_other(decode: str) -> None:
    """Each stream of a model opens stores of its own; generating changes nothing that was read."""
    memory = replace(all_found(), decode=decode)
    memory = replace(memory, host=replace(memory.host, store=at.HostStores(200, "least-used")))
    model = causal_model(memory)
    parts = [tokens(40, seed) for seed in range(3)]
    alone = model.stream()
    for part in parts:
        alone.feed(part)
    stream, other = model.stream(), model.stream()
    stream.feed(parts[0])
    other.feed(parts[1])
    twin = stream.copy()
    scores = [store.held(0)["score"] for store in stream.stores]
    assert len(stream.generate(12)) == 12
    for store, before in zip(stream.stores, scores, strict=True):
        np.testing.assert_array_equal(store.held(0)["score"], before)
    twin.feed(parts[2])
    for part in parts[1:]:
        stream.feed(part)
    np.testing.assert_array_equal(next_of(stream), next_of(alone))
    assert stream.stores[0].lengths == (112,)
    assert twin.stores[0].lengths == (72,)


@pytest.mark.parametrize("where", ["memory", "files"])
def test_a_saved_stream_goes_on_the_same(where: str, tmp_path: Path) -> None:
    """With deletions, two rows of different lengths, and ties, which slots decide."""
    folder = None if where == "memory" else tmp_path / "stores"
    memory = at.preset(NAME)
    memory = replace(memory, host=at.HostTier(at.HostStores(30, "least-used", folder=folder), 4))
    model = causal_model(memory)
    stream = model.stream(2)
    stream.feed([tokens(80), 3 * tokens(20, 1)])
    stream.save(tmp_path / "stream")
    again = model.restore(tmp_path / "stream")
    for one in (stream, again):
        one.feed([tokens(30, 2), tokens(50, 3)])
    np.testing.assert_array_equal(next_of(stream), next_of(again))
    for mine, its in zip(stream.stores, again.stores, strict=True):
        assert mine.lengths == its.lengths == (30, 30)
        for row in range(2):
            for name, array in mine.held(row).items():
                np.testing.assert_array_equal(array, its.held(row)[name])
    if folder:
        made = [store.folder for s in (stream, again) for store in s.stores]
        assert len(set(made)) == len(made)
        assert all((f / "key.npy").exists() for f in made)


@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_a_stream_goes_on_with_another_library(library: str, tmp_path: Path) -> None:
    stream = causal_model(NAME, library).stream()
    stream.feed(tokens(60))
    stream.save(tmp_path / "stream")
    again = causal_model(NAME).restore(tmp_path / "stream")
    for one in (stream, again):
        one.feed(tokens(20, 1))
    np.testing.assert_allclose(next_of(again), next_of(stream), atol=1e-3)
    assert [x.lengths for x in stream.stores] == [x.lengths for x in again.stores] == [(72,)] * 2


@pytest.mark.parametrize(
    "damage", ["slot", "twice", "nan", "shape", "late", "gone", "more", "none"]
)
def test_a_hostile_file_is_refused(damage: str, tmp_path: Path) -> None:
    model = causal_model(NAME)
    stream = model.stream()
    stream.feed(tokens(40))
    stream.save(tmp_path / "good")
    saved = read_arrays(tmp_path / "good")
    arrays, lead = dict(saved.arrays), "stores.0.0."
    changes: dict[str, dict[str, Any]] = {
        "slot": {"slot": arrays[lead + "slot"] + 190},
        "twice": {"slot": 0 * arrays[lead + "slot"]},
        "nan": {"key": arrays[lead + "key"] * np.float32("nan")},
        "shape": {"value": arrays[lead + "value"][:, 1:]},
        "late": {"arrival": arrays[lead + "arrival"] + 1},
    }
    if damage == "gone":
        del arrays[lead + "score"]
    elif damage == "more":
        arrays["stores.99.0.slot"] = arrays[lead + "slot"]
    elif damage == "none":
        arrays = {name: x for name, x in arrays.items() if not name.startswith("stores.0")}
    else:
        arrays |= {lead + name: x for name, x in changes[damage].items()}
    write_arrays(tmp_path / "bad", arrays, np.asarray, saved.notes)
    with pytest.raises(at.StateError, match="store"):
        model.restore(tmp_path / "bad")


def on_device(library: str) -> int:
    """Return the bytes of all arrays that a library holds on its device."""
    gc.collect()
    if library == "jax":
        import jax

        return sum(x.nbytes for x in jax.live_arrays())
    import torch

    held = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in gc.get_objects()
        if type(x) is torch.Tensor
    }
    return sum(held.values())


@pytest.mark.parametrize("library", ["torch", pytest.param("jax", marks=pytest.mark.thorough)])
def test_the_device_stays_flat_while_the_store_grows(library: str) -> None:
    """Bytes on the device after 8 chunks and after 40 are the same, all arrays counted."""
    model = causal_model("MT+host=10000+chunk=8:8", library)
    stream, sizes, states = model.stream(), [], []
    for count in (64, 256):
        stream.feed(tokens(count))
        sizes.append(on_device(library))
        states.append(sum(int(np.prod(x.shape)) for x in tree_leaves(stream._states)))
    assert stream.stores[0].lengths == (312,)
    assert states[0] == states[1]
    assert sizes[0] == sizes[1] > 0, sizes
    other = model.stream()
    assert on_device(library) > sizes[1], "the measure sees another stream's states"
    assert other.lengths == (0,)


def test_names_sizes_and_refusals() -> None:
    config = at.preset("MT+host=5000:64")
    assert config.name == "MT+host=5000:64"
    assert config == at.preset(config.name)
    assert config.host == at.HostTier(at.HostStores(5000))
    assert config != at.preset("MT:64")
    shape: dict[str, Any] = {"layers": 2, "kv_heads": 2, "head_dim": 8}
    one = config.kv_memory()
    assert one.size == 64
    assert config.nbytes(**shape) == 2 * one.nbytes(1, 2, 8)
    both = at.preset("Compressive-Transformer+compete+host=100:16").kv_memory()
    assert len(both.rest) == 1
    assert both.outside.store.capacity == 100
    with pytest.raises(at.ConfigError, match="present='compete'"):
        at.preset("attendre-causal+host=100:64")
    with pytest.raises(at.ConfigError, match="1 or more"):
        at.preset("MT+host=0:64")
    state = one.init(batch=1, heads=1, head_dim=2)
    ones = np.ones((1, 65, 1, 2), dtype=np.float32)
    with pytest.raises(at.ConfigError, match="settings of stores"):
        one.insert(state, ones, ones)
