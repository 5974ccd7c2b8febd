"""Damaged and hostile folders: a clear error, no code run, nothing large made."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attendre_core as at

pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("little_memory")
CONFIG = {
    "model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "eos_token_id": 2,
}  # fmt: skip
FUZZ = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
SIZES = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 70)


@pytest.fixture
def folder(made_up):
    return made_up(CONFIG)


def change(folder, **values):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **values}))


# ---------------------------------------------------------------- paths


def test_paths_that_are_no_checkpoints(tmp_path, refused):
    refused(tmp_path / "nothing", "no such file")
    refused(tmp_path, "config.json: cannot be read")
    for name in ("model.gguf", "model.bin", "model.safetensors", "model.txt"):
        (tmp_path / name).write_bytes(b"")
    refused(tmp_path / "model.gguf", "is empty")
    refused(tmp_path / "model.bin", "is empty")
    refused(tmp_path / "model.safetensors", "Pass the folder that it lies in")
    refused(tmp_path / "model.txt", "is no checkpoint")
    for name in ("folder.gguf", "folder.bin"):
        (tmp_path / name).mkdir()
        refused(tmp_path / name, "config.json: cannot be read")


def test_directories_in_the_place_of_files(folder, refused):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()
        refused(folder, "cannot be read|not a file|no weights|is no tokenizer")
        (folder / name).rmdir()
        if name == "config.json":
            change(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_hang(folder, refused):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    refused(folder, "is not a file")


# ---------------------------------------------------------------- configurations


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"model_type": "gpt9"}, "model_type is 'gpt9'"),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": ["llama"]}, "model_type is"),
        ({"hidden_size": -16}, "hidden_size is -16, expected a whole number"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": 10**30}, "hidden_size is 1000"),
        ({"hidden_size": 1e300}, "hidden_size is"),
        ({"hidden_size": "16"}, "hidden_size is '16'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": [16]}, "hidden_size is"),
        ({"hidden_size": 17}, "tensors do not fit"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000"),
        ({"num_hidden_layers": 3}, "layers.2.* is missing"),
        ({"vocab_size": 16_000_000}, "tensors do not fit"),
        ({"num_attention_heads": 16_000_000}, "do not fit"),
        ({"num_key_value_heads": 3}, "4 query heads and 3 K/V heads"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": -5.0}, "rope_theta is -5.0"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"rope_parameters": {"rope_type": "magic"}}, "rope_type is 'magic'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.0}}, "factor is 0.0"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2, "mscale": 3}}, "mscale is 3"),
        ({"rope_parameters": 5}, "rope_parameters: holds a int"),
        ({"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 2}}, "be rotated"),
        ({"head_dim": 3}, "do not fit"),
        ({"hidden_act": "eval(1)"}, "hidden_act is"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"eos_token_id": [[1]]}, "eos_token_id is"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by gptq"),
    ],
)
def test_configurations_that_lie(values, match, folder, refused):
    change(folder, **values)
    refused(folder, match)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[]", "holds a list"),
        ("null", "holds a NoneType"),
        ('"llama"', "holds a str"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"a":' * 100_000, "is not valid JSON"),
        ('{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}", "is not valid JSON"),
    ],
)
def test_texts_that_are_no_configuration(text, match, folder, refused):
    (folder / "config.json").write_text(text)
    refused(folder, match)


def test_a_configuration_that_is_not_text_or_too_long(folder, refused):
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    refused(folder, "is not valid JSON")
    with (folder / "config.json").open("wb") as file:
        file.truncate(2**40)  # a hole: takes no room on the disk
    refused(folder, "bytes are too many")


@FUZZ
@given(values=st.dictionaries(st.sampled_from(sorted(CONFIG)), ANYTHING | SIZES, max_size=3))
def test_any_configuration_is_loaded_or_refused(values, folder, loaded_or_refused):
    change(folder, **values)
    loaded_or_refused(folder)


@FUZZ
@given(rope=st.dictionaries(
    st.sampled_from(["rope_type", "factor", "rope_theta", "original_max_position_embeddings",
                     "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"]),
    st.sampled_from(["linear", "yarn", "llama3", "dynamic"]) | st.floats() | st.integers(-3, 300),
))  # fmt: skip
def test_any_rotation_is_finite_or_refused(rope, folder, loaded_or_refused):
    change(folder, rope_parameters=rope)
    model = loaded_or_refused(folder)
    if model is not None:
        assert np.isfinite(model.architecture.rope.frequencies(4)).all()


# ---------------------------------------------------------------- safetensors


def header_of(file):
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_header(file, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_truncated_safetensors(folder, refused):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 1, 7, 8, 20, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        refused(folder, "is damaged or no safetensors file")
    file.write_bytes(whole + b"more")
    refused(folder, "is damaged or no safetensors file")


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"data_offsets": [0, 64]}, "is damaged"),  # inside another tensor
        ({"data_offsets": [-64, 0]}, "is damaged"),
        ({"data_offsets": [2**62, 2**62 + 64]}, "is damaged"),
        ({"data_offsets": [64, 0]}, "is damaged"),
        ({"shape": [2**62, 2**62]}, "is damaged"),
        ({"shape": [-1]}, "is damaged"),
        ({"shape": ["a"]}, "is damaged"),
        ({"dtype": "pickle"}, "is damaged"),
        ({"dtype": "I32"}, "is stored as I32"),
        ({"shape": [4, 4]}, "has shape \\(4, 4\\), expected \\(16,\\)"),
    ],
)
def test_headers_that_lie(changes, match, folder, refused):
    file = folder / "model.safetensors"
    header, data = header_of(file)
    header[NORM] |= changes
    write_header(file, header, data)
    refused(folder, match)


def test_missing_tensors_are_named(folder, refused):
    from safetensors.numpy import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors[NORM]
    save_file(tensors, file)
    refused(folder, "1 of .* tensors .*model.norm.weight is missing.*Nothing was loaded")


def test_a_header_that_names_a_tensor_twice(folder, loaded_or_refused):
    file = folder / "model.safetensors"
    header, data = header_of(file)
    entry = json.dumps(header[NORM])
    text = json.dumps(header)[:-1] + f', "{NORM}": {entry}, "{NORM}": {entry}}}'
    write_header(file, text.encode(), data)
    assert loaded_or_refused(folder) is None or np.isfinite(at.load(folder).logits([1])).all()


@pytest.mark.parametrize(
    "text", [b"[" * 50_000, b"{}", b'{"a":' * 50_000, b"null", b"\xff\xff", b'{"x": 5}', b""]
)
def test_headers_that_are_none(text, folder, refused):
    write_header(folder / "model.safetensors", text, b"")
    refused(folder, "is damaged|do not fit")


def test_enormous_lengths_of_headers(folder, refused):
    for length in (2**63, 2**64 - 1, 2**40, 10**9):
        (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + b"{}" * 40)
        refused(folder, "is damaged")


@FUZZ
@given(data=st.data())
def test_any_damage_to_safetensors_is_noticed_or_harmless(data, folder, loaded_or_refused):
    file = folder / "model.safetensors"
    whole = bytearray((folder / "model.safetensors").read_bytes())
    broken = bytearray(whole)
    end = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(broken)
    try:
        loaded_or_refused(folder)
    finally:
        file.write_bytes(whole)


# ---------------------------------------------------------------- shards


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/passwd", "a/../../b.safetensors", "..", "", "sub/x.safetensors",
     "..\\x.safetensors", "x.bin", "\0.safetensors", "x" * 300 + ".safetensors", 5, None, ["a"]],
)  # fmt: skip
def test_shards_outside_of_the_folder_are_refused(name, folder, refused):
    (folder.parent / "secret.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "sub").mkdir()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    refused(folder, "in the same|not there")


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": 5}', "{"])
def test_an_index_that_is_none(index, folder, refused):
    (folder / "model.safetensors.index.json").write_text(index)
    refused(folder, "index.json")


def test_the_same_tensor_in_two_shards(folder, refused):
    content = (folder / "model.safetensors").read_bytes()
    for name in ("a", "b"):
        (folder / f"{name}.safetensors").write_bytes(content)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "another shard holds too")


# ---------------------------------------------------------------- tokenizers


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("tokenizer.json", b"", "is empty"),
        ("tokenizer.json", b"{}", "is no tokenizer"),
        ("tokenizer.json", b"[" * 100_000, "is no tokenizer"),
        ("tokenizer.json", b"\xff", "is no tokenizer"),
        ("vocab.txt", b"", "is empty"),
        ("vocab.txt", b"\xff\xfe", "cannot be read as text"),
        ("vocab.txt", b"[UNK]\n[CLS]\n", "not \\[SEP\\]"),
        ("spiece.model", b"", "is empty"),
        ("tokenizer.model", b"junk" * 50, "is no tokenizer"),
        ("source.spm", b"junk", "is no tokenizer"),
    ],
)
def test_tokenizers_that_are_none(name, content, match, folder, refused):
    pytest.importorskip("tokenizers")
    pytest.importorskip("sentencepiece")
    (folder / name).write_bytes(content)
    refused(folder, match)


def test_a_tokenizer_too_large_to_be_one(folder, refused):
    pytest.importorskip("tokenizers")
    with (folder / "tokenizer.json").open("wb") as file:
        file.truncate(2**40)  # a hole: takes no room on the disk
    refused(folder, "too many for a tokenizer")


# ---------------------------------------------------------------- numbers that are none


@pytest.mark.parametrize("memory", [None, "MT:8", "LFU:8"])
def test_weights_that_are_no_numbers_write_nothing(folder, memory):
    """Not the token 0, which is the place of the largest among NaN."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = np.nan
    save_file(tensors, folder / "model.safetensors")
    model = at.load(folder, memory)
    for how in ({}, {"temperature": 1.0, "top_k": 3}, {"beams": 2}):
        with pytest.raises(at.errors.NonFiniteError, match="no token can be chosen"):
            model.generate([[1, 2, 3]], **how)
