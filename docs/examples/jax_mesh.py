"""A Llama with memories on a mesh of devices: read a long input, write on, take a training step.

The weights and the memories of each layer are split by heads over one axis of the mesh, and the
rows of the batch over the other. Run it with ``python jax_mesh.py``; of a CPU, JAX makes eight
devices.

In several processes, call ``jax.distributed.initialize(...)`` first; the rest stays the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attendre_core as at
from attendre_core.zoo.architectures.llama import Llama
from attendre_jax import ModelFunctions, Shardings, place, random_parameters, shardings

LLAMA = Llama(
    layers=2, dim=32, heads=8, kv_heads=4, head_dim=8, vocabulary=64, context=4096, hidden=64,
    rope=at.RoPE(),
)  # fmt: skip
MEMORY = at.preset("attendre-causal", kv_size=16, chunk=8)
FUNCTIONS = ModelFunctions(LLAMA, MEMORY, far=True)


def mesh_of(devices: list[Any]) -> jax.sharding.Mesh:
    """Lay devices out as rows of the batch times shards of the heads."""
    rows = 2 if len(devices) % 2 == 0 else 1
    laid_out = np.asarray(devices).reshape(rows, -1)
    auto = (jax.sharding.AxisType.Auto,) * 2
    return jax.sharding.Mesh(laid_out, ("data", "model"), axis_types=auto)


def written(where: Shardings, params: Any, prompt: Any, count: int) -> list[list[int]]:
    """Read a prompt chunk by chunk, then write tokens one by one, always the likeliest."""
    shapes = jax.eval_shape(partial(FUNCTIONS.start, batch=prompt.shape[0]), params)
    states = where.state(shapes)  # by heads and rows, before anything is allocated
    state = jax.jit(FUNCTIONS.start, static_argnums=1, out_shardings=states)(
        params, prompt.shape[0]
    )

    def step(params: Any, state: Any, tokens: Any) -> tuple[Any, Any]:
        state, hidden = FUNCTIONS.read(params, state, tokens)
        last = hidden.x[:, tokens.shape[1] - 1][:, None]
        return state, jnp.argmax(LLAMA.logits(params, last), axis=-1).astype(jnp.int32)

    # The state is written in place, and stays where it is.
    step = jax.jit(step, donate_argnums=1, out_shardings=(states, where.rows))
    for start in range(0, prompt.shape[1], MEMORY.chunk):
        state, token = step(params, state, prompt[:, start : start + MEMORY.chunk])
    tokens = [token]
    for _ in range(count - 1):
        state, token = step(params, state, token)
        tokens.append(token)
    shard = state[0].kv.key.addressable_shards[0].data
    print(f"  a device holds {shard.size:,} of {state[0].kv.key.size:,} numbers of the keys")
    rows: list[list[int]] = np.concatenate([np.asarray(t) for t in tokens], axis=1).tolist()
    return rows


def trained(where: Shardings, params: Any, tokens: Any) -> tuple[Any, float]:
    """Take one step of gradient descent; the gradients are placed like the parameters."""

    def loss(params: Any) -> Any:
        chances = jax.nn.log_softmax(FUNCTIONS.logits(params, tokens)[:, :-1])
        return -jnp.mean(jnp.take_along_axis(chances, tokens[:, 1:, None], axis=2))

    slope = jax.jit(jax.value_and_grad(loss), out_shardings=(where.whole, where.params))
    value, grads = slope(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), float(value)


def main() -> bool:
    """Do the same on all devices and on one, and compare."""
    params = random_parameters(LLAMA, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (4, 48), 0, LLAMA.vocabulary, dtype=jnp.int32)
    rows, losses = [], []
    for devices in (jax.devices(), jax.devices()[:1]):
        mesh = mesh_of(devices)
        print(f"{len(devices)} devices: {mesh.shape['data']} rows of {mesh.shape['model']}")
        where = shardings(LLAMA, mesh)
        own, prompt = place(params, where.params), place(tokens, where.rows)
        own, loss = trained(where, own, prompt)
        losses.append(loss)
        rows.append(written(where, own, prompt, 8))
    print(f"loss: {losses[0]:.4f} and {losses[1]:.4f}")
    print(f"the same tokens as on one device: {rows[0] == rows[1]}")
    return rows[0] == rows[1]


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
