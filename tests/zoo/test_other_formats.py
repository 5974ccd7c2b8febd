"""Files and folders of formats that are not read: named, with what to do instead."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

import attendre_core as at

CONFIG = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 40,
}  # fmt: skip
#: Sizes of a model of llama2.c: dim, hidden, layers, heads, kv_heads, vocabulary, context.
LLAMA2C = (16, 24, 1, 2, 2, 300, 8)


def write_llama2c(file):
    dim, hidden, layers, heads, _, vocabulary, context = LLAMA2C
    count = vocabulary * dim + layers * (2 * dim + 4 * dim * dim + 3 * dim * hidden) + dim
    numbers = np.ones(count + context * dim // heads, "<f4")
    file.write_bytes(struct.pack("<7i", *LLAMA2C) + numbers.tobytes())
    return file


def marian(names=("Wemb", "decoder_Wemb_def_trans_b")):
    """Return the beginning of a binary file of Marian: version, headers, names, ..."""
    headers = b"".join(struct.pack("<4Q", len(name) + 1, 0x104, 2, 256) for name in names)
    texts = b"".join(name.encode() + b"\0" for name in names)
    return struct.pack("<2Q", 1, len(names)) + headers + texts + bytes(1024)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.onnx", b"\x08\x07", r"model\.onnx: is an ONNX file.*config\.json beside it"),
        ("model.ONNX", b"\x08\x07", r"is an ONNX file"),
        ("model.npz", b"PK\x03\x04", r"as Marian writes them.*convert_marian_to_pytorch"),
        ("tf_model.h5", b"", r"weights of TensorFlow.*exported from"),
        ("flax_model.msgpack", b"", r"weights of Flax.*exported from"),
        ("consolidated.00.pth", b"PK", r"a pickle of PyTorch.*Hugging Face version"),
        ("model.bin", marian(), r"a model of Marian, such as those of Bergamot.*Load an OPUS-MT"),
        ("pytorch_model.bin", b"PK\x03\x04" + bytes(99), r"PyTorch file. Pass the folder"),
        ("model.bin", b"\x80\x02" + bytes(99), r"a pickle, which is never opened"),
        ("model.bin", b"24ka" + bytes(99), r"version 1 or later. Export it as version 0"),
        ("model.safetensors", b"", r"weights alone. Pass the folder that it lies in"),
        ("model.txt", b"", r"is no checkpoint that can be loaded, expected a folder with config"),
    ],
)
def test_files_are_named(name, content, message, tmp_path, refused):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, message)


@pytest.mark.parametrize("configured", [True, False])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("other.onnx", b"", r"other\.onnx: is an ONNX file .* pass the path of the file"),
        ("onnx/model_quantized.onnx", b"", r"model_quantized\.onnx: is an ONNX file"),
        ("tf_model.h5", b"", r"weights of TensorFlow"),
        ("model.intgemm.bin", marian(), r"model\.intgemm\.bin: is a model of Marian"),
        ("adapter_config.json", b"{}", r"adapter \(LoRA\), not a model.*merge_and_unload"),
    ],
)
def test_folders_with_nothing_else_are_named(name, content, message, configured, tmp_path, refused):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    if configured:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    refused(tmp_path, message)


def test_an_onnx_file_beside_the_weights_is_no_matter(made_up):
    folder = made_up(CONFIG)
    (folder / "model.onnx").write_bytes(b"")
    assert at.load(folder).architecture.dim == 16


def test_a_folder_with_a_llama2c_file_is_loaded(tmp_path):
    file = write_llama2c(tmp_path / "stories.bin")
    pieces = b"".join(struct.pack("<fi", 0.0, 1) + bytes([97 + i % 26]) for i in range(300))
    (tmp_path / "tok300.bin").write_bytes(struct.pack("<i", 1) + pieces)
    model = at.load(tmp_path)
    assert np.array_equal(model.logits([1, 2, 3]), at.load(file).logits([1, 2, 3]))
    assert model.tokenizer is not None


def test_a_folder_with_several_models_asks_for_one(tmp_path, refused):
    write_llama2c(tmp_path / "small.bin")
    write_llama2c(tmp_path / "large.bin")
    refused(tmp_path, r"holds 2 models: large\.bin, small\.bin\. Pass the path of one of them")
    (tmp_path / "third.gguf").write_bytes(b"")
    refused(tmp_path, r"holds 3 models: large\.bin, small\.bin, third\.gguf")


def test_a_folder_without_anything_says_what_was_expected(tmp_path, refused):
    refused(tmp_path, r"config\.json: cannot be read.*expected a folder with config\.json")
