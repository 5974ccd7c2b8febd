"""FlexAttention against the plain body, and the calls that a GPU would make, on the CPU."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import attendre_core as at
from attendre_core import force_generic, ops
from attendre_core.positions import Places

torch = pytest.importorskip("torch")

from torch.nn.attention import flex_attention as theirs  # noqa: E402

from attendre_torch import flex, kernels  # noqa: E402
from attendre_torch.half import half_on_cpu  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
SCHEMES = {
    "none": at.NoPosition(),
    "rope": at.RoPE(),
    "alibi": at.ALiBi(),
    "t5": at.T5Bias(buckets=8, max_distance=16),
    "lm-infinite": at.LMInfinite(5),
    "in-cache": at.InCache(at.LMInfinite(3)),
    "window": at.Window(7, at.RoPE()),
}


def pairs_of(
    scheme, seed=0, *, batch=2, heads=2, group=2, queries=3, slots=7, dim=8, causal=False,
    limit=None, sink=False, document=False, per_head=False, array_bias=False, dtype=torch.float32,
):  # fmt: skip
    """Set random queries against random slots; some of both are not valid."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32)).to(dtype)

    def numbers(*shape):
        return torch.from_numpy(rng.integers(0, 30, shape).astype(np.int32))

    def flags(*shape):
        return torch.from_numpy(rng.random(shape) < 0.7)

    scale = dim**-0.5
    query = normal(batch, heads, group, queries, dim).float() * scale
    key, value = normal(batch, heads, slots, dim), normal(batch, heads, slots, dim + 2)
    sides = heads if per_head else 1
    at_query, at_key = numbers(batch, 1, 1, queries), numbers(batch, sides, slots)
    real, held = flags(batch, queries), flags(batch, sides, slots)
    places = Places(at_query, at_key, real, held)
    table = torch.from_numpy(rng.normal(size=(8, heads * group)).astype(np.float32))
    encoded = SCHEMES[scheme].encode(query, key, places, table)
    near, bias = encoded.near, encoded.bias
    documents = None
    if document:
        asked, stored = numbers(batch, queries) % 2, numbers(batch, sides, slots) % 2
        same = asked[:, None, None, :, None] == stored[:, :, None, None, :]
        documents = (asked, stored) if near is None else None
        near = same if near is None else near & same
    if array_bias:
        bias = normal(1, heads, 1, queries, slots).float()
    pairs = ops.Pairs(
        at_query, at_key, real, held, at_key, encoded.terms, encoded.places.query,
        encoded.places.key, bias, near, causal, {}, limit,
        normal(1, heads, group, 1, 1).float() if sink else None, scale, documents,
    )  # fmt: skip
    return pairs, value


def plain(pairs, value):
    with force_generic():
        return ops.attend(pairs._replace(memo={}), value)


def close(one, other, tolerance=1e-5):
    torch.testing.assert_close(one.float(), other.float(), rtol=tolerance, atol=tolerance)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)  # fmt: skip
@given(
    scheme=st.sampled_from(sorted(SCHEMES)),
    seed=st.integers(0, 2**32 - 1),
    sizes=st.fixed_dictionaries(
        {
            "batch": st.integers(1, 3),
            "heads": st.integers(1, 3),
            "group": st.integers(1, 3),
            "queries": st.integers(1, 5),
            "slots": st.integers(1, 9),
            "dim": st.sampled_from([4, 6, 16]),
        }
    ),
    options=st.fixed_dictionaries(
        {
            "limit": st.sampled_from([None, 2.5]),
            **{
                name: st.booleans()
                for name in ("causal", "sink", "document", "per_head", "array_bias")
            },
        }
    ),
)
def test_flex_attention_is_the_plain_body(scheme, seed, sizes, options):
    """Its functions of one pair are evaluated for all pairs, without compiling them."""
    pairs, value = pairs_of(scheme, seed, **sizes, **options)
    with pytest.MonkeyPatch.context() as patch, flex.use_flex(True):
        patch.setattr(theirs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        found = flex.attend(pairs, value)
    close(found, plain(pairs, value))


@pytest.mark.parametrize("scheme", ["t5", "lm-infinite"])
def test_a_compiled_step_contains_flex_attention(scheme):
    pairs, value = pairs_of(scheme, causal=True, dim=16)
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with flex.use_flex(True):
        found = torch.compile(ops.attend, fullgraph=True, backend=keep)(pairs, value)
    calls = sum("flex_attention" in str(n.target) for g in graphs for n in g.graph.nodes)
    assert calls == (2 if scheme == "lm-infinite" else 1)
    close(found, plain(pairs, value))


def test_a_whole_compiled_step_attends_by_flex_attention():
    layer = at.AttendreLayer(at.KeyValueMemory(6, at.LFA()), encoding=at.ALiBi(), causal=True)
    made = torch.Generator().manual_seed(0)
    chunk = at.Chunk(*(torch.randn(1, 4, n, 16, generator=made) for n in (4, 2, 2)))
    state = layer.init(batch=1, heads=4, kv_heads=2, head_dim=16, xp=torch)
    state, _ = layer.step(state, chunk)
    want, output = layer.step(state, chunk)
    with flex.use_flex(True):
        found, same = torch.compile(layer.step, fullgraph=True, backend="aot_eager")(state, chunk)
    close(same.value, output.value)
    close(found.kv.score, want.kv.score)
    assert torch.equal(found.kv.position, want.kv.position)


def test_a_memory_reads_by_flex_attention():
    """The op reaches it through the backend, and only if it is asked for on the CPU."""
    memory = at.KeyValueMemory(8, at.LFA())
    made = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 5, n, 8, generator=made) for n in (4, 2, 2))
    state, _ = memory.insert(memory.init(like=key), key, value)
    encoding = at.ALiBi()
    _, want = memory.attend(state, query, encoding=encoding)
    pairs, stored = pairs_of("alibi")
    assert flex.attend(pairs, stored) is NotImplemented
    with flex.use_flex(True):
        _, found = memory.attend(state, query, encoding=encoding)
    close(found, want)
    with flex.use_flex(False):
        assert flex.attend(pairs, stored) is NotImplemented


def test_gradients_are_declined():
    pairs, value = pairs_of("t5")
    with flex.use_flex(True):
        assert flex.attend(pairs, value.requires_grad_()) is NotImplemented
        with torch.no_grad():
            assert flex.attend(pairs, value) is not NotImplemented


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", ["none", "t5", "lm-infinite"])
def test_half_precision_goes_in_as_it_is_stored(scheme, dtype, monkeypatch):
    """Without rotation, only weights and outputs are rounded."""
    pairs, value = pairs_of(scheme, dtype=dtype, slots=6)
    seen = []

    def watched(query, key, value, **options):
        seen.append({query.dtype, key.dtype, value.dtype})
        return theirs.flex_attention(query, key, value, **options)

    monkeypatch.setattr(flex, "flex_attention", watched)
    monkeypatch.setattr(theirs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    with flex.use_flex(True), half_on_cpu():
        found = flex.attend(pairs, value)
    assert seen == [{dtype}] * (3 if scheme == "lm-infinite" else 1)
    unit = torch.finfo(dtype).eps / 2
    room = 2 * unit if scheme != "lm-infinite" else 16 * unit
    assert (found.float() - plain(pairs, value)).abs().max() <= room * value.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("axes", [(1, 1), (2, 1), (1, 3), (2, 3)], ids=str)
def test_query_heads_are_rows_of_their_key_head_off_the_cpu(axes, dtype):
    """No call asks for ``enable_gqa`` with a mask: PyTorch would not fuse it on a GPU."""
    heads, group = axes
    made = torch.Generator().manual_seed(0)
    query = torch.randn(2, 2, 3, 4, 8, generator=made).to(dtype)
    key, value = torch.randn(2, 2, 2, 6, 8, generator=made).to(dtype)
    allowed = torch.rand(2, heads, group, 4, 6, generator=made) < 0.6
    allowed[..., 0] = True
    rows, mask = kernels._folded(query, allowed)
    assert rows.shape == (2, 2, 12, 8)
    assert mask.shape == (2, heads, 12, 6)
    flat = torch.nn.functional.scaled_dot_product_attention(rows, key, value, mask, scale=1.0)
    want = ops.attention.plain(query.float(), key.float(), value.float(), allowed)
    close(flat.reshape(want.shape), want, 1e-5 if dtype == torch.float32 else 0.03)


def test_off_the_cpu_the_fused_call_gets_no_grouped_heads(monkeypatch):
    """On the device ``meta``, whose shapes are those of any accelerator."""
    calls = []

    def watched(query, key, value, **options):
        calls.append((query, key, value, options))
        return query.new_empty(*query.shape[:3], value.shape[3])

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    pairs, value = pairs_of("rope", causal=True, dtype=torch.bfloat16)

    def there(x):
        return x.to("meta") if isinstance(x, torch.Tensor) else x

    term = pairs.terms[0]
    moved = ops.Term(
        *(there(x) for x in (term.plain_query, term.plain_key)), term.rotate,
        *(there(x) for x in (term.query_at, term.key_at)),
    )  # fmt: skip
    pairs = pairs._replace(terms=())
    pairs = type(pairs)(*(there(x) for x in pairs))._replace(terms=(moved,))
    output = kernels.attend(pairs, there(value))
    ((query, key, stored, options),) = calls
    assert query.dtype == key.dtype == stored.dtype == output.dtype == torch.bfloat16
    assert "enable_gqa" not in options
    assert query.shape[1] == key.shape[1] == 2
    assert options["attn_mask"].dtype == torch.bool
    assert options["attn_mask"].shape[2] == query.shape[2]
    assert options["scale"] == pairs.scale
