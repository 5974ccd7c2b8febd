"""Chunks in a scan: one compiled step, whatever the length; buffers that are reused."""

import numpy as np
import pytest

import attendre_core as at
from attendre_core.layer import LayerOutput, LayerState

jax = pytest.importorskip("jax")
import attendre_jax  # noqa: E402

jnp = jax.numpy

B, S, M, N, H, G, D, T = 2, 4, 8, 6, 4, 2, 8, 6
LAYER = at.AttendreLayer(
    at.KeyValueMemory(M, at.LFA(initial=at.InitialScore(0.0))),
    at.DataOnlyMemory(N),
    top_k=5,
    encoding=at.RoPE(),
)
#: Compiled in half the time.
LIGHT = at.AttendreLayer(at.KeyValueMemory(M), at.DataOnlyMemory(N))


def chunks(count=T, seed=0):
    """Return chunks on a new first axis, with some padding."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(count, B, S, n, D)).astype(np.float32) for n in (H, G, G))
    carry = rng.normal(size=(count, B, S, 3)).astype(np.float32)
    valid = rng.random((count, B, S)) < 0.8
    return at.Chunk(*(jnp.asarray(x) for x in (q, k, v)), valid=jnp.asarray(valid), carry=carry)


def start(layer=LAYER):
    return layer.init(batch=B, heads=H, kv_heads=G, head_dim=D, carry_dim=3, xp=jnp, chunk=S)


@jax.jit
def light_scan(state, chunks):
    return jax.lax.scan(LIGHT.step, state, chunks)


def assert_same(got, want):
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
    ):
        where = jax.tree_util.keystr(path)
        assert a.dtype == b.dtype, where
        np.testing.assert_allclose(a, b, atol=2e-6, err_msg=where)


def test_plain_scan_equals_steps_one_by_one():
    xs = chunks()
    last, outs = jax.jit(lambda s, c: jax.lax.scan(LAYER.step, s, c))(start(), xs)
    step, state = jax.jit(LAYER.step), start()
    for i in range(T):
        state, out = step(state, jax.tree.map(lambda x, i=i: x[i], xs))
        assert_same(jax.tree.map(lambda x, i=i: x[i], outs), out)
    assert_same(last, state)
    assert step._cache_size() == 1, "the step was compiled again"


@pytest.mark.parametrize(
    "options", [{"remat": True}, {"truncate": 2}, {"remat": True, "truncate": 1}], ids=str
)
def test_scan_chunks_gives_what_a_plain_scan_gives(options):
    got = jax.jit(lambda s, c: attendre_jax.scan_chunks(LIGHT, s, c, **options))(start(), chunks())
    assert_same(got, light_scan(start(), chunks()))


def test_a_visible_memory_scans_with_room_for_its_chunk():
    memory = at.KeyValueMemory(M, at.LRA("sum"), present="visible")
    layer = at.AttendreLayer(memory, at.DataOnlyMemory(N))
    shape = {"batch": B, "heads": H, "kv_heads": G, "head_dim": D, "carry_dim": 3, "xp": jnp}
    step, states = jax.jit(layer.step), []
    for chunk, slots in ((S, M + S), (None, M + 128)):
        empty = layer.init(**shape, chunk=chunk)
        last, outs = jax.jit(lambda s, c: jax.lax.scan(layer.step, s, c))(empty, chunks())
        assert last.kv.key.shape == empty.kv.key.shape == (B, G, slots, D)
        state = empty
        for i in range(T):
            state, out = step(state, jax.tree.map(lambda x, i=i: x[i], chunks()))
            assert_same(jax.tree.map(lambda x, i=i: x[i], outs), out)
        assert_same(last, state)
        states.append(memory.settle(last.kv)[0])
    for row in range(B):  # room is room: it changes nobody's fate
        assert held(states[0], row) == held(states[1], row)
    small = layer.init(**shape, chunk=S - 1)
    message = r"4 entries, but .* at most 3. Make it with init\(..., chunk=4\)"
    with pytest.raises(at.ConfigError, match=message):
        attendre_jax.scan_chunks(layer, small, chunks())


def held(state, row):
    return sorted(np.asarray(state.position[row])[np.asarray(state.valid[row])].tolist())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attendre_jax.scan_chunks(LAYER, None, None, truncate=0), "truncate is 0"),
        (
            lambda: attendre_jax.scan_chunks(lambda s, c: (s, c), 0, 0, encoding_params=1),
            "encoding_params belong to a layer",
        ),
        (lambda: attendre_jax.split_chunks(jnp.zeros((1, 4)), 0), "length is 0"),
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(at.ConfigError, match=message):
        call()


@pytest.mark.parametrize("length", [S * T, S * T - 3])
def test_whole_inputs_are_cut_and_put_together(length):
    x = jnp.arange(B * length * 2.0).reshape(B, length, 2)
    cut = attendre_jax.split_chunks({"x": x, "none": None}, S)
    assert cut["x"].shape == (T, B, S, 2)
    assert cut["none"] is None
    assert (attendre_jax.joined_chunks(cut)["x"][:, :length] == x).all()


def test_a_donated_state_is_reused():
    step = attendre_jax.compiled_step(LIGHT)
    xs, state = chunks(), start()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    first = jax.tree.map(lambda x: x[0], xs)
    analysis = step.lower(state, first).compile().memory_analysis()
    assert analysis.alias_size_in_bytes == size, "not every array of the state is written in place"
    plain, kept = attendre_jax.compiled_step(LIGHT, donate=False), start()
    for i in range(T):
        chunk = jax.tree.map(lambda x, i=i: x[i], xs)
        given = state
        state, out = step(given, chunk)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
        kept, want = plain(kept, chunk)
        assert_same(out, want)
    assert_same(state, kept)


def test_vmap_over_an_extra_axis_equals_a_loop():
    copies = 3
    many = [chunks(seed=seed) for seed in range(copies)]
    xs = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * copies), start())

    got = jax.jit(jax.vmap(light_scan))(states, xs)
    for i, own in enumerate(many):
        assert_same(jax.tree.map(lambda x, i=i: x[i], got), light_scan(start(), own))


def test_export_goes_through_a_file(tmp_path):
    pytest.importorskip("flatbuffers")
    from jax import export

    state, chunk = start(), jax.tree.map(lambda x: x[0], chunks())
    (batch,) = export.symbolic_shape("batch")
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype), (state, chunk)
    )
    step = jax.jit(LAYER.step)
    (tmp_path / "step").write_bytes(export.export(step)(*shapes).serialize())
    again = jax.jit(export.deserialize((tmp_path / "step").read_bytes()).call)
    got, want = again(state, chunk), step(state, chunk)
    assert type(got[0]) is LayerState
    assert type(got[1]) is LayerOutput
    assert_same(got, want)
    one = jax.tree.map(lambda x: x[:1], (state, chunk))
    assert_same(again(*one), jax.tree.map(lambda x: x[:1], want))


def test_tiers_are_exported_too(tmp_path):
    pytest.importorskip("flatbuffers")
    from jax import export

    behind = at.Tier(at.KeyValueMemory(4), compress=at.MeanPool(2))
    layer = at.AttendreLayer(at.Tiers(at.KeyValueMemory(4, at.LFA()), behind))
    state, chunk = (
        layer.init(batch=2, heads=2, head_dim=4, xp=jnp),
        at.Chunk(*jnp.ones((3, 2, 3, 2, 4))),
    )
    step = jax.jit(layer.step)
    (tmp_path / "step").write_bytes(export.export(step)(state, chunk).serialize())
    again = jax.jit(export.deserialize((tmp_path / "step").read_bytes()).call)
    for _ in range(3):
        got, want = again(state, chunk), step(state, chunk)
        assert type(got[0].kv) is type(state.kv)
        assert_same(got, want)
        state = got[0]


def test_compiled_code_never_asks_for_a_value():
    """A step has no callback to the host and no transfer: placement alone decides where it runs."""
    text = jax.jit(LAYER.step).lower(start(), jax.tree.map(lambda x: x[0], chunks())).as_text()
    for word in ('custom_call_target = "xla_python', "outfeed", "infeed", "send", "recv"):
        assert word not in text
