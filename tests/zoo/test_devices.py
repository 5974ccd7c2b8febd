"""Everything lives on the device of the parameters; no default device is ever asked for.

No accelerator is needed: PyTorch's ``meta`` device holds no numbers, so whatever lands on it by
default breaks what follows; and JAX can split the CPU into several devices.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves
from attendre_core.zoo.stream import _reader_of

ROWS = [np.random.default_rng(3).integers(2, 50, size=n).tolist() for n in (23, 11)]
SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 16,
}  # fmt: skip
#: The rows are longer than what the first was trained on.
MODELS = {
    "decoder": {**SMALL, "model_type": "llama", "num_key_value_heads": 2},
    "sliding": {
        **SMALL, "model_type": "gemma3_text", "num_key_value_heads": 2, "head_dim": 8,
        "sliding_window": 6, "sliding_window_pattern": 2,
    },
    "encoder": {**SMALL, "model_type": "modernbert"},
    "learned": {**SMALL, "model_type": "bert"},
    "encoder-decoder": {
        "model_type": "t5", "vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 40,
        "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0,
    },
    "translator": {
        "model_type": "marian", "vocab_size": 50, "d_model": 32, "encoder_layers": 1,
        "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "pad_token_id": 1,
    },
}  # fmt: skip
DECODERS = ("decoder", "sliding")
ENCODERS = ("encoder", "learned")
CASES = [
    *((kind, memory) for kind in MODELS for memory in (None, "LFA-0")),
    *((kind, "attendre-causal") for kind in DECODERS),
    *(("decoder", memory) for memory in ("H2O", "TOVA", "LRU", "LRA-max+k=3")),
    *(("decoder", memory) for memory in ("LagKV", "R-KV", "Leverage", "ExpectedAttention")),
]


def memory_of(name):
    """A small memory, with waiting queries where the paper has them."""
    waiting = {"q_size": 4} if name == "LFA-0" else {}
    return None if name is None else at.preset(name, kv_size=8, chunk=4, **waiting)


def arrays_of(stream):
    """Everything that a stream keeps."""
    return tree_leaves(stream._arrays)


def everything(folder, kind, memory, library, device, tmp_path):
    """Load, read, write, save and restore; return all numbers, and all arrays that were seen."""
    model = at.load(folder, memory=memory, backend=library, device=device)
    seen = [*tree_leaves(model.params), model.encode(ROWS)]
    results = []
    if kind not in ENCODERS:
        seen.append(model.logits(ROWS))
        results += [model.generate(ROWS, 4), model.generate(ROWS, 3, beams=2)]
    if kind in DECODERS or memory is not None:
        stream = model.stream(2)
        stream.feed([ROWS[0][:13], ROWS[1][:9]])
        stream.save(tmp_path / "stream.safetensors")
        again = model.restore(tmp_path / "stream.safetensors")
        for each in (stream, again):
            each.feed([ROWS[0][13:], ROWS[1][9:]])
            seen += [hidden.x for hidden in each.finish()]
            if kind not in ENCODERS:
                seen.append(each.next_logits())
                results.append(each.generate(3))
            seen += arrays_of(each)
    return results, seen


@pytest.mark.parametrize(("kind", "memory"), CASES)
def test_torch_makes_nothing_on_its_default_device(kind, memory, made_up, tmp_path):
    torch = pytest.importorskip("torch")
    folder, memory = made_up(MODELS[kind]), memory_of(memory)
    want, plain = everything(folder, kind, memory, "torch", None, tmp_path)
    torch.set_default_device("meta")
    try:
        got, seen = everything(folder, kind, memory, "torch", "cpu", tmp_path)
    finally:
        torch.set_default_device(None)
    assert got == want
    assert {array.device for array in seen} == {torch.device("cpu")}
    assert all(torch.equal(a, b) for a, b in zip(seen, plain, strict=True))


@pytest.mark.parametrize("memory", [None, "attendre-causal"])
def test_a_model_without_numbers_reads_a_chunk(memory, made_up):
    torch = pytest.importorskip("torch")
    model = at.load(made_up(MODELS["decoder"]), memory_of(memory), backend="torch", device="meta")
    reader = _reader_of(model, None)
    tokens = np.asarray([ROWS[0][:4]])
    position, valid = np.arange(4, dtype=np.int32)[None], np.ones((1, 4), dtype=bool)
    states = reader.start(1)
    for _ in range(3):
        states, hidden = reader.read(states, tokens, position, valid)
        position = position + 4
    assert hidden.x.shape == (1, 4, 32)
    assert {a.device for a in tree_leaves((model.params, states, hidden))} == {torch.device("meta")}


def test_transformers_models_stay_where_they_are(randomised, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    import attendre_torch

    config = transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 2})
    theirs = randomised(transformers.LlamaForCausalLM(config))
    want = attendre_torch.from_transformers(theirs, "attendre-causal:8").generate(ROWS, 4)
    torch.set_default_device("meta")
    try:
        model = attendre_torch.from_transformers(theirs, "attendre-causal:8")
        assert model.generate(ROWS, 4) == want
    finally:
        torch.set_default_device(None)


# ---------------------------------------------------------------- several devices of JAX


ON_SECOND = """
import json, sys
from pathlib import Path
import jax
from test_devices import everything, memory_of
folder, kind, memory, tmp_path = json.loads(sys.argv[1])
place = Path(tmp_path)
second = jax.devices("cpu")[1]
got, seen = everything(folder, kind, memory_of(memory), "jax", "cpu:1", place)
odd = [a.shape for a in seen if a.devices() != {second}]
assert not odd, odd
assert got == everything(folder, kind, memory_of(memory), "numpy", "cpu", place)[0]
"""


@pytest.mark.parametrize(
    ("kind", "memory"),
    [
        ("decoder", "attendre-causal"),
        pytest.param("decoder", None, marks=pytest.mark.thorough),
        pytest.param("encoder", "LFA-0", marks=pytest.mark.thorough),
        pytest.param("encoder-decoder", "LFA-0", marks=pytest.mark.thorough),
    ],
)
def test_jax_keeps_everything_on_the_device(kind, memory, made_up, tmp_path):
    pytest.importorskip("jax")
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    given = json.dumps([str(made_up(MODELS[kind])), kind, memory, str(tmp_path)])
    ended = subprocess.run(
        [sys.executable, "-c", ON_SECOND, given],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]


# ---------------------------------------------------------------- names of devices


@pytest.mark.parametrize(
    ("library", "device", "message"),
    [
        ("numpy", "cuda", r"device is 'cuda', expected 'cpu': NumPy computes nowhere else"),
        ("array_api_strict", "cuda", r"device is 'cuda', expected 'cpu'"),
        ("torch", "nowhere", r"device is 'nowhere', expected one that PyTorch has here"),
        ("torch", "cuda:99", r"device is 'cuda:99', expected one that PyTorch has here"),
        ("torch", 1.5, r"device is 1.5, expected one that PyTorch has here"),
        ("jax", "nowhere", r"device is 'nowhere', expected one that JAX has here: "),
        ("jax", "cpu:99", r"device is 'cpu:99', expected one that JAX has here: "),
        ("jax", "cpu:x", r"device is 'cpu:x', expected one that JAX has here: "),
    ],
)
def test_devices_that_are_not_there_are_refused(library, device, message, made_up):
    pytest.importorskip(library)
    with pytest.raises(at.ConfigError, match=message):
        at.load(made_up(MODELS["decoder"]), backend=library, device=device)


def test_a_device_may_be_the_librarys_own(made_up, library):
    folder = made_up(MODELS["decoder"])
    own = {"numpy": lambda: "cpu", "torch": lambda: pytest.importorskip("torch").device("cpu"),
           "jax": lambda: pytest.importorskip("jax").devices("cpu")[0]}[library]()  # fmt: skip
    one, other = (at.load(folder, backend=library, device=d) for d in (own, "cpu"))
    assert one.device == other.device
    assert one.device == one.backend.device_of(one.encode(ROWS[0]))
