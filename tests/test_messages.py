"""Mistakes that users make, and the words of the messages that tell them what to do."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at

#: What a call gets: a folder with a model (`byte_llama`), and an empty one.
Folders = tuple[Path, Path]
#: Sizes of a model of llama2.c: dim, hidden, layers, heads, kv_heads, vocabulary, context.
LLAMA2C = (16, 24, 1, 2, 2, 300, 8)


# ---------------------------------------------------------------- layouts of arrays


def _memory() -> tuple[at.KeyValueMemory, Any]:
    memory = at.KeyValueMemory(8, at.LFA())
    return memory, memory.init(batch=2, heads=4, head_dim=16)


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def insert(*shape: int) -> Callable[[Folders], object]:
    def call(_: Folders) -> object:
        memory, state = _memory()
        return memory.insert(state, _ones(*shape), _ones(*shape))

    return call


def attend(*shape: int) -> Callable[[Folders], object]:
    def call(_: Folders) -> object:
        memory, state = _memory()
        return memory.attend(state, _ones(*shape))

    return call


def step(*shape: int) -> Callable[[Folders], object]:
    def call(_: Folders) -> object:
        layer = at.AttendreLayer(at.KeyValueMemory(8, at.LFA()))
        state = layer.init(like=at.Chunk(*[_ones(2, 5, 4, 16)] * 3))
        return layer.step(state, at.Chunk(*[_ones(*shape)] * 3))

    return call


# ---------------------------------------------------------------- PyTorch


def _llama() -> Any:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2,
        )
    ).eval()  # fmt: skip


def adapted(_: Folders) -> object:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(_llama(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    from attendre_torch import from_transformers

    return from_transformers(model)


def quantised(_: Folders) -> object:
    torch = pytest.importorskip("torch")
    from attendre_torch import from_transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its names in PyTorch are about to change
        model = torch.ao.quantization.quantize_dynamic(_llama(), {torch.nn.Linear})
    return from_transformers(model)


def waiting(_: Folders) -> object:
    torch = pytest.importorskip("torch")
    from attendre_torch import AttendreAttention

    return AttendreAttention(32, 4, q_memory=16)(torch.randn(2, 40, 32))


def waiting_too_long(_: Folders) -> object:
    pytest.importorskip("torch")
    from attendre_torch import AttendreAttention

    return AttendreAttention(32, 4, memory=16, q_memory=16)


# ---------------------------------------------------------------- other memories


def stream(folders: Folders, now: str) -> object:
    model = at.load(folders[0], "LFA-1e-3:64")
    reading = model.stream()
    reading.feed([1, 2, 3])
    reading.save(folders[1] / "stream.safetensors")
    return model.with_memory(now).restore(folders[1] / "stream.safetensors")


def other_size(folders: Folders) -> object:
    return stream(folders, "LFA-1e-3+chunk=64:32")


def other_policy(folders: Folders) -> object:
    return stream(folders, "LFA-1e-2:64")


def cache(folders: Folders) -> object:
    from attendre_torch import AttendreCache

    model, file = _llama(), folders[1] / "cache.safetensors"
    old, new = (AttendreCache(model, f"TOVA+chunk=8:{size}") for size in (24, 32))
    model(_tokens(), past_key_values=old)
    old.save(file)
    return new.restore(file)


def _tokens() -> Any:
    torch = pytest.importorskip("torch")
    return torch.arange(1, 9)[None]


# ---------------------------------------------------------------- files


def _write_llama2c(file: Path) -> Path:
    dim, hidden, layers, heads, _, vocabulary, context = LLAMA2C
    count = vocabulary * dim + layers * (2 * dim + 4 * dim * dim + 3 * dim * hidden) + dim
    numbers = np.ones(count + context * dim // heads, "<f4")
    file.write_bytes(struct.pack("<7i", *LLAMA2C) + numbers.tobytes())
    return file


def _write_tokenizer(file: Path) -> Path:
    pieces = b"".join(struct.pack("<fi", 0.0, 4) + f"{i:4}".encode() for i in range(300))
    file.write_bytes(struct.pack("<i", 4) + pieces)
    return file


def tokenizer_for_the_model(folders: Folders) -> object:
    _write_llama2c(folders[1] / "stories.bin")
    return at.load(_write_tokenizer(folders[1] / "tok300.bin"))


def damaged_file(folders: Folders) -> object:
    file = _write_llama2c(folders[1] / "stories.bin")
    file.write_bytes(file.read_bytes()[:-4])
    _write_tokenizer(folders[1] / "tok300.bin")
    return at.load(folders[1])


def two_files(folders: Folders) -> object:
    for name in ("small", "large"):
        _write_llama2c(folders[1] / f"{name}.bin")
    return at.load(folders[1])


def marian(folders: Folders) -> object:
    names = ("Wemb", "encoder_l1_self_Wq")
    headers = b"".join(struct.pack("<4Q", len(name) + 1, 0x404, 2, 256) for name in names)
    texts = b"".join(name.encode() + b"\0" for name in names)
    content = struct.pack("<2Q", 1, len(names)) + headers + texts + bytes(1024)
    (folders[1] / "model.bin").write_bytes(content)
    return at.load(folders[1] / "model.bin")


SDPA = ["(batch, heads, seq, head_dim)", "scaled_dot_product_attention", "Transpose"]
ROWS = ["(2, any, 4, 16)", "The state has 2 rows, but 3 were passed", "init(batch=3)"]
MISTAKES: dict[str, tuple[Callable[[Folders], object], type[Exception], list[str]]] = {
    "keys in the layout of SDPA": (
        insert(2, 4, 5, 16), at.ShapeError, [*SDPA, "key.swapaxes(1, 2)"],
    ),
    "queries in the layout of SDPA": (
        attend(2, 8, 5, 16), at.ShapeError, [*SDPA, "query.swapaxes(1, 2)"],
    ),
    "a chunk in the layout of SDPA": (
        step(2, 4, 5, 16), at.ShapeError, [*SDPA, "key.swapaxes(1, 2)"],
    ),
    "keys of another batch": (insert(3, 5, 4, 16), at.ShapeError, ROWS),
    "a chunk of another batch": (step(3, 5, 4, 16), at.ShapeError, ROWS),
    "queries of another batch": (attend(3, 5, 4, 16), at.ShapeError, ROWS[1:]),
    "heads that are not split": (insert(2, 5, 64), at.ShapeError, ["Split the heads"]),
    "a model with LoRA": (
        adapted, at.CheckpointError, ["peft", "merge_and_unload()", "AttendreCache("],
    ),
    "a quantised model": (quantised, at.CheckpointError, ["is quantised", "AttendreCache("]),
    "a module with a Q memory, called": (
        waiting, at.ConfigError, ["N = 16 positions late", "run(x)", "step(x, state, carry=x)"],
    ),
    "a Q memory as large as the K/V memory": (
        waiting_too_long, at.ConfigError, ["N = 16", "M = 16, expected N < M", "Use N = 8"],
    ),
    "a stream of a memory of another size": (
        other_size, at.StateError,
        ["saved with memory.kv_size = 64 (here 32). Load the same"],
    ),
    "a stream of another policy": (
        other_policy, at.StateError,
        ["saved with memory.policy.decay = 0.001 (here 0.01). Load the same"],
    ),
    "a cache of a memory of another size": (
        cache, at.StateError, ["saved with memory.kv_size = 24 (here 32). Make the cache for"],
    ),
    "the tokenizer in place of the model": (
        tokenizer_for_the_model, at.CheckpointError, ["tok300.bin", "tokenizer", "stories.bin."],
    ),
    "a folder with a damaged file of llama2.c": (
        damaged_file, at.CheckpointError, ["stories.bin: the header asks for", "truncated"],
    ),
    "a folder with two files of llama2.c": (
        two_files, at.CheckpointError, ["large.bin, small.bin", "Pass the path of one"],
    ),
    "a file of Marian": (marian, at.CheckpointError, ["a model of Marian", "Bergamot", "OPUS-MT"]),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # peft
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_what_to_do(name: str, byte_llama: Path, tmp_path: Path) -> None:
    call, kind, words = MISTAKES[name]
    with pytest.raises(kind) as raised:
        call((byte_llama, tmp_path))
    message = str(raised.value)
    assert [part for part in words if part not in message] == [], message
    assert len(message) < 600, "the reader should find what matters"


# ---------------------------------------------------------------- what was a mistake once


def test_a_folder_with_a_file_of_llama2c_is_loaded(tmp_path: Path) -> None:
    _write_llama2c(tmp_path / "stories.bin")
    _write_tokenizer(tmp_path / "tok300.bin")
    assert at.load(tmp_path).tokenizer is not None


def test_a_small_memory_reads_small_chunks(byte_llama: Path) -> None:
    assert at.preset("attendre", kv_size=64).chunk == 64
    memory = at.preset("LFA-0", kv_size=64, chunk=128)
    reading = at.load(byte_llama, memory).stream()
    with pytest.warns(at.ChunkTooLongWarning, match="128 positions .* at most 64, or enlarge"):
        reading.feed(list(range(1, 200)))


def test_a_compiled_model_is_taken_as_it_is() -> None:
    torch = pytest.importorskip("torch")
    model = _llama()
    from attendre_torch import from_transformers

    found = from_transformers(torch.compile(model, backend="eager")).logits([1, 2, 3])
    torch.testing.assert_close(found, from_transformers(model).logits([1, 2, 3]))
