"""Softmax weights pooled in the pass that attends: the same scores and outputs as plain code."""

import pytest

import attendre_core as at
from attendre_core.backend import force_generic

torch = pytest.importorskip("torch")

from attendre_torch import pooling  # noqa: E402

B, M, S, G, H, D = 2, 24, 7, 2, 6, 8
POLICIES = {
    "LRA-sum": at.LRA("sum", score="softmax"),
    "LRA-mean": at.LRA("mean", score="softmax", heads="max"),
    "LRA-max": at.LRA("max", score="softmax"),
    "LRA-window": at.LRA("sum", score="softmax", window=3),
    "LFA": at.LFA(1e-2, score="softmax"),
    "H2O": at.H2O(),
    "Salience": at.Salience(),
}
#: Each of their heads decides for itself.
PER_HEAD = (at.H2O, at.Salience)
ENCODINGS = {
    "none": None,
    "rope": at.RoPE(),
    "alibi": at.ALiBi(),
    "near": at.LMInfinite(1000),
    "near and far": at.LMInfinite(6),
    "all far": at.LMInfinite(0),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let small chunks count, in tiles of two queries; return the pools that were computed."""
    done, pooled = [], pooling._pooled
    monkeypatch.setattr(pooling, "_WORTH", 0)
    monkeypatch.setattr(pooling, "_TILE", 2 * (H // G) * M)

    def watched(*arguments):
        done.append(arguments)
        return pooled(*arguments)

    monkeypatch.setattr(pooling, "_pooled", watched)
    return done


def stepping(policy, *, seed=0, dtype=torch.float32, documents=False, **options):
    """Return a function that attends to a memory with empty slots, with invalid queries."""
    made = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=made).to(dtype)

    memory = at.KeyValueMemory(M, policy, **options)
    ids = torch.randint(0, 2, (B, M), generator=made, dtype=torch.int32)
    aux = {"document": ids} if documents else None
    state = memory.init(batch=B, heads=G, head_dim=D, xp=torch, aux=aux, dtype=dtype)
    place = torch.stack([torch.randperm(2 * M, generator=made)[:M] for _ in range(B)])
    held = torch.rand(B, M, generator=made) < torch.tensor([[0.7], [1.0]])
    key, value = normal(B, M, G, D), normal(B, M, G, D)
    state, _ = memory.insert(state, key, value, place.to(torch.int32), held, aux=aux)
    if state.position.ndim == 3:  # heads that hold different positions
        other = state.position[:, 1].roll(1, -1)
        state = state._replace(position=torch.stack([state.position[:, 0], other], dim=1))
    # The first queries of the second row come before all entries: they attend to nothing.
    first = torch.tensor([[M], [-3]], dtype=torch.int32)
    position = first + 2 * torch.arange(S, dtype=torch.int32)
    query, valid = normal(B, S, H, D), torch.rand(B, S, generator=made) < 0.8

    def attend(query=query, state=state, **given):
        if documents:
            given["document"] = torch.ones(B, S, dtype=torch.int32)
        return memory.attend(state, query, position, valid, **given)

    return query, state, attend


def assert_same(one, other, rtol=1e-5, atol=1e-6):
    (state, output), (plain_state, plain_output) = one, other
    torch.testing.assert_close(output, plain_output, rtol=rtol, atol=atol)
    torch.testing.assert_close(state.score, plain_state.score, rtol=1e-5, atol=1e-6)
    assert (state.observed == plain_state.observed).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_scores_and_outputs(policy, encoding, causal, small):
    _, _, attend = stepping(policy, per_head=isinstance(policy, PER_HEAD))
    fast = attend(encoding=encoding, causal=causal)
    assert small
    with force_generic():
        plain = attend(encoding=encoding, causal=causal)
    assert_same(fast, plain)


@pytest.mark.parametrize("given", [{"top_k": 4}, {"documents": True}], ids=str)
@pytest.mark.parametrize("name", ["LRA-sum", "LRA-max"])
def test_top_k_and_documents(name, given, small):
    _, _, attend = stepping(POLICIES[name], documents="documents" in given)
    top_k = given.get("top_k")
    fast = attend(causal=True, top_k=top_k)
    assert small
    with force_generic():
        plain = attend(causal=True, top_k=top_k)
    assert_same(fast, plain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype, small):
    _, _, attend = stepping(POLICIES["LRA-sum"], dtype=dtype)
    fast = attend(causal=True, encoding=at.RoPE())
    assert small
    with force_generic():
        plain = attend(causal=True, encoding=at.RoPE())
    assert fast[1].dtype == dtype
    assert_same(fast, plain)


def test_the_output_is_the_one_that_pooling_left(monkeypatch):
    _, _, attend = stepping(POLICIES["LRA-sum"])
    want = attend(causal=True)

    def refuse(*arguments, **given):
        raise AssertionError("attended twice")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refuse)
    assert_same(attend(causal=True), want)
    with pytest.raises(AssertionError, match="attended twice"):
        stepping(at.FIFO())[2](causal=True)
    with pytest.raises(AssertionError, match="attended twice"):  # a window has no output to leave
        stepping(POLICIES["LRA-window"])[2](causal=True)


def test_a_window_pools_its_own_queries_only(small):
    _, _, attend = stepping(POLICIES["LRA-window"])
    attend(causal=True)
    ((pairs, _, _, value),) = small
    assert pairs.terms[0].plain_query.shape[3] == 3
    assert value is None


def test_gradients_are_those_of_plain_code(small):
    query, state, attend = stepping(POLICIES["LRA-sum"])
    found = []
    for plain in (False, True):
        asked, key = query.clone().requires_grad_(), state.key.clone().requires_grad_()
        with force_generic() if plain else torch.enable_grad():
            after, output = attend(asked, state._replace(key=key), causal=True)
        assert not after.score.requires_grad
        output.square().sum().backward()
        found.append((asked.grad, key.grad))
    assert not small
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_small_chunks_are_left_to_plain_code(monkeypatch, small):
    monkeypatch.setattr(pooling, "_WORTH", (H // G) * S * M + 1)
    stepping(POLICIES["LRA-sum"])[2](causal=True)
    assert not small
