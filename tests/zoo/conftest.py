"""What the tests of the models share: instances of transformers, saved and loaded by us."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.config import RawConfig

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

#: Largest difference of logits, relative to the largest logit.
TOLERANCE = 1e-4
#: Real models and texts that are not part of this repository, beside it.
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(params=["numpy", "torch", "jax"])
def library(request: pytest.FixtureRequest) -> str:
    """Name of a backend whose library is installed."""
    pytest.importorskip(request.param)
    return str(request.param)


@pytest.fixture
def randomised() -> Callable[..., Any]:
    """Give a model of transformers weights that make every part of it matter."""
    torch = pytest.importorskip("torch")

    def fill(model: Any, seed: int = 0, spread: float = 0.2) -> Any:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                if parameter.ndim > 1:
                    parameter.copy_(noise * spread)
                else:
                    parameter.add_(noise * 0.1)
        return model.eval()

    return fill


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], Path]:
    """Save a model of transformers into a folder of its own."""
    number = iter(range(1000))

    def save(model: Any) -> Path:
        folder = tmp_path / f"model-{next(number)}"
        model.save_pretrained(folder)
        return folder

    return save


def in_numpy(model: Any, array: Any) -> Any:
    """Turn an array of a model's backend into NumPy."""
    return np.asarray(model.backend.to_numpy(array))


@pytest.fixture
def difference() -> Callable[[Any, Any, Any], float]:
    """Return the largest difference, relative to the largest number that is expected."""

    def measured(model: Any, got: Any, want: Any) -> float:
        got, want = in_numpy(model, got), np.asarray(want)
        assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
        return float(np.abs(got - want).max() / np.abs(want).max())

    return measured


@pytest.fixture
def tolerance() -> float:
    """Return the largest relative difference that counts as equal."""
    return TOLERANCE


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up Llama of one byte a token, with its tokenizer, written without transformers."""
    tokenizers = pytest.importorskip("tokenizers")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    folder = tmp_path_factory.mktemp("tiny")
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 256, "max_position_embeddings": 512, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(5)
    wanted = tree_leaves(architecture_of(RawConfig(config, "config.json")).parameters())
    save_file(
        {
            tensor.name: (
                0.3 * rng.standard_normal(tensor.shape) if len(tensor.shape) > 1
                else np.ones(tensor.shape)
            ).astype(np.float32)
            for tensor in wanted
        },
        folder / "model.safetensors",
    )  # fmt: skip
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, [])
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.save(str(folder / "tokenizer.json"))
    return folder


#: The format of ChatML, as most templates write it.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up Llama that knows ChatML, with byte pairs learned from this repository's licence."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    folder = tmp_path_factory.mktemp("chat")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<|im_start|>", "<|im_end|>", "<s>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    text = (Path(__file__).resolve().parents[2] / "LICENSE").read_text(encoding="utf-8")
    inner.train_from_iterator(text.splitlines(), trainer)
    inner.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": inner.get_vocab_size(), "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    end = {"__type": "AddedToken", "content": "<|im_end|>", "special": True}
    settings = {"chat_template": CHATML, "bos_token": "<s>", "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    rng = np.random.default_rng(11)
    wanted = tree_leaves(architecture_of(RawConfig(config, "config.json")).parameters())
    tensors = {
        tensor.name: 0.3 * rng.standard_normal(tensor.shape)
        if len(tensor.shape) > 1
        else np.ones(tensor.shape)
        for tensor in wanted
    }
    save_file({k: v.astype(np.float32) for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture
def made_up(tmp_path: Path) -> Callable[..., Path]:
    """Write a folder with random weights for a configuration, without transformers."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    number = iter(range(1000))

    def make(config: dict[str, Any], seed: int = 0, dtype: str = "float32") -> Path:
        folder = tmp_path / f"made-up-{next(number)}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        rng = np.random.default_rng(seed)
        tensors = {}
        raw = RawConfig(config, "made up")
        architecture = architecture_of(raw)
        wanted = tree_leaves(architecture.parameters())
        if "architectures" in config:
            wanted += tree_leaves(architecture.head(raw, "token", ("O", "PER")).parameters())
        for tensor in wanted:
            spread = 0.3 if len(tensor.shape) > 1 else 0.1
            values = rng.standard_normal(tensor.shape) * spread + (len(tensor.shape) == 1)
            parts = [values.astype(dtype)]
            if tensor.rows is not None and tensor.rows[0]:  # the next part of a fused tensor
                before = np.zeros((tensor.rows[0], *tensor.shape[1:]), dtype)
                parts.insert(0, tensors.get(tensor.name, before))
            tensors[tensor.name] = np.concatenate(parts)
        save_file(tensors, folder / "model.safetensors")
        return folder

    return make


@pytest.fixture(scope="session")
def writing_gguf() -> Any:
    """Return the module beside this one, which tests cannot import by name."""
    pytest.importorskip("gguf")
    file = Path(__file__).with_name("writing_gguf.py")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Let nothing take more than two gigabytes beyond what the libraries take already."""
    resource = pytest.importorskip("resource")
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("needs Linux, to know how much memory is in use")
    used = int(status.read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def refused() -> Callable[[Path, str], None]:
    """Load something that must be refused, with a message that matches."""

    def load(path: Path, match: str) -> None:
        with pytest.raises((at.CheckpointError, at.ConfigError), match=match):
            at.load(path)

    return load


@pytest.fixture
def loaded_or_refused() -> Callable[[Path], Any]:
    """Load something that may be refused, with a message that names it; never anything else."""

    def load(path: Path) -> Any:
        try:
            return at.load(path)
        except (at.CheckpointError, at.ConfigError) as error:
            message = str(error)
        assert len(message) < 2000
        assert str(path if path.is_dir() else path.parent) in message
        return None

    return load


@pytest.fixture
def data_folder() -> Path:
    """Folder of real models and texts; skips where it is not there."""
    if not DATA.is_dir():
        pytest.skip(f"needs the folder of real models and texts at {DATA}")
    return DATA
