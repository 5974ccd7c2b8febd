"""A tagger small enough to write by hand: a BERT that knows the label of each word in a list.

Its layer adds nothing to the embedding of a token, and the head reads the label from it. What is
in no list is outside of all spans. ``python word_tagger.py FOLDER`` writes the checkpoint.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WORDS = {
    "PER": ("ada", "lovelace", "charles", "babbage"),
    "LOC": ("london", "new", "york", "zürich"),
    "ORG": ("royal", "society"),
}
SIZES = {"hidden_size": 16, "intermediate_size": 8, "max_position_embeddings": 512}


def write_tagger(folder: Path, words: Mapping[str, tuple[str, ...]] = WORDS) -> Path:
    """Write a checkpoint that labels the given words, by type."""
    labels = ["O", *(f"{prefix}-{kind}" for kind in words for prefix in "BI")]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    pieces = special + [word for kind in words.values() for word in kind]
    inside = {word: labels.index(f"I-{kind}") for kind, each in words.items() for word in each}

    config = {
        "architectures": ["BertForTokenClassification"], "model_type": "bert",
        "vocab_size": len(pieces), "num_hidden_layers": 1, "num_attention_heads": 2,
        "type_vocab_size": 1, "id2label": dict(enumerate(labels)), **SIZES,
    }  # fmt: skip
    dim, hidden = SIZES["hidden_size"], SIZES["intermediate_size"]
    embedding = np.eye(len(labels), dim)[[inside.get(piece, 0) for piece in pieces]]
    layer, attention = "bert.encoder.layer.0.", "bert.encoder.layer.0.attention."
    tensors = {
        "bert.embeddings.word_embeddings.weight": embedding,
        "bert.embeddings.position_embeddings.weight": np.zeros((512, dim)),
        "bert.embeddings.token_type_embeddings.weight": np.zeros((1, dim)),
        "classifier.weight": 3 * np.eye(len(labels), dim),
        "classifier.bias": np.zeros(len(labels)),
    }
    maps = {f"{attention}self.{name}": (dim, dim) for name in ("query", "key", "value")}
    maps |= {f"{attention}output.dense": (dim, dim), f"{layer}intermediate.dense": (hidden, dim)}
    maps |= {f"{layer}output.dense": (dim, hidden)}
    for name, shape in maps.items():
        tensors |= {f"{name}.weight": np.zeros(shape), f"{name}.bias": np.zeros(shape[0])}
    for name in ("bert.embeddings.", f"{attention}output.", f"{layer}output."):
        tensors |= {f"{name}LayerNorm.weight": np.ones(dim), f"{name}LayerNorm.bias": np.zeros(dim)}

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "strip_accents": False})
    )
    save_file({k: v.astype(np.float32) for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


if __name__ == "__main__":
    print(write_tagger(Path(sys.argv[1] if len(sys.argv) > 1 else "word-tagger")))
