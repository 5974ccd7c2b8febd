"""What tests share."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

from attendre_core import progress


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints does not depend on how busy the machine is."""
    monkeypatch.setattr(progress, "_LINE_PAUSE", math.inf)


@pytest.fixture(scope="session")
def byte_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a Llama with random weights and a tokenizer: two layers, a byte per token."""
    tokenizers = pytest.importorskip("tokenizers")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    folder = tmp_path_factory.mktemp("byte-llama")
    layers, dim, kv, hidden, vocabulary = 2, 32, 16, 48, 256
    config = {
        "model_type": "llama", "hidden_size": dim, "intermediate_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": vocabulary, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, dim), "model.norm.weight": (dim,),
    }  # fmt: skip
    for i in range(layers):
        part = f"model.layers.{i}"
        shapes |= {
            f"{part}.input_layernorm.weight": (dim,),
            f"{part}.post_attention_layernorm.weight": (dim,),
            f"{part}.self_attn.q_proj.weight": (dim, dim),
            f"{part}.self_attn.k_proj.weight": (kv, dim),
            f"{part}.self_attn.v_proj.weight": (kv, dim),
            f"{part}.self_attn.o_proj.weight": (dim, dim),
            f"{part}.mlp.gate_proj.weight": (hidden, dim),
            f"{part}.mlp.up_proj.weight": (hidden, dim),
            f"{part}.mlp.down_proj.weight": (dim, hidden),
        }
    rng = np.random.default_rng(5)
    tensors = {
        name: 0.3 * rng.standard_normal(shape) if len(shape) > 1 else np.ones(shape)
        for name, shape in shapes.items()
    }
    save_file({k: v.astype(np.float32) for k, v in tensors.items()}, folder / "model.safetensors")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, [])
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return folder


@pytest.fixture(scope="session")
def word_tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tagger of the documentation, which knows the label of each word in a list."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    file = Path(__file__).resolve().parents[1] / "docs" / "examples" / "word_tagger.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Path(module.write_tagger(tmp_path_factory.mktemp("word-tagger")))
