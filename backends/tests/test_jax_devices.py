"""A step of JAX copies nothing from the host, on a device that is not the default one.

``jax.transfer_guard`` refuses copies that nobody asked for, such as those of Python numbers; what
is sent on purpose, like the token ids of a chunk, is allowed. On a CPU it does not see reads.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")

#: Runs in a process of its own: the number of devices is fixed when JAX starts.
BEGINNING = """
import jax
import numpy as np
import attendre_core as at
from attendre_core.tree import tree_leaves, tree_map
second = jax.devices("cpu")[1]
rng = np.random.default_rng(0)
def made(*shape):
    return jax.device_put(0.1 * rng.standard_normal(shape).astype(np.float32), second)
def placed(*trees):
    assert {d for leaf in tree_leaves(trees) for d in leaf.devices()} == {second}
some = made(3)
try:
    with jax.transfer_guard("disallow"):
        some + 1
except jax.errors.JaxRuntimeError:
    pass
else:
    raise AssertionError("the guard lets everything through")
"""
LAYERS = """
B, S, H, G, D = 2, 4, 4, 2, 8
chunk = at.Chunk(made(B, S, H, D), made(B, S, G, D), made(B, S, G, D))
for scheme in (at.RoPE(), at.ALiBi(), at.T5Bias()):
    layer = at.AttendreLayer(
        at.KeyValueMemory(8, at.LFA()), at.DataOnlyMemory(4), top_k=3, encoding=scheme
    )
    state = layer.init(batch=B, heads=H, kv_heads=G, head_dim=D, xp="jax", device=second)
    table = made(32, H) if isinstance(scheme, at.T5Bias) else None
    step = jax.jit(lambda state, table: layer.step(state, chunk, encoding_params=table))
    state, out = step(state, table)
    with jax.transfer_guard("disallow"):
        state, out = step(state, table)
    placed(state, out)
# Without jit, numbers in the code are sent one by one; the tables are not.
position = jax.device_put(np.arange(S, dtype=np.int32), second)
want = at.RoPE().angles(position.astype(np.float32), D)
with jax.transfer_guard("disallow"):
    got = at.RoPE().angles(position.astype(np.float32), D)
placed(want, got)
"""
MODELS = """
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.generate import next_ids
from attendre_core.zoo.sampling import Chooser, Sampling
config, memory = CONFIG, MEMORY
architecture = architecture_of(RawConfig(config, "made up"))
params = tree_map(lambda tensor: made(*tensor.shape), architecture.parameters())
model = at.Model(architecture, params, memory=memory, library="jax")
rows = [[1, 2, 3, 4]] * 2
for way in (Sampling(), Sampling(temperature=0.7, top_p=0.9, top_k=5)):
    stream = model.stream(2)
    for _ in range(2):
        stream.feed(rows)
    with jax.transfer_guard("disallow"):
        stream.feed(rows)
    writer, logits = stream.writer(8)
    choose = Chooser("jax", way, never=(2,))
    ids, active = choose(logits), np.asarray([True, False])
    for _ in range(2):
        ids = next_ids(writer, choose, ids, active)
    with jax.transfer_guard("disallow"):
        ids = next_ids(writer, choose, ids, active)
    placed(stream._arrays, ids)
"""
SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16,
}  # fmt: skip
CONFIGS = {
    "llama": SMALL,
    "gemma3_text": {**SMALL, "head_dim": 8, "sliding_window": 6, "sliding_window_pattern": 2},
    "t5": {
        "vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "marian": {
        "vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40, "pad_token_id": 1,
    },
}  # fmt: skip


def run(program):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    ended = subprocess.run(
        [sys.executable, "-c", BEGINNING + program],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_layers_copy_nothing():
    run(LAYERS)


@pytest.mark.parametrize(
    ("kind", "memory"),
    [
        ("llama", "at.preset('attendre-causal', kv_size=8, chunk=4)"),
        pytest.param("llama", "None", marks=pytest.mark.thorough),
        *(
            pytest.param(
                kind, "at.preset('LFA-0', kv_size=8, chunk=4, q_size=4)", marks=pytest.mark.thorough
            )
            for kind in CONFIGS
        ),
    ],
)
def test_models_copy_nothing_but_tokens(kind, memory):
    config = {"model_type": kind, **CONFIGS[kind]}
    run(MODELS.replace("CONFIG", repr(config)).replace("MEMORY", memory))
