"""A step over a mesh: batch and heads on different devices, the memory never gathered."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")

#: Runs in a process of its own: the number of devices is fixed when JAX starts.
SCRIPT = r"""
import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import attendre_core as at
import attendre_jax

B, S, M, N, H, G, D, C = 4, 8, 32, 8, 8, 4, 16, 64
CASES = {
    "tokens": dict(memory=at.KeyValueMemory(M, at.LFA()), top_k=12, encoding=at.RoPE()),
    "heads": dict(memory=at.KeyValueMemory(M, at.LRA("max"), per_head=True), encoding=at.T5Bias()),
    "clamped": dict(memory=at.KeyValueMemory(M, at.LRU(), present="visible"), top_k=12,
                    encoding=at.LMInfinite(16)),
}
name = sys.argv[1]
mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
attention = attendre_jax.AttendreAttention.create(
    jax.random.key(0), C, H, kv_heads=G, head_dim=D, q_memory=N, **CASES[name]
)
state = attention.init_state(B, chunk=S)


def place(tree, spec):
    where = jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, spec(jax.tree_util.keystr(path), leaf)), tree
    )
    return jax.device_put(tree, where), where


def of_state(path, leaf):
    if path.startswith(".kv") and (path in (".kv.key", ".kv.value") or leaf.ndim == 3):
        return P("data", "model")
    return P("data", None, "model") if path == ".queue.data[0]" else P("data")


def of_params(path, leaf):
    return P("model") if path == ".out" else P(None, "model")


sharded, states = place(state, of_state)
spread, params = place(attention, of_params)
xs = jax.random.normal(jax.random.key(1), (7, B, S, C))
rows = NamedSharding(mesh, P("data"))
step = jax.jit(
    lambda attention, state, x: attention(state, x),
    in_shardings=(params, states, rows), out_shardings=(states, None), donate_argnums=1,
)
text = step.lower(spread, sharded, jax.device_put(xs[0], rows)).compile().as_text()
for line in text.splitlines():
    found = re.search(r"= (.*?) ([a-z-]+?)(?:-start)?\(", line)
    if found and re.match("all-|collective-|reduce-scatter", found[2]):
        for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", found[1]):
            print("collective", found[2], kind, math.prod(int(n) for n in shape.split(",") if n))
local = sharded.kv.key.addressable_shards[0].data.size
print("local", local, sharded.kv.key.size)

plain = jax.jit(lambda attention, state, x: attention(state, x))
for x in xs:
    state, want = plain(attention, state, x)
    sharded, got = step(spread, sharded, jax.device_put(x, rows))
    np.testing.assert_allclose(got.value, want.value, atol=1e-5)
    np.testing.assert_array_equal(got.position, want.position)
np.testing.assert_array_equal(np.sort(sharded.kv.position), np.sort(state.kv.position))
assert int(np.asarray(state.kv.evictions).min()) > 0
assert sharded.kv.key.sharding == states.kv.key
print("equal")
"""


# Models on a mesh show the same of scores that are added up (test_jax_mesh.py).
LONG = [pytest.param(name, marks=pytest.mark.thorough) for name in ("tokens", "clamped")]


@pytest.mark.parametrize("name", ["heads", *LONG])
def test_a_sharded_step_gathers_no_memory(name):
    """Scores are summed over heads, outputs mixed over heads: nothing else crosses devices."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, name],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["equal"] in lines
    (local, whole) = next((int(n) for n in line[1:]) for line in lines if line[0] == "local")
    assert whole == 4 * local, "keys are not spread over all four devices"
    collectives = [(line[1], line[2], int(line[3])) for line in lines if line[0] == "collective"]
    assert collectives, "the outputs are mixed over heads, so something must be added up"
    rows, slots, seq, dim = 2, 32 + 8, 8, 64
    for how, kind, size in collectives:
        # Not only no gathering: XLA can also write a gather as a sum.
        assert how == "all-reduce", f"{how} of {size} {kind}"
        assert size <= max(rows * slots, rows * seq * dim), f"{how} of {size} {kind}"
        assert size < local, f"{how} of {size} {kind}, but a device holds {local} of the keys"
    if name == "heads":
        floats = {size for _, kind, size in collectives if kind == "f32"}
        assert floats <= {rows * seq * dim}, "each head decides alone: no score crosses devices"
