"""Damaged and hostile GGUF and llama2.c files: a clear error, nothing large made."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attendre_core as at

pytestmark = pytest.mark.usefixtures("little_memory")
FUZZ = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SIZES = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 70)


# ---------------------------------------------------------------- llama2.c


def llama2c(sizes, extra=0):
    dim, hidden, layers, heads, kv_heads, vocabulary, context = sizes
    head = dim // heads
    each = 2 * dim + 2 * dim * dim + 2 * dim * kv_heads * head + 3 * dim * hidden
    count = abs(vocabulary) * dim * (1 + (vocabulary < 0)) + layers * each + dim + context * head
    return struct.pack("<7i", *sizes) + bytes(4 * (count + extra))


GOOD = (16, 24, 2, 4, 2, 40, 8)


def test_llama2c_files_that_lie(tmp_path, refused):
    file = tmp_path / "model.bin"
    file.write_bytes(llama2c(GOOD))
    assert at.load(file).architecture.vocabulary == 40
    for content, match in (
        (llama2c(GOOD)[:-1], "is truncated"),
        (llama2c(GOOD, 1), "is truncated"),
        (llama2c(GOOD)[:27], "has 27 bytes"),
        (struct.pack("<7i", *(-1,) * 7), "hidden_size is -1"),
        (struct.pack("<7i", *(2**31 - 1,) * 7), "hidden_size is 2147483647"),
        (struct.pack("<7i", 2**24, 2**24, 4096, 1, 1, 2**24, 2**24), "the header asks for"),
        (struct.pack("<7i", 15, 24, 2, 4, 2, 40, 8), "do not go together"),
        (struct.pack("<7i", 16, 24, 2, 4, 3, 40, 8), "do not go together"),
        (struct.pack("<7i", 16, 24, 2, 4, 2, -(2**31), 8), "vocab_size is 2147483648"),
        (b"24ka" + bytes(300), "of version 1 or later"),
        (b"PK\x03\x04" + bytes(300), "is a PyTorch file"),
    ):
        file.write_bytes(content)
        refused(file, match)


@FUZZ
@given(sizes=st.tuples(*[SIZES] * 7), length=st.integers(0, 400))
def test_any_llama2c_header_is_loaded_or_refused(sizes, length, tmp_path, loaded_or_refused):
    file = tmp_path / "model.bin"
    file.write_bytes(struct.pack("<7i", *sizes) + bytes(4 * length))
    loaded_or_refused(file)


@FUZZ
@given(content=st.binary(max_size=60))
def test_any_tokenizer_of_llama2c_is_loaded_or_refused(content, tmp_path, loaded_or_refused):
    (tmp_path / "model.bin").write_bytes(llama2c(GOOD))
    (tmp_path / "tokenizer.bin").write_bytes(content)
    loaded_or_refused(tmp_path / "model.bin")


# ---------------------------------------------------------------- GGUF


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, kind, payload):
    return text(name) + struct.pack("<I", kind) + payload


def tensor(name, shape, kind=0, offset=0):
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


def whole(keys=(), tensors=(), data=b"", version=3, counts=None):
    """Put a file together; ``counts`` may lie."""
    tensor_count, key_count = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count)
    content = head + b"".join(keys) + b"".join(tensors)
    return content + bytes(-len(content) % 32) + data


NAMED = key("general.architecture", 8, text("llama"))
UINT32, TEXT, LIST = 4, 8, 9
WIDTH = key("llama.embedding_length", UINT32, struct.pack("<I", 32))
HEADS = key("llama.attention.head_count", UINT32, struct.pack("<I", 2))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"GGUX" + bytes(60), "does not start with GGUF"),
        (b"GG", "is truncated"),
        (whole(version=1), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (whole(counts=(0, 2**63)), "claims 9223372036854775808 metadata keys"),
        (whole(counts=(2**64 - 1, 0)), "claims 18446744073709551615 tensor entries"),
        (whole([struct.pack("<Q", 2**62) + bytes(9)], counts=(0, 1)), "of 4611686018427387904"),
        (whole([key("a", TEXT, struct.pack("<Q", 2**63))]), "of 9223372036854775808 bytes"),
        (whole([key("a", LIST, struct.pack("<IQ", 5, 2**62))]), "numbers in a list"),
        (whole([key("a", LIST, struct.pack("<IQ", TEXT, 2**62))]), "values in a list"),
        (whole([key("a", LIST, struct.pack("<IQ", LIST, 1) * 9)]), "lists up to 4 deep"),
        (whole([key("a", 77, b"")]), "a value of kind 77"),
        (whole([key("a", LIST, struct.pack("<IQ", 77, 1)) + bytes(64)]), "a value of kind 77"),
        (whole([text(b"\xff\xfe") + bytes(32)], counts=(0, 1)), "not UTF-8"),
        (whole([NAMED, NAMED]), "'general.architecture' twice"),
        (whole([NAMED, key("general.alignment", UINT32, struct.pack("<I", 3))]), "power of two"),
        (whole([NAMED, key("general.alignment", UINT32, bytes(4))]), "alignment is 0"),
        (whole([NAMED, key("general.alignment", TEXT, text("x"))]), "alignment is x"),
        (whole(tensors=[tensor("x", ())], data=bytes(64)), "has 0 axes"),
        (whole(tensors=[tensor("x", (1,) * 9)], data=bytes(64)), "has 9 axes"),
        (whole(tensors=[tensor("x", (2**63, 2**63))], data=bytes(64)), "an end inside"),
        (whole(tensors=[tensor("x", (0,))], data=bytes(64)), "whole blocks"),
        (whole(tensors=[tensor("x", (8,), offset=2**62)], data=bytes(64)), "an end inside"),
        (whole(tensors=[tensor("x", (8,), offset=8)], data=bytes(64)), "offset that 32 divides"),
        (whole(tensors=[tensor("x", (8,), kind=999)], data=bytes(64)), "by kind 999"),
        (whole(tensors=[tensor("x", (5,), kind=8)], data=bytes(64)), "whole blocks of 32"),
        (whole(tensors=[tensor("x", (8,))] * 2, data=bytes(64)), "unused name"),
        (
            whole(tensors=[tensor("x", (16,)), tensor("y", (8,), offset=32)], data=bytes(64)),
            "inside another one",
        ),
        (whole(), "general.architecture is missing"),
        (whole([key("general.architecture", UINT32, bytes(4))]), "general.architecture is 0"),
        (
            whole([key("general.architecture", LIST, struct.pack("<IQ", 5, 1) + bytes(4))]),
            "general.architecture is",
        ),
        (whole([key("general.architecture", TEXT, text("mamba"))]), "is 'mamba', expected"),
        (whole([NAMED, key("split.count", 2, struct.pack("<H", 3))]), "one of 3 parts"),
        (whole([NAMED]), "embedding_length is missing"),
        (whole([NAMED, WIDTH, HEADS]), "is missing"),
        (
            whole([NAMED, WIDTH, HEADS, key("llama.rope.dimension_count", UINT32, b"\x08\0\0\0")]),
            "dimension_count is 8, expected 16",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_gguf_files_that_lie(content, match, tmp_path, refused):
    pytest.importorskip("gguf")
    (tmp_path / "model.gguf").write_bytes(content)
    refused(tmp_path / "model.gguf", match)


@pytest.fixture
def small_gguf(writing_gguf, tmp_path):
    """A whole model with a tokenizer, in a few kilobytes."""
    config = {
        "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    }  # fmt: skip
    rng = np.random.default_rng(0)
    at_layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (6, 8), "model.norm.weight": (8,),
        f"{at_layer}input_layernorm.weight": (8,), f"{at_layer}self_attn.q_proj.weight": (8, 8),
        f"{at_layer}self_attn.k_proj.weight": (4, 8), f"{at_layer}self_attn.v_proj.weight": (4, 8),
        f"{at_layer}self_attn.o_proj.weight": (8, 8),
        f"{at_layer}post_attention_layernorm.weight": (8,),
        f"{at_layer}mlp.gate_proj.weight": (8, 8), f"{at_layer}mlp.up_proj.weight": (8, 8),
        f"{at_layer}mlp.down_proj.weight": (8, 8),
    }  # fmt: skip
    tensors = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}

    def make(**more):
        values = {
            "model": "llama", "tokens": ["<s>", "a", "b", "ab", "<0x41>", "c"],
            "scores": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0], "token_type": [3, 1, 1, 1, 6, 1],
            "bos_token_id": 0, **more,
        }  # fmt: skip
        metadata = {f"tokenizer.ggml.{n}": v for n, v in values.items() if v is not None}
        file = tmp_path / "small.gguf"
        return writing_gguf.write_model(file, "llama", config, tensors, **metadata)

    return make


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": [1, 2]}, "tokens is no list of texts"),
        ({"scores": [0.0]}, "scores does not fit, expected 6 numbers"),
        ({"token_type": ["a"] * 6}, "token_type does not fit"),
        ({"token_type": [6] * 6}, "expected a byte such as"),
        ({"model": 5}, "model is 5"),
        ({"bos_token_id": 6}, "bos_token_id is 6"),
        ({"bos_token_id": None, "add_bos_token": True}, "bos_token_id is missing"),
        ({"add_bos_token": 3}, "add_bos_token is 3"),
        ({"model": "bert"}, "has 6 pieces but not"),
        ({"model": "t5", "scores": [0.0]}, "scores does not fit"),
        ({"model": "t5", "precompiled_charsmap": [1, 2, 3]}, "no tokenizer that can be read"),
        ({"model": "gpt2"}, "merges is missing"),
        ({"model": "gpt2", "merges": ["a"]}, "expected two tokens"),
        ({"model": "gpt2", "merges": ["a z"]}, "expected two tokens"),
        ({"model": "gpt2", "merges": [""]}, "expected two tokens"),
        ({"model": "gpt2", "merges": ["a b"], "pre": 3}, "pre is 3"),
    ],
)
def test_gguf_tokenizers_that_lie(values, match, small_gguf, refused):
    pytest.importorskip("tokenizers")
    refused(small_gguf(**values), match)


def test_a_gguf_file_cut_anywhere_is_refused(small_gguf, refused):
    file = small_gguf()
    assert at.load(file).tokens("abA") == [0, 5 - 2, 4]
    content = file.read_bytes()
    for length in range(0, len(content) - 32, 97):
        file.write_bytes(content[:length])
        refused(file, "truncated|is empty|claims|an end inside")


@FUZZ
@given(data=st.data())
def test_any_damage_to_a_gguf_header_is_noticed_or_harmless(data, small_gguf, loaded_or_refused):
    file = small_gguf()
    content = bytearray(file.read_bytes())
    end = content.index(b"blk.0.ffn_down.weight") + 60
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, end))
        content[place : place + 1] = data.draw(st.binary(min_size=1, max_size=2))
    file.write_bytes(content)
    loaded_or_refused(file)


@FUZZ
@given(content=st.binary(max_size=200), keys=st.integers(0, 3), tensors=st.integers(0, 3))
def test_any_bytes_behind_the_word_gguf(content, keys, tensors, tmp_path, loaded_or_refused):
    pytest.importorskip("gguf")
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + content)
    loaded_or_refused(file)
