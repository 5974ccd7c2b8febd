"""Run zoo models on a mesh of host devices, in one process or several, and print what was seen.

``python mesh_program.py WHAT[:NAME] ...`` prints one line of JSON. `test_jax_mesh.py` runs it:
the number of devices is fixed when JAX starts. With several processes, the environment variable
``MESH_PROCESS`` is "number,count,port".
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import traceback
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import attendre_core as at
import attendre_jax
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.config import RawConfig

VOCABULARY, ROWS, CHUNK, SLOTS = 64, 4, 8, 12
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": VOCABULARY, "max_position_embeddings": 128,
}  # fmt: skip
PAIR = {
    "d_model": 32, "vocab_size": VOCABULARY, "decoder_start_token_id": 0, "pad_token_id": 1,
    **{f"{part}_{name}": size for part in ("encoder", "decoder")
       for name, size in (("attention_heads", 8), ("layers", 2), ("ffn_dim", 64),
                          ("vocabulary", VOCABULARY))},
}  # fmt: skip
#: Every architecture of the zoo, with what is particular to it.
MODELS = {
    "llama": SIZES,
    "mistral": SIZES | {"sliding_window": 16},
    "qwen2": SIZES | {"num_key_value_heads": 2},  # fewer K/V heads than devices
    "qwen3": SIZES,
    "gemma3_text": SIZES | {"head_dim": 8, "sliding_window": 16, "sliding_window_pattern": 2},
    "gemma3": {"text_config": SIZES | {"head_dim": 8, "layer_types": ["full_attention"] * 2}},
    "cohere": SIZES | {"use_qk_norm": True},
    "falcon": SIZES
    | {"new_decoder_architecture": True, "num_kv_heads": 4, "ffn_hidden_size": 64, "bias": True},
    "bert": SIZES,
    "deberta-v2": SIZES
    | {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]},
    "distilbert": SIZES | {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 8},
    "electra": SIZES | {"embedding_size": 16},
    "eurobert": SIZES,
    "mpnet": SIZES,
    "nomic_bert": SIZES,
    "roberta": SIZES,
    "modernbert": SIZES | {"local_attention": 16, "global_attn_every_n_layers": 2},
    "t5": PAIR
    | {"d_kv": 4, "d_ff": 64, "num_layers": 2, "num_heads": 8, "relative_attention_num_buckets": 8},
    "mt5": PAIR
    | {
        "d_kv": 4,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 8,
        "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 8,
    },
    "marian": PAIR,
    "ctranslate2": PAIR | {"num_heads": 8},
}


def architecture(name):
    return architecture_of(RawConfig({"model_type": name, **MODELS[name]}, "config.json"))


def random_params(model, seed=0):
    """Return parameters with which everything matters, norms and biases, too."""
    noise = np.random.default_rng(seed)
    flat = attendre_jax.flat_parameters(
        model, attendre_jax.random_parameters(model, jax.random.key(seed))
    )
    moved = {
        name: array + 0.2 * noise.normal(size=array.shape).astype(np.float32)
        for name, array in flat.items()
    }
    return attendre_jax.nested_parameters(model, moved)


def random_tokens(length, seed=0):
    drawn = np.random.default_rng(seed).integers(0, VOCABULARY, (ROWS, length))
    return jnp.asarray(drawn, dtype=jnp.int32)


def functions_of(model, **options):
    """Return a model's functions over a memory that evicts; encoders wait for their future."""
    causal = model.kind == "decoder"
    policy = at.LFA(initial=at.InitialScore(0.0), score="softmax")
    memory = at.MemoryConfig(policy, SLOTS, 0 if causal else 4, chunk=CHUNK)
    return attendre_jax.ModelFunctions(model, memory, **options)


def make_mesh(**axes):
    """Lay out 8 devices; of several processes, each holds some heads of every row."""
    devices = np.asarray(jax.devices()).reshape(-1, axes["data"]).T
    auto = (AxisType.Auto,) * len(axes)
    return jax.sharding.Mesh(devices.reshape(tuple(axes.values())), tuple(axes), axis_types=auto)


def mesh_for(model):
    """Return 8 devices for two rows and four shards; K/V heads that are too few are copied."""
    part = model.encoder if model.kind == "encoder-decoder" else model
    if part.kv_heads % 4 == 0:
        return make_mesh(data=2, model=4), "model"
    return make_mesh(data=2, kv=2, group=2), ("kv", "group")


def collectives(compiled):
    """Count the collectives in a compiled program: {"all-reduce f32 2,8,32": 3, ...}."""
    found = Counter()
    for line in compiled.as_text().splitlines():
        match = re.search(r"= (.*?) ([a-z-]+?)(?:-start)?\(", line)
        if match and re.match("all-|collective-|reduce-scatter|ragged", match[2]):
            for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", match[1]):
                found[f"{match[2]} {kind} {shape}"] += 1
    return dict(found)


def difference(got, want):
    """Return the largest difference, in the parts of this process, relative to the largest."""
    wanted = [np.asarray(leaf, dtype=np.float64) for leaf in jax.tree.leaves(want)]
    largest = 0.0
    for a, b in zip(jax.tree.leaves(got), wanted, strict=True):
        for shard in a.addressable_shards:
            off = np.abs(np.asarray(shard.data, dtype=np.float64) - b[shard.index])
            largest = max(largest, float(off.max()))
    return largest / (max(float(np.abs(leaf).max()) for leaf in wanted) or 1.0)


def same_kept(states, wanted):
    """Whether the same positions are stored, in whatever slots, in the rows of this process."""
    for state, want in zip(states, wanted, strict=True):
        kept = np.sort(np.asarray(want.kv.position), axis=-1)
        for shard in state.kv.position.addressable_shards:
            if not np.array_equal(np.sort(np.asarray(shard.data), axis=-1), kept[shard.index]):
                return False
    return True


# ---------------------------------------------------------------- what to run


def reading(name):
    """Read three chunks, one call each, with the state placed on a mesh of 2 x 4 and donated."""
    model = architecture(name)
    mesh, heads = mesh_for(model)
    functions, where = functions_of(model), attendre_jax.shardings(model, mesh, heads=heads)
    params, tokens = random_params(model), random_tokens(4 * CHUNK)
    state = functions.start(params, ROWS)
    states = where.state(state)
    there, sharded = attendre_jax.place(params, where.params), attendre_jax.place(state, states)
    placed = attendre_jax.place(tokens, where.rows)
    plain = jax.jit(functions.read)
    read = jax.jit(functions.read, donate_argnums=1, out_shardings=(states, where.rows))
    compiled = read.lower(there, sharded, placed[:, :CHUNK]).compile()
    keys = sharded[0].kv.key
    seen = {
        "notes": where.notes,
        "collectives": collectives(compiled),
        "keys": keys.size,
        "local keys": keys.addressable_shards[0].data.size,
    }
    worst = 0.0
    for start in range(0, tokens.shape[1], CHUNK):
        piece = slice(start, start + CHUNK)
        state, want = plain(params, state, tokens[:, piece])
        sharded, got = compiled(there, sharded, placed[:, piece])
        worst = max(worst, difference(got.x, want.x))
    moved = jax.tree.map(lambda leaf, wanted: leaf.sharding == wanted, sharded, states)
    return {
        **seen,
        "difference": worst,
        "same kept": same_kept(sharded, state),
        "stays placed": all(jax.tree.leaves(moved)),
        "evictions": min(int(np.asarray(one.kv.evictions).min()) for one in state),
        "scale": float(jnp.abs(want.x).max()),
    }


def loss_of(functions, model, params, tokens):
    if model.kind == "encoder":
        return jnp.mean(functions.hidden(params, tokens) ** 2)
    written = tokens[:, :6]
    if model.kind == "decoder":
        logits, answers = functions.logits(params, tokens)[:, :-1], tokens[:, 1:]
    else:
        logits, answers = functions.logits(params, tokens, None, written)[:, :-1], written[:, 1:]
    chances = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(chances, answers[..., None], axis=2))


def training(name):
    """Differentiate a loss through memories, encoder, decoder and output matrix."""
    model = architecture(name)
    mesh, heads = mesh_for(model)
    functions, where = functions_of(model), attendre_jax.shardings(model, mesh, heads=heads)
    params, tokens = random_params(model), random_tokens(3 * CHUNK)

    def slope(params, tokens):
        return jax.value_and_grad(lambda p: loss_of(functions, model, p, tokens))(params)

    want, wanted = jax.jit(slope)(params, tokens)
    there, placed = attendre_jax.place(params, where.params), attendre_jax.place(tokens, where.rows)
    got, grads = jax.jit(slope, out_shardings=(where.whole, where.params))(there, placed)
    return {
        "loss": float(want),
        "difference": difference(got, want),
        "gradients": difference(grads, wanted),
        "largest": max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(wanted)),
    }


def generating(name):
    """Write with `Model.generate`, its parameters spread over the mesh."""
    model, mesh = architecture(name), make_mesh(data=2, model=4)
    params, memory = random_params(model), functions_of(model).memory
    there = attendre_jax.place(params, attendre_jax.shardings(model, mesh).params)
    prompts = np.asarray(random_tokens(2 * CHUNK)[:2]).tolist()
    here, spread = (
        at.Model(model, own, memory=memory, library="jax").generate(prompts, max_new_tokens=6)
        for own in (params, there)
    )
    return {"want": here, "got": spread}


LAYERS = {
    "LFA": (at.KeyValueMemory(SLOTS, at.LFA()), {}),
    "LRA-max": (at.KeyValueMemory(SLOTS, at.LRA("max")), {"encoding": at.RoPE()}),
    "TOVA": (at.KeyValueMemory(SLOTS, at.TOVA(), present="visible"), {}),
    "LRU": (at.KeyValueMemory(SLOTS, at.LRU()), {"top_k": 4, "q_memory": at.DataOnlyMemory(4)}),
    "LFU": (at.KeyValueMemory(SLOTS, at.LFU()), {"top_k": 4}),
    "H2O": (at.KeyValueMemory(SLOTS, at.H2O(), per_head=True), {}),
}


def mapped(name):
    """Step a layer inside `jax.shard_map`; without `head_axis` it must go wrong."""
    memory, more = LAYERS[name]
    layer, mesh = (
        at.AttendreLayer(memory, causal="q_memory" not in more, **more),
        make_mesh(data=2, model=4),
    )
    heads, kv_heads, dim = 8, 4, 4
    state = layer.init(
        batch=ROWS, heads=heads, kv_heads=kv_heads, head_dim=dim, xp=jnp, chunk=CHUNK
    )
    held = jax.tree.map(lambda one: one.spec, attendre_jax.state_shardings(state, mesh))
    split = P("data", None, "model")

    def local(state, chunk):
        state, out = layer.step(state, chunk)
        return state, out.value

    def joined(state, chunk):
        with attendre_jax.head_axis("model"):
            return local(state, chunk)

    def over_mesh(step, **options):
        specs = at.Chunk(split, split, split)
        step = jax.shard_map(
            step, mesh=mesh, in_specs=(held, specs), out_specs=(held, split), **options
        )
        return jax.jit(step)

    steps = {
        "want": jax.jit(local),
        "got": over_mesh(joined),
        "alone": over_mesh(local, check_vma=False),
    }
    states = dict.fromkeys(steps, state)
    rng, worst, same = np.random.default_rng(0), 0.0, {"got": True, "alone": True}
    for number in range(5):
        query = jnp.asarray(rng.normal(size=(ROWS, CHUNK, heads, dim)), dtype=jnp.float32)
        key, value = jnp.asarray(
            rng.normal(size=(2, ROWS, CHUNK, kv_heads, dim)), dtype=jnp.float32
        )
        if number == 2:  # one head of one entry, on one device: it must not enter on any
            key = key.at[0, 3, 1, 0].set(jnp.nan)
        values = {}
        for way, step in steps.items():
            states[way], values[way] = step(states[way], at.Chunk(query, key, value))
        worst = max(worst, difference(values["got"], values["want"]))
        for way in same:
            same[way] &= same_kept([states[way]], [states["want"]])
    counters = ("clock", "evictions", "refusals")
    return {
        "difference": worst,
        "same kept": same["got"],
        "same kept alone": same["alone"],
        "counters": difference(
            [getattr(states["got"].kv, name) for name in counters],
            [getattr(states["want"].kv, name) for name in counters],
        ),
        "collectives": collectives(
            steps["got"].lower(states["got"], at.Chunk(query, key, value)).compile()
        ),
    }


def counting(shards):
    """Compile one step of a Llama over 2, 4 or 8 devices and count what crosses them."""
    sizes = {**SIZES, "model_type": "llama", "num_key_value_heads": 8}
    model = architecture_of(RawConfig(sizes, "config.json"))
    functions = functions_of(model, scan_layers=False, remat=False)
    devices = np.asarray(jax.devices()[: int(shards)]).reshape(1, -1)
    mesh = jax.sharding.Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    where = attendre_jax.shardings(model, mesh)
    params, tokens = random_params(model), random_tokens(CHUNK)
    state = functions.start(params, ROWS)
    states = where.state(state)
    read = jax.jit(functions.read, out_shardings=(states, where.whole))
    arguments = (
        attendre_jax.place(params, where.params),
        attendre_jax.place(state, states),
        attendre_jax.place(tokens, where.rows),
    )
    sizes = {"rows": ROWS, "chunk": CHUNK, "slots": SLOTS, "dim": model.dim}
    found = collectives(read.lower(*arguments).compile())
    bytes_of = {"pred": 1, "f32": 4, "s32": 4}
    total = sum(
        count * bytes_of[name.split()[1]] * math.prod(map(int, name.split()[2].split(",")))
        for name, count in found.items()
    )
    return {"collectives": found, "bytes": total, "layers": model.layers, **sizes}


RUNS = {
    "reading": (reading, MODELS),
    "training": (training, MODELS),
    "generating": (generating, ["llama"]),
    "mapped": (mapped, LAYERS),
    "counting": (counting, ["2", "4", "8"]),
}


def main(wanted):
    process = os.environ.get("MESH_PROCESS")
    if process:
        number, count, port = process.split(",")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(number))
    results = {"devices": jax.device_count(), "local devices": jax.local_device_count()}
    for one in wanted:
        what, _, name = one.partition(":")
        run, names = RUNS[what]
        for own in [name] if name else names:
            try:
                results[f"{what}:{own}"] = run(own)
            except Exception:
                results[f"{what}:{own}"] = {"error": traceback.format_exc()}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
