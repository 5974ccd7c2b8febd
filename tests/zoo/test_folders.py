"""Folders: shards, dtypes, pickles, tied weights, ends of text, shared memory, a progress bar."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend
from attendre_core.checks import dtype_name
from attendre_core.tree import tree_leaves
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.loading import open_checkpoint
from attendre_core.zoo.loading.checkpoint import load_parameters

numpy_files = pytest.importorskip("safetensors.numpy")

CONFIG = {
    "model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
ROWS = [np.random.default_rng(3).integers(0, 50, size=n).tolist() for n in (30, 11)]
EMBEDDING = "model.embed_tokens.weight"


def in_numpy(model, array):
    return np.asarray(model.backend.to_numpy(array))


def tensors_of(folder):
    return numpy_files.load_file(folder / "model.safetensors")


def store_as(folder, dtype, keep=()):
    """Rewrite the weights of a folder in another dtype, but for some."""
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    kind = getattr(torch, dtype)
    content = {
        name: torch.from_numpy(array) if name.endswith(keep) else torch.from_numpy(array).to(kind)
        for name, array in tensors_of(folder).items()
    }
    save_file(content, folder / "model.safetensors")


# ---------------------------------------------------------------- shards and names


def test_shards_equal_one_file(made_up, library):
    folder = made_up(CONFIG)
    whole = at.load(folder, backend=library)
    want = in_numpy(whole, whole.logits(ROWS))
    tensors = tensors_of(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    index = {}
    for number in range(3):
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        part = {name: tensors[name] for name in names[number::3]}
        numpy_files.save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
    )
    split = at.load(folder, backend=library)
    assert np.array_equal(in_numpy(split, split.logits(ROWS)), want)


def test_tied_weights_may_be_missing_or_there(made_up):
    folder = made_up({**CONFIG, "tie_word_embeddings": True})
    tensors = tensors_of(folder)
    assert "lm_head.weight" not in tensors
    model = at.load(folder)
    want = np.asarray(model.logits(ROWS))
    assert model.parameter_count == sum(array.size for array in tensors.values())
    unused = {"lm_head.weight": np.zeros((50, 32), np.float32), "some.buffer": np.arange(3)}
    numpy_files.save_file(tensors | unused, folder / "model.safetensors")
    assert np.array_equal(np.asarray(at.load(folder).logits(ROWS)), want)


def test_the_only_safetensors_file_may_have_any_name(made_up):
    folder = made_up(CONFIG)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert at.load(folder).parameter_count > 0


@pytest.mark.parametrize(
    ("own", "beside", "want"),
    [(7, None, (7,)), (7, 9, (9,)), ([7, 8], None, (7, 8)), (7, [9, 3], (9, 3)), (None, None, ())],
)
def test_the_tokens_that_end_a_text(own, beside, want, made_up):
    folder = made_up({**CONFIG, "eos_token_id": own})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": beside}))
    assert at.load(folder).end == want


# ---------------------------------------------------------------- dtypes


NARROW = ("float32", "float16", "bfloat16")
#: JAX compiles for every dtype anew, so it gets those that are not asked for by name.
DTYPES = [
    *((library, stored, asked)
      for library in ("numpy", "torch") for stored in NARROW for asked in (*NARROW, "auto")),
    *(("jax", stored, "auto") for stored in NARROW),
]  # fmt: skip


@pytest.mark.thorough("jax")
@pytest.mark.parametrize(("library", "stored", "asked"), DTYPES)
def test_every_dtype_becomes_what_was_asked_for(library, stored, asked, made_up):
    pytest.importorskip(library)
    folder = made_up(CONFIG)
    exact = at.load(folder)
    store_as(folder, stored)
    if library == "numpy" and asked == "bfloat16":
        with pytest.raises(at.ConfigError, match="numpy has no bfloat16"):
            at.load(folder, dtype=asked)
        return
    memory = at.preset("LFA-0", kv_size=16, q_size=4, chunk=8)
    model = at.load(folder, memory=memory, backend=library, dtype=asked)
    want = stored if asked == "auto" else asked
    want = "float32" if library == "numpy" and want == "bfloat16" else want
    assert model.dtype == want
    assert {dtype_name(leaf.dtype) for leaf in tree_leaves(model.params)} == {want}
    stream = model.stream()
    stream.feed(ROWS[0])
    assert dtype_name(stream._states[0].kv.key.dtype) == want
    hidden = stream.finish()[-1]
    assert dtype_name(hidden.x.dtype) == want
    full = model.with_memory(None)
    got, close = in_numpy(full, full.logits(ROWS[0])).astype(np.float32), exact.logits(ROWS[0])
    precision = 0.1 if "bfloat16" in (stored, asked) else 0.02
    assert np.abs(got - np.asarray(close)).max() < precision * np.abs(np.asarray(close)).max()


@pytest.mark.thorough("jax")
def test_norms_that_are_stored_wider_do_not_widen_the_rest(made_up, library):
    if library == "numpy":
        pytest.skip("NumPy reads bfloat16 as float32")
    folder = made_up(CONFIG)
    store_as(folder, "bfloat16", keep=("norm.weight",))
    memory = at.preset("MT", kv_size=16, chunk=8)
    model = at.load(folder, memory=memory, backend=library, dtype="auto")
    assert model.dtype == "bfloat16"
    assert {dtype_name(leaf.dtype) for leaf in tree_leaves(model.params)} == {"bfloat16"}
    assert len(model.generate(ROWS, 3)) == 2


@pytest.mark.parametrize("dtype", ["float8", "int8", 3])
def test_other_dtypes_are_refused(dtype, made_up):
    with pytest.raises(at.ConfigError, match="expected one of float32"):
        at.load(made_up(CONFIG), dtype=dtype)


# ---------------------------------------------------------------- shared memory


def addresses(array):
    start = array.__array_interface__["data"][0]
    return range(start, start + array.nbytes)


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_parameters_share_memory_with_the_file(stored, made_up):
    torch = pytest.importorskip("torch")
    folder = made_up(CONFIG)
    store_as(folder, stored)
    checkpoint, _ = open_checkpoint(folder)
    architecture = architecture_of(checkpoint.config)
    for library in ("numpy", "torch"):
        params, _ = load_parameters(
            checkpoint, architecture, backend(library), "auto", progress=False
        )
        mapped = checkpoint.read(EMBEDDING).array
        assert isinstance(mapped.base.base, np.memmap) or isinstance(mapped.base, np.memmap)
        if library == "torch":
            embedding = params["embedding"]
            assert embedding.dtype == getattr(torch, stored)
            assert embedding.data_ptr() == addresses(mapped).start
        elif stored == "float32":
            assert np.shares_memory(params["embedding"], mapped)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_model_never_changes_its_file(library, made_up):
    pytest.importorskip(library)
    folder = made_up(CONFIG)
    before = (folder / "model.safetensors").read_bytes()
    model = at.load(folder, memory=at.preset("LRA-max", kv_size=12, chunk=4), backend=library)
    model.generate(ROWS, 4)
    if library == "numpy":
        model.params["embedding"][:] = 0.0
    assert (folder / "model.safetensors").read_bytes() == before


# ---------------------------------------------------------------- PyTorch's own files


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pickle_of_plain_weights_is_read(zipped, dtype, made_up):
    torch = pytest.importorskip("torch")
    folder = made_up(CONFIG)
    kind = getattr(torch, dtype)
    content = {name: torch.from_numpy(a).to(kind) for name, a in tensors_of(folder).items()}
    want = at.load(folder, backend="torch", dtype="auto")
    torch.save(
        {**content, "count": torch.tensor(3)},
        folder / "pytorch_model.bin",
        _use_new_zipfile_serialization=zipped,
    )
    (folder / "model.safetensors").unlink()
    model = at.load(folder, backend="torch", dtype="auto")
    assert model.dtype == dtype
    assert torch.equal(model.params["embedding"], want.params["embedding"].to(kind))


def test_sharded_pickles_are_read(made_up):
    torch = pytest.importorskip("torch")
    folder = made_up(CONFIG)
    want = np.asarray(at.load(folder).logits(ROWS))
    names, tensors = sorted(tensors_of(folder)), tensors_of(folder)
    index = {}
    for number in range(2):
        file = f"pytorch_model-{number}.bin"
        torch.save({n: torch.from_numpy(tensors[n]) for n in names[number::2]}, folder / file)
        index |= dict.fromkeys(names[number::2], file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "model.safetensors").unlink()
    assert np.array_equal(np.asarray(at.load(folder).logits(ROWS)), want)


# ---------------------------------------------------------------- progress


LOADING = "import sys, attendre_core as at; at.load(sys.argv[1])"


def test_a_bar_is_shown_when_asked_for(made_up, capsys):
    pytest.importorskip("tqdm")
    folder = made_up(CONFIG)
    at.load(folder)
    at.load(folder, progress=False)
    assert capsys.readouterr().err == ""
    at.load(folder, progress=True)
    assert "loading" in capsys.readouterr().err


def test_a_bar_is_shown_on_a_terminal(made_up):
    pytest.importorskip("tqdm")
    pty = pytest.importorskip("pty")
    termios, fcntl = pytest.importorskip("termios"), pytest.importorskip("fcntl")
    screen, terminal = pty.openpty()
    size = struct.pack("4H", 24, 80, 0, 0)  # a bar needs room to be drawn in
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    os.set_blocking(screen, False)
    program = [sys.executable, "-c", LOADING, str(made_up(CONFIG))]
    ended = subprocess.run(program, stderr=terminal, stdout=subprocess.PIPE, check=True)
    shown = os.read(screen, 100_000).decode()
    os.close(terminal)
    os.close(screen)
    assert "loading" in shown
    assert ended.stdout == b""
