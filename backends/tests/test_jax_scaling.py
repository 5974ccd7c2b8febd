"""The formulas of docs/scaling.md against states, compiled programs and the page itself."""

import importlib.util
import sys
from pathlib import Path

import pytest

import attendre_core as at
from attendre_core.zoo.architectures.llama import Llama

jax = pytest.importorskip("jax")
import attendre_jax  # noqa: E402

jnp = jax.numpy
FILE = Path(__file__).parents[2] / "docs" / "scaling_tables.py"
SPEC = importlib.util.spec_from_file_location("scaling_tables", FILE)
tables = importlib.util.module_from_spec(SPEC)
sys.modules["scaling_tables"] = tables  # for dataclasses, which look their module up
SPEC.loader.exec_module(tables)

SMALL = tables.Sizes(2, 256, 8, 2, 32, 512, 512)


def llama_of(sizes):
    return Llama(
        layers=sizes.layers, dim=sizes.dim, heads=sizes.heads, kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim, vocabulary=sizes.vocabulary, context=2**24, hidden=sizes.hidden,
        rope=at.RoPE(),
    )  # fmt: skip


def functions_of(sizes, memory, **options):
    config = at.MemoryConfig(
        at.LFA(), memory.size, memory.waiting, chunk=memory.chunk, per_head=memory.per_head,
        present="visible" if memory.visible else "compete",
    )  # fmt: skip
    return attendre_jax.ModelFunctions(llama_of(sizes), config, **options)


def shapes_of(sizes, dtype):
    return jax.eval_shape(
        lambda key: attendre_jax.random_parameters(llama_of(sizes), key, dtype), jax.random.key(0)
    )


def nbytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "memory",
    [
        tables.Memory(24, 0, 8),
        tables.Memory(24, 10, 8, visible=True),
        tables.Memory(24, 10, 8, per_head=True),
    ],
)
def test_bytes_of_real_states(memory, dtype):
    functions = functions_of(SMALL, memory)
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes_of(SMALL, dtype))
    state = functions.start(params, 3)
    want = tables.state_bytes(SMALL, memory, 3, jnp.dtype(dtype).itemsize)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == want
    (run,) = state  # equal layers in one scan
    assert nbytes(run.kv) == 2 * tables.kv_bytes(SMALL, memory, 3, jnp.dtype(dtype).itemsize)


def test_bytes_of_the_large_model():
    params = shapes_of(tables.MODEL, jnp.bfloat16)
    assert nbytes(params) == 2 * tables.MODEL.weights
    assert 70.4e9 < tables.MODEL.weights < 70.7e9
    functions = functions_of(tables.MODEL, tables.MEMORY)
    state = jax.eval_shape(lambda params: functions.start(params, 1), params)
    assert nbytes(state) == tables.state_bytes(tables.MODEL, tables.MEMORY, 1, 2)


@pytest.mark.parametrize(
    "policy", [at.FIFO(), at.LFA(), at.LRA("sum", score="softmax")], ids=["FIFO", "LFA", "LRA"]
)
def test_operations_of_a_step_as_xla_counts_them(policy):
    heads, kv_heads, dim, seq, slots = 8, 2, 64, 64, 256
    layer = at.AttendreLayer(at.KeyValueMemory(slots, policy), causal=True)
    state = jax.eval_shape(
        lambda: layer.init(batch=1, heads=heads, kv_heads=kv_heads, head_dim=dim, xp=jnp)
    )
    query, key = (jax.ShapeDtypeStruct((1, seq, n, dim), jnp.float32) for n in (heads, kv_heads))
    compiled = jax.jit(layer.step).lower(state, at.Chunk(query, key, key)).compile()
    sizes = tables.Sizes(1, 0, heads, kv_heads, dim, 0, 0)
    want = tables.token_flops(sizes, slots)
    if isinstance(policy, at.LFA):
        want += tables.score_flops(sizes, tables.Memory(slots, 0, seq))
    share = compiled.cost_analysis()["flops"] / (seq * want)
    assert 1 <= share < 1.1


def test_operations_of_a_model_as_xla_counts_them():
    memory = tables.Memory(256, 0, 64)
    functions = functions_of(SMALL, memory, scan_layers=False, remat=False)
    params = shapes_of(SMALL, jnp.float32)
    state = jax.eval_shape(lambda params: functions.start(params, 1), params)
    tokens = jax.ShapeDtypeStruct((1, memory.chunk), jnp.int32)
    compiled = jax.jit(functions.read).lower(params, state, tokens).compile()
    each = tables.token_flops(SMALL, memory.slots) + tables.score_flops(SMALL, memory)
    want = memory.chunk * each
    assert 1 <= compiled.cost_analysis()["flops"] / want < 1.1


def test_what_the_page_says_about_its_tables():
    model, memory = tables.MODEL, tables.MEMORY
    waiting = tables.q_bytes(model, memory, 1, 2) / memory.waiting
    entry = tables.kv_bytes(model, memory, 1, 2) / memory.slots
    assert 7.5 < waiting / entry < 8.5
    moved = 2 * model.weights + tables.state_bytes(model, memory, 1, 2)
    per_byte = memory.chunk * tables.token_flops(model, memory.slots) / moved
    assert all(per_byte > chip.ridge for chip in tables.CHIPS)
    assert all(
        tables.token_flops(model, memory.slots) / moved < chip.ridge for chip in tables.CHIPS
    )


def test_the_tables_of_the_page_are_up_to_date():
    text = tables.PAGE.read_text(encoding="utf-8")
    assert tables.page_of(text) == text, "run python docs/scaling_tables.py"
    for name, table in tables.TABLES.items():
        assert f"<!-- {name} -->\n{table()}\n<!-- end -->" in text
