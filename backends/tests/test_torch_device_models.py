"""Models read chunks and write tokens without asking the device, and without sending to it.

As in `test_torch_devices.py`, on PyTorch's ``meta`` device. Only the token ids of a chunk, their
positions and their flags are sent; `generate` reads the ids that were chosen, outside of a step.
"""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves, tree_map
from attendre_core.zoo.architectures import ARCHITECTURES, architecture_of
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.generate import next_ids
from attendre_core.zoo.sampling import Chooser, Sampling, _candidates_program

torch = pytest.importorskip("torch")

B = 2
SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 16,
}  # fmt: skip
MARIAN = {
    "vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
}  # fmt: skip
T5 = {
    "vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
GEMMA = {
    **SMALL, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6,
    "sliding_window_pattern": 2,
}  # fmt: skip
CONFIGS = {
    "bert": SMALL,
    "camembert": SMALL,
    "cohere": {**SMALL, "num_key_value_heads": 2},
    "ctranslate2": {
        "d_model": 32, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_vocabulary": 50, "decoder_vocabulary": 50, "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40, "decoder_start_token_id": 0,
    },
    "deberta-v2": {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "distilbert": {**SMALL, "dim": 32, "hidden_dim": 40, "n_layers": 2, "n_heads": 4},
    "electra": SMALL,
    "eurobert": SMALL,
    "falcon": SMALL,
    "gemma3": {"text_config": {**GEMMA, "model_type": "gemma3_text"}},
    "gemma3_text": GEMMA,
    "llama": {**SMALL, "num_key_value_heads": 2},
    "marian": MARIAN,
    "mistral": {**SMALL, "num_key_value_heads": 2, "sliding_window": 6},
    "modernbert": SMALL,
    "mpnet": SMALL,
    "mt5": T5,
    "nomic_bert": SMALL,
    "qwen2": {**SMALL, "num_key_value_heads": 2},
    "qwen3": {**SMALL, "num_key_value_heads": 2},
    "roberta": SMALL,
    "t5": T5,
    "xlm-roberta": SMALL,
}  # fmt: skip
#: Each scheme of positions, and each way to end in an output.
FEW = ("bert", "deberta-v2", "gemma3_text", "llama", "marian", "t5")
#: A chunk is sent as token ids, positions and flags.
SENT = 3
GREEDY = Sampling()


def model_of(kind, memory):
    architecture = architecture_of(RawConfig({"model_type": kind, **CONFIGS[kind]}, "made up"))
    params = tree_map(
        lambda tensor: torch.empty(tensor.shape, device="meta"), architecture.parameters()
    )
    return at.Model(architecture, params, memory=memory, library="torch")


def test_every_architecture_is_swept():
    assert set(CONFIGS) == set(ARCHITECTURES)


@pytest.mark.parametrize("memory", ["LFA-1e-3", "attendre-causal", None])
def test_models_read_and_write(memory, watching):
    found = {}
    for kind in CONFIGS if memory == "attendre-causal" else FEW:
        waiting = {"q_size": 4} if memory == "LFA-1e-3" else {}
        held = None if memory is None else at.preset(memory, kv_size=8, chunk=4, **waiting)
        model = model_of(kind, held)
        if memory is None and not model.causal:
            continue
        problems = reading(model, watching)
        if model.architecture.kind != "encoder" and problems == []:
            problems = writing(model, GREEDY, watching)
        if kind in ("llama", "t5") and problems == []:
            problems = writing(model, Sampling(temperature=0.7, top_p=0.9, top_k=5), watching)
        if problems:
            found[kind] = problems
    assert found == {}


def strays(*trees):
    """Return the devices, other than ``meta``, of any tensor in nested tuples."""
    found = {leaf.device.type for leaf in tree_leaves(trees)}
    return [f"a tensor on {device}" for device in found - {"meta"}]


def reading(model, watching):
    """Feed chunks; return what touches the host beyond the chunks themselves."""
    chunk = 4 if model.memory is not None else 256
    stream = model.stream(B)
    rows = [[token % 50 for token in range(chunk)]] * B
    for _ in range(2):
        stream.feed(rows)
    with watching.Watch() as watch:
        stream.feed(rows)
    sent = [one for one in watch.copied if "zoo/reader.py" in one]
    beyond = [one for one in watch.copied if one not in sent]
    beyond += [] if len(sent) == SENT else [f"{len(sent)} copies of a chunk, expected {SENT}"]
    return beyond + watch.elsewhere + strays(stream._arrays)


def writing(model, way, watching):
    """Write tokens; return what touches the host after the first two."""
    stream = model.stream(B)
    stream.feed([[1, 2, 3, 4, 5, 6], [7, 8, 9]])
    writer, logits = stream.writer(8)
    choose = Chooser("torch", way, never=(2,))
    ids, active = choose(logits), np.asarray([True, False])
    for _ in range(2):
        ids = next_ids(writer, choose, ids, active)
    with watching.Watch() as watch:
        ids = next_ids(writer, choose, ids, active)
    return watch.everything + strays(ids)


def test_beams_send_one_index_and_one_token_each(watching):
    """What `candidates` reads is outside of what runs here."""
    model = model_of("llama", at.preset("attendre-causal", kv_size=8, chunk=4))
    stream = model.stream(B)
    stream.feed([[1, 2, 3, 4, 5, 6], [7, 8, 9]])
    writer, logits = stream.writer(8)
    writer.reorder(np.asarray([0, 0, 1, 1]))
    find, every = _candidates_program("torch", 6), np.ones(2 * B, dtype=bool)
    writer.step(model.array(np.zeros(2 * B, np.int32)), every)
    with watching.Watch() as watch:
        writer.reorder(np.asarray([1, 0, 2, 2]))
        logits = writer.step(model.array(np.zeros(2 * B, np.int32)), every)
        found = find(logits, None)
    assert len(watch.copied) == 2, watch.copied
    assert watch.elsewhere + strays(found) == []
    assert found[0].shape == found[1].shape == (2 * B, 6)
