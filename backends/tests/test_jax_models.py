"""Zoo models as pure functions in JAX: the numbers of the models themselves, and gradients."""

from dataclasses import replace

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.config import RawConfig

jax = pytest.importorskip("jax")
import attendre_jax  # noqa: E402

jnp = jax.numpy

SIZES = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 20,
    "max_position_embeddings": 64,
}
LLAMA = architecture_of(RawConfig(SIZES, "config.json"))
#: The last layer looks only 5 positions back: two runs of layers.
MIXED = replace(LLAMA, windows=(None, None, 5))
T5 = architecture_of(
    RawConfig(
        {
            "model_type": "t5", "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2,
            "num_heads": 4, "vocab_size": 20, "relative_attention_num_buckets": 8,
            "decoder_start_token_id": 0,
        },
        "config.json",
    )
)  # fmt: skip
LENGTHS = (21, 14)


def params_of(architecture, seed=0):
    params = attendre_jax.random_parameters(architecture, jax.random.key(seed))
    noise = np.random.default_rng(seed)
    flat = attendre_jax.flat_parameters(architecture, params)
    # Everything matters: positions, norms, and attention that is far from uniform.
    moved = {
        name: array + 0.3 * noise.normal(size=array.shape).astype(np.float32)
        for name, array in flat.items()
    }
    return attendre_jax.nested_parameters(architecture, moved)


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 20, length).tolist() for length in LENGTHS]
    tokens = np.zeros((2, max(LENGTHS)), dtype=np.int32)
    valid = np.zeros(tokens.shape, dtype=bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
        valid[number, : len(row)] = True
    return rows, jnp.asarray(tokens), jnp.asarray(valid)


def wanted(architecture, params, memory, attention=None, **more):
    """Return what the model computes in NumPy, without JAX."""
    model = at.Model(architecture, at.convert(params, "numpy"), memory=memory, attention=attention)
    return model.logits(inputs()[0], **more)


MEMORIES = {
    "full": None,
    "no-delay": at.MemoryConfig(at.LFA(initial=at.InitialScore(0.0)), 8, chunk=4, top_k=6),
    "drain": at.MemoryConfig(at.LRA("sum", at.InitialScore(0.0)), 9, 5, chunk=4),
    "flush": at.MemoryConfig(at.FIFO(), 9, 5, chunk=4, present="visible", finish="flush"),
}


@pytest.mark.parametrize(
    ("name", "scan_layers"),
    [
        *((name, True) for name in MEMORIES),
        pytest.param("drain", False, marks=pytest.mark.thorough),
    ],
)
def test_logits_are_those_of_the_model(name, scan_layers):
    architecture = MIXED if name in ("full", "drain") else LLAMA
    memory = MEMORIES[name]
    attention = "prefix" if memory is not None and memory.q_size else None
    params = params_of(architecture)
    functions = attendre_jax.ModelFunctions(
        architecture, memory, attention, scan_layers=scan_layers
    )
    _, tokens, valid = inputs()
    got = np.asarray(jax.jit(functions.logits)(params, tokens, valid))
    want = wanted(architecture, params, memory, attention)
    assert np.abs(want).max() > 1
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(got[row, :length], want[row, :length], atol=2e-4)


@pytest.mark.parametrize("name", ["full", "drain"])
def test_an_encoder_decoder_writes_what_the_model_writes(name):
    memory = MEMORIES[name]
    params = params_of(T5)
    memory = memory if memory is None else replace(memory, encoder_outputs=10)
    written = np.asarray([[0, 5, 7, 1], [0, 3, 2, 9]], dtype=np.int32)
    functions = attendre_jax.ModelFunctions(T5, memory)
    _, tokens, valid = inputs()
    got = jax.jit(functions.logits)(params, tokens, valid, jnp.asarray(written))
    want = wanted(T5, params, memory, decoder_tokens=written)
    np.testing.assert_allclose(got, want, atol=2e-4)
    with pytest.raises(at.ConfigError, match="needs decoder_tokens"):
        functions.logits(params, tokens, valid)


def loss_of(functions):
    _, tokens, valid = inputs()

    def loss(params):
        logits = jax.nn.log_softmax(functions.logits(params, tokens, valid)[:, :-1])
        right = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=2)[:, :, 0]
        return -jnp.sum(jnp.where(valid[:, 1:], right, 0.0))

    return jax.jit(jax.value_and_grad(loss))


@pytest.mark.thorough
def test_gradient_through_a_memory_that_holds_all_is_that_of_full_attention():
    params = params_of(LLAMA)
    memory = at.MemoryConfig(at.LFA(), 24, chunk=4)
    want_loss, want = loss_of(attendre_jax.ModelFunctions(LLAMA))(params)
    for options in ({"remat": True}, {"remat": False, "scan_layers": False}):
        loss, got = loss_of(attendre_jax.ModelFunctions(LLAMA, memory, **options))(params)
        assert float(loss) == pytest.approx(float(want_loss), rel=1e-5)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-4 * float(jnp.abs(b).max() + 1))
    cut = attendre_jax.ModelFunctions(LLAMA, memory, truncate=1)
    loss, got = loss_of(cut)(params)
    assert float(loss) == pytest.approx(float(want_loss), rel=1e-5)
    key = got["layers"][0]["k"]
    assert float(jnp.abs(key - want["layers"][0]["k"]).max()) > 1e-2, "nothing was cut"


@pytest.mark.thorough
def test_reading_in_pieces_equals_reading_at_once():
    memory = at.MemoryConfig(at.LRA("sum", at.InitialScore(0.0)), 9, 4, chunk=4)
    functions = attendre_jax.ModelFunctions(LLAMA, memory, "prefix")
    params = params_of(LLAMA)
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, 20, (2, 24)), dtype=jnp.int32)
    want = np.asarray(jax.jit(functions.hidden)(params, tokens))
    read, state = jax.jit(functions.read), functions.start(params, 2)
    pieces = []
    for start in range(0, 24, 8):
        state, out = read(params, state, tokens[:, start : start + 8])
        pieces.append(out)
    state, out = jax.jit(functions.finish)(params, state)
    pieces.append(out)
    assert read._cache_size() == 1
    seen = np.zeros(want.shape[:2], dtype=int)
    for out in pieces:
        for row in range(2):
            real = np.asarray(out.valid[row])
            at_places = np.asarray(out.position[row])[real]
            seen[row, at_places] += 1
            np.testing.assert_allclose(out.x[row][real], want[row, at_places], atol=1e-4)
    assert (seen == 1).all()
    _, nothing = jax.jit(functions.finish)(params, state)
    assert not nothing.valid.any()


def test_shared_parameters_are_named_once():
    params = attendre_jax.random_parameters(T5, jax.random.key(0))
    flat = attendre_jax.flat_parameters(T5, params)
    assert len(flat) < len(jax.tree.leaves(params))
    again = attendre_jax.nested_parameters(T5, flat)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    assert all(a is b for a, b in zip(*map(jax.tree.leaves, (again, params)), strict=True))


def test_equal_layers_are_compiled_once():
    """Twelve layers make no longer a program than three."""
    memory = at.MemoryConfig(at.FIFO(), 8, 4, chunk=4)
    _, tokens, valid = inputs()

    def lines(layers):
        architecture = replace(LLAMA, layers=layers)
        functions = attendre_jax.ModelFunctions(architecture, memory, "prefix")
        params = attendre_jax.random_parameters(architecture, jax.random.key(0))
        text = jax.jit(functions.hidden).lower(params, tokens, valid).as_text()
        return sum(
            " stablehlo.sort" in line or "stablehlo.dot" in line for line in text.splitlines()
        )

    assert lines(12) == lines(3) > 0


def test_a_stream_without_memory_is_refused():
    functions = attendre_jax.ModelFunctions(LLAMA)
    with pytest.raises(at.ConfigError, match="reading a stream needs a memory"):
        functions.start(params_of(LLAMA), 1)
