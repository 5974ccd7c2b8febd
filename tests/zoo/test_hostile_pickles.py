"""PyTorch files that would run code, or that lie: read as plain weights or not at all."""

from __future__ import annotations

import os
import pickle

import pytest

pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("little_memory")
CONFIG = {
    "model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
NORM = "model.norm.weight"


@pytest.fixture
def folder(made_up):
    return made_up(CONFIG)


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


def test_a_pickle_that_would_run_code_does_not(folder, tmp_path, refused):
    (folder / "model.safetensors").unlink()
    mark = tmp_path / "attacked"
    bomb = pickle.dumps({"model.norm.weight": Attack(mark)})
    pickle.loads(bomb)
    assert mark.is_dir(), "the attack must be one"
    mark.rmdir()
    file = folder / "pytorch_model.bin"
    file.write_bytes(bomb)
    refused(folder, "PyTorch refuses .* Nothing of it was run")
    for zipped in (True, False):
        torch.save({"model.norm.weight": Attack(mark)}, file, _use_new_zipfile_serialization=zipped)
        refused(folder, "PyTorch refuses")
    assert not mark.exists()
    file.rename(tmp_path / "model.bin")
    refused(tmp_path / "model.bin", "pickle, which is never opened|PyTorch file")
    assert not mark.exists()


def test_pickles_that_lie_about_their_tensors(folder, refused):
    from safetensors.numpy import load_file

    tensors = {n: torch.from_numpy(a) for n, a in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    for content, match in (
        ([1, 2], "holds a list"),
        ({**tensors, NORM: torch.ones(1).expand(10**12)}, "no ordinary tensor"),
        ({**tensors, NORM: torch.eye(4).to_sparse()}, "no ordinary tensor"),
        ({**tensors, NORM: torch.empty(16, device="meta")}, "no ordinary|refuses"),
        ({**tensors, NORM: "text"}, "model.norm.weight is missing"),
        ({**tensors, NORM: torch.ones(16, dtype=torch.int32)}, "model.norm.weight is missing"),
        ({**tensors, NORM: torch.ones(15)}, "has shape \\(15,\\)"),
    ):
        torch.save(content, file)
        refused(folder, match)
    whole = file.read_bytes()
    for length in (0, 1, 30, len(whole) // 2, len(whole) - 10):
        file.write_bytes(whole[:length])
        refused(folder, "PyTorch refuses")
