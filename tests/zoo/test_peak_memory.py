"""Loading takes hardly more memory than the parameters, whatever has to be converted.

Peaks are those of all resident memory, pages of mapped files included, as Linux counts it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from attendre_core.tree import tree_leaves
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.config import RawConfig

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux, to measure peaks"
)

#: The embedding is a quarter of the parameters, as in small models.
CONFIG = {
    "model_type": "llama", "vocab_size": 16000, "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
    "max_position_embeddings": 512, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}  # fmt: skip

MEASURED = """
import json, re, sys
from pathlib import Path
import attendre_core as at
from attendre_core.tree import tree_leaves

def resident(kind):
    return 1024 * int(re.search(kind + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

path, tiny, library, dtype = sys.argv[1:]
at.load(tiny, backend=library, dtype=dtype, progress=False)  # what libraries need only once
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
model = at.load(path, backend=library, dtype=dtype, progress=False)
peak = resident("VmHWM")
params = {id(leaf): leaf.size * leaf.dtype.itemsize if library != "torch"
          else leaf.numel() * leaf.element_size() for leaf in tree_leaves(model.params)}
print(json.dumps([peak - before, sum(params.values())]))
"""


def tensors_of(config):
    """Random weights by name, made one at a time."""
    rng = np.random.default_rng(0)
    for tensor in tree_leaves(architecture_of(RawConfig(config, "made up")).parameters()):
        yield tensor.name, rng.standard_normal(tensor.shape, dtype=np.float32)


def in_bfloat16(array):
    torch = pytest.importorskip("torch")
    return torch.from_numpy(array).to(torch.bfloat16)


def write_shards(folder, config):
    """Write a folder in bfloat16, in two shards."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: in_bfloat16(array) for name, array in tensors_of(config)}
    index = {}
    for number in range(2):
        part = dict(list(tensors.items())[number::2])
        save_file(part, folder / f"{number}.safetensors")
        index |= dict.fromkeys(part, f"{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, writing_gguf):
    """Return the path of a checkpoint by how it is stored, ``"tiny"`` for a small one."""
    folder = tmp_path_factory.mktemp("large")
    small = {**CONFIG, "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64}

    @lru_cache
    def path(stored):
        if stored in ("bfloat16", "tiny"):
            return write_shards(folder / stored, CONFIG if stored == "bfloat16" else small)
        tensors = dict(tensors_of(CONFIG))
        file = folder / f"{stored}.gguf"
        return writing_gguf.write_model(file, "llama", CONFIG, tensors, stored)

    return path


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        ("bfloat16", "float32"),
        pytest.param("Q8_0", "float32", marks=pytest.mark.thorough("torch", "jax")),
        pytest.param("Q4_0", "float32", marks=pytest.mark.thorough),
        pytest.param("Q4_0", "float16", marks=pytest.mark.thorough),
    ],
)
def test_the_peak_is_little_more_than_the_parameters(stored, dtype, checkpoint, library):
    given = [str(checkpoint(stored)), str(checkpoint("tiny")), library, dtype]
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, *given], capture_output=True, text=True, check=True
    )
    peak, params = json.loads(ended.stdout)
    assert params > 100e6
    assert 0.95 * params <= peak <= 1.2 * params, f"{peak / params:.2f} of the parameters"
