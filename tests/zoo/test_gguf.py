"""GGUF files: the header against the gguf package, models against folders with the same weights."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo.loading import open_checkpoint
from attendre_core.zoo.loading.gguf_file import GGUFCheckpoint
from attendre_core.zoo.loading.gguf_header import read_gguf_header

gguf = pytest.importorskip("gguf")
numpy_files = pytest.importorskip("safetensors.numpy")

SIZES = {
    "vocab_size": 70, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES = {
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "gemma3": {
        "model_type": "gemma3_text", "num_hidden_layers": 7, "head_dim": 16, "sliding_window": 6,
        "query_pre_attn_scalar": 16, "rope_local_base_freq": 10000.0, "tie_word_embeddings": True,
    },
}  # fmt: skip
ROW = np.random.default_rng(0).integers(0, 70, size=23).tolist()


@pytest.fixture
def pair(made_up, writing_gguf, tmp_path):
    """A folder and a GGUF file with the same weights, exactly: the folder has what is left."""

    def make(architecture, kind="F32", more=None, **changes):
        config = {**SIZES, **FAMILIES[architecture], **changes}
        folder = made_up(config)
        tensors = numpy_files.load_file(folder / "model.safetensors")
        kept = {name: writing_gguf.as_stored(array, kind) for name, array in tensors.items()}
        numpy_files.save_file(kept, folder / "model.safetensors")
        file = writing_gguf.write_model(
            tmp_path / "model.gguf", architecture, config, tensors, kind, **(more or {})
        )
        return folder, file

    return make


def logits(path, library="numpy"):
    model = at.load(path, backend=library)
    return np.asarray(model.backend.to_numpy(model.logits(ROW)))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_architecture_equals_the_folder(architecture, pair, library):
    folder, file = pair(architecture)
    difference = np.abs(logits(file, library) - logits(folder)).max()
    assert difference <= 1e-4 * np.abs(logits(folder)).max()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_kind_of_numbers_equals_the_folder(kind, pair):
    folder, file = pair("llama", kind)
    assert np.abs(logits(file) - logits(folder)).max() <= 1e-5 * np.abs(logits(folder)).max()


def test_biases_are_turned_with_their_matrices(pair):
    folder, file = pair("llama", attention_bias=True)
    assert np.abs(logits(file) - logits(folder)).max() <= 1e-5 * np.abs(logits(folder)).max()


@pytest.mark.parametrize(
    ("scaling", "more"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}),
        (
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128},
            {"type": "yarn", "factor": 2.0, "original_context_length": 128},
        ),
        ({"rope_type": "default"}, {"type": "none"}),
    ],
)
def test_stretched_positions_are_understood(scaling, more, pair):
    metadata = {f"llama.rope.scaling.{name}": value for name, value in more.items()}
    folder, file = pair("llama", more=metadata)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_scaling": scaling}))
    assert np.abs(logits(file) - logits(folder)).max() <= 1e-5 * np.abs(logits(folder)).max()


def llama3_factors(factor, pairs, base=500000.0, trained=8192, low=1.0, high=4.0):
    """Compute what llama.cpp's converter stores: by how much each frequency is divided."""
    factors = []
    for i in range(pairs):
        wave = 2 * math.pi * base ** (i / pairs)
        if wave < trained / high:
            factors.append(1.0)
        elif wave > trained / low:
            factors.append(factor)
        else:
            smooth = (trained / wave - low) / (high - low)
            factors.append(1.0 / ((1 - smooth) / factor + smooth))
    return np.asarray(factors, np.float32)


def test_the_stored_factors_of_llama_3_are_recognised(pair, writing_gguf, tmp_path):
    config = {**SIZES, "model_type": "llama", "rope_theta": 500000.0}
    folder, _ = pair("llama", rope_theta=500000.0)
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**config, "rope_scaling": scaling}))
    tensors = numpy_files.load_file(folder / "model.safetensors")
    sizes = {name: config[name] for name in SIZES}
    file = tmp_path / "llama3.gguf"

    def write(factors):
        own_names = writing_gguf.own_name
        writing_gguf.own_name = lambda n, a: n if n == "rope_freqs.weight" else own_names(n, a)
        try:
            both = {**tensors, "rope_freqs.weight": factors}
            writing_gguf.write_model(file, "llama", sizes, both)
        finally:
            writing_gguf.own_name = own_names

    write(llama3_factors(8.0, 8))
    rope = at.load(file).architecture.rope
    assert rope == at.load(folder).architecture.rope
    assert np.abs(logits(file) - logits(folder)).max() <= 1e-5 * np.abs(logits(folder)).max()
    write(np.linspace(1, 8, 8).astype(np.float32))
    with pytest.raises(at.CheckpointError, match="not that of Llama 3"):
        at.load(file)


# ---------------------------------------------------------------- reading


def test_the_header_is_what_the_gguf_package_reads(writing_gguf, tmp_path):
    metadata = {
        "a.flag": True, "a.count": 7, "a.number": 0.25, "a.text": "äöü 🦎", "a.numbers": [1, -2, 3],
        "a.fractions": [0.5, 1.5], "a.texts": ["", "one", "zwei"], "a.flags": [True, False],
        "general.alignment": 64,
    }  # fmt: skip
    tensors = {"x": np.ones((3, 5), np.float32), "y": np.arange(64, dtype=np.float32)}
    file = writing_gguf.write_gguf(tmp_path / "some.gguf", "llama", metadata, tensors)
    header = read_gguf_header(str(file), np.fromfile(file, np.uint8))
    reader = gguf.GGUFReader(file)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            given = header.metadata[key]
            given = given.tolist() if isinstance(given, np.ndarray) else given
            assert given == field.contents()
    assert {t.name: t.data_offset for t in reader.tensors} == {
        name: place.start for name, place in header.tensors.items()
    }
    assert header.tensors["x"].shape == (3, 5)
    assert header.tensors["y"].start % 64 == 0


def test_nothing_is_dequantised_before_it_is_needed(pair, monkeypatch):
    _, file = pair("llama", "Q8_0")
    done = []
    dequantize = gguf.dequantize
    monkeypatch.setattr(gguf, "dequantize", lambda d, k: done.append(k) or dequantize(d, k))
    checkpoint, _ = open_checkpoint(file)
    assert done == []
    assert checkpoint.shape("model.layers.1.self_attn.q_proj.weight") == (64, 64)
    stored = checkpoint.read("model.layers.1.self_attn.q_proj.weight")
    assert done == []
    _, rows = next(stored.pieces(16, 32, 8))
    assert rows.shape == (8, 64)
    assert [kind.name for kind in done] == ["Q8_0"]


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_plain_numbers_share_memory_with_the_file(kind, pair):
    _, file = pair("llama", kind)
    checkpoint = GGUFCheckpoint(file)
    for part in ("v_proj", "o_proj"):
        stored = checkpoint.read(f"model.layers.0.self_attn.{part}.weight")
        assert np.shares_memory(stored.array, checkpoint._data)
    model = at.load(file, dtype="auto")
    assert model.dtype == {"F32": "float32", "F16": "float16"}[kind]


def test_the_ends_of_text_and_turn_are_read(pair):
    more = {"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eot_token_id": 9}
    _, file = pair("llama", more=more)
    assert at.load(file).end == (5, 9)


def test_a_folder_with_nothing_but_a_gguf_file_is_loaded(pair, tmp_path):
    _, file = pair("llama")
    alone = tmp_path / "alone"
    alone.mkdir()
    file.rename(alone / file.name)
    assert at.load(alone).architecture.dim == 64
