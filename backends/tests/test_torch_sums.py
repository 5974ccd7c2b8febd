"""Causal sums of logits without reading: no product of all pairs, the same sums."""

import pytest

import attendre_core as at
from attendre_core import ops

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")

from hypothesis import strategies as st  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402

from attendre_torch import sums  # noqa: E402

B, S, M, H, G, D = 2, 6, 20, 4, 2, 8
POLICIES = {
    "LRA-sum": at.LRA("sum"),
    "LRA-mean": at.LRA("mean"),
    "LRA-last": at.LRA("last"),
    "LFA": at.LFA(),
}


def made(seed, queries, slots, *, per_head, group, dtype=torch.float64):
    """Make causal pairs: any positions, also equal ones, queries in any order."""
    seeded = torch.Generator().manual_seed(seed)

    def whole(*shape):
        return torch.randint(0, 12, shape, generator=seeded, dtype=torch.int32)

    query = torch.randn(B, G, group, queries, D, generator=seeded, dtype=dtype)
    key = torch.randn(B, G, slots, D, generator=seeded, dtype=dtype)
    at_query, at_key = whole(B, 1, 1, queries), whole(B, G if per_head else 1, slots)
    real = torch.rand(B, queries, generator=seeded) < 0.7
    held = torch.rand(at_key.shape, generator=seeded) < 0.9
    weight = torch.rand(B, queries, generator=seeded, dtype=dtype)
    term = ops.Term(query, key)
    pairs = ops.Pairs(
        at_query, at_key, real, held, at_key, (term,), at_query, at_key, causal=True, memo={}
    )
    return pairs, weight


@hypothesis.settings(max_examples=60, deadline=None, database=None)
@hypothesis.given(
    seed=st.integers(0, 2**31),
    queries=st.integers(1, 9),
    slots=st.integers(1, 15),
    per_head=st.booleans(),
    group=st.integers(1, 3),
    weighed=st.booleans(),
)
def test_sums_are_those_of_all_pairs(seed, queries, slots, per_head, group, weighed):
    pairs, weight = made(seed, queries, slots, per_head=per_head, group=group)
    weight = weight if weighed else None
    found = sums.causal_sums(pairs, weight)
    wanted = ops.sum_logits.plain(pairs, weight)
    held = pairs.key_valid[:, :, None, :].expand(wanted.shape)
    torch.testing.assert_close(found[held], wanted[held], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype):
    pairs, weight = made(3, 9, 15, per_head=False, group=2, dtype=dtype)
    found = sums.causal_sums(pairs, weight.float())
    assert found.dtype == torch.float32
    (term,) = pairs.terms
    exact = pairs._replace(terms=(ops.Term(term.query.double(), term.key.double()),))
    torch.testing.assert_close(
        found.double(), sums.causal_sums(exact, weight.double()), rtol=1e-5, atol=1e-4
    )


def test_equal_keys_have_equal_sums_in_any_slot():
    """Rounding must not decide a tie: keys that the same queries see, all with one content."""
    pairs, weight = made(5, 9, 301, per_head=False, group=2, dtype=torch.float32)
    (term,) = pairs.terms
    key = term.key[:, :, :1].expand(-1, -1, 301, -1).contiguous()
    pairs = pairs._replace(terms=(ops.Term(term.query, key),))
    found = sums.causal_sums(pairs, weight)
    for row in range(B):
        for place in range(12):
            equal = found[row][..., pairs.key_position[row, 0] == place]
            assert (equal == equal[..., :1]).all()


def products(policy, *, top_k=None, encoding=None, present="visible"):
    """Return the shapes of all matrix products, and all operations, of a compiled causal step."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    layer = at.AttendreLayer(
        at.KeyValueMemory(M, policy, present=present),
        top_k=top_k,
        causal=True,
        encoding=encoding or at.RoPE(),
    )
    state = layer.init(batch=B, heads=H, kv_heads=G, head_dim=D, xp="torch", chunk=S)
    chunk = at.Chunk(*(torch.randn(B, S, heads, D) for heads in (H, G, G)))
    torch._dynamo.reset()
    with torch.no_grad():
        step = torch.compile(layer.step, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
        step(state, chunk)
    (graph,) = graphs
    calls = [node for node in graph.graph.nodes if hasattr(node.target, "overloadpacket")]
    shapes = [
        tuple(node.meta["val"].shape)
        for node in calls
        if node.target.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.mm)
    ]
    return shapes, [node.target.overloadpacket for node in calls], state.kv.key.shape[2]


def of_all_pairs(shapes, slots):
    """Select products of queries with slots; grouped heads are further rows of a K/V head."""
    return [s for s in shapes if slots in s[-2:] and {S, S * H // G} & set(s[-2:])]


LONG = pytest.mark.thorough


@pytest.mark.parametrize("present", ["visible", pytest.param("compete", marks=LONG)])
@pytest.mark.parametrize(
    "policy",
    ["LRA-sum", "LRA-last", *(pytest.param(x, marks=LONG) for x in ("LRA-mean", "LFA"))],
)
def test_a_compiled_causal_step_multiplies_no_pairs_but_in_attention(policy, present):
    shapes, operations, slots = products(POLICIES[policy], present=present)
    fused = [x for x in operations if "scaled_dot_product" in str(x)]
    assert len(fused) == 1
    assert not of_all_pairs(shapes, slots)


def test_attention_to_the_top_k_multiplies_all_pairs_once():
    shapes, _, slots = products(POLICIES["LFA"], top_k=5)
    assert len(of_all_pairs(shapes, slots)) == 1


def test_what_is_pooled_from_single_logits_needs_all_pairs():
    """Shows that the tests above would notice."""
    shapes, _, slots = products(at.LRA("max"))
    assert of_all_pairs(shapes, slots)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_needs_pairs_is_declined(device):
    pairs, _ = made(0, 5, 9, per_head=False, group=2)
    bias = torch.zeros(1, device=device)
    near = torch.ones(1, 1, 1, 5, 9, dtype=torch.bool, device=device)
    pairs = pairs._replace(
        key_position=pairs.key_position.to(device), query_valid=pairs.query_valid.to(device)
    )
    for other in ({"bias": bias}, {"near": near}, {"limit": 5.0}, {"sink": bias}):
        assert sums.sum_logits(pairs._replace(**other)) is NotImplemented
