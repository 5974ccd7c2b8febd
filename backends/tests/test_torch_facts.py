"""What is true of PyTorch alone."""

import warnings

import pytest

import attendre_core as at

torch = pytest.importorskip("torch")

B, S, M, G, H, D, K = 2, 4, 8, 2, 4, 4, 3
POLICIES = [at.FIFO(), at.LRU(), at.LRA("max"), at.LFA(score="softmax")]


def chunk(seed, device="cpu"):
    made = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(B, S, n, D, generator=made) for n in (H, G, G))
    valid = torch.rand(B, S, generator=made) < 0.8
    return tuple(x.to(device) for x in (query, key, value, valid))


def step_of(memory, top_k=K):
    def step(state, query, key, value, valid):
        state, evicted = memory.insert(state, key, value, valid=valid)
        state, output = memory.attend(state, query, valid=valid, top_k=top_k)
        return state, evicted, output

    return step


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("top_k", [None, K])
def test_every_array_is_made_on_the_device_of_the_state(policy, top_k):
    """The meta device stands for an accelerator: mixing it with the CPU raises."""
    memory = at.KeyValueMemory(M, policy)
    state = memory.init(batch=B, heads=G, head_dim=D, xp=torch, device="meta")
    state, evicted, output = step_of(memory, top_k)(state, *chunk(0, "meta"))
    assert output.device.type == evicted.key.device.type == "meta"
    assert {x.device.type for x in state if x is not None} == {"meta"}
    queue = at.DataOnlyMemory(3)
    waiting, _ = queue.insert(queue.init((output,)), (output,))
    assert queue.get_all(waiting).data[0].device.type == "meta"


@pytest.mark.parametrize(
    "policy",
    [*POLICIES[1::2], *(pytest.param(one, marks=pytest.mark.thorough) for one in POLICIES[::2])],
    ids=lambda p: type(p).__name__,
)
def test_one_graph_for_any_number_of_steps(policy):
    memory = at.KeyValueMemory(M, policy)
    step = step_of(memory)
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(step, fullgraph=True, backend=counting)
        one = two = memory.init(batch=B, heads=G, head_dim=D, xp=torch)
        for seed in range(5):
            one, _, expected = step(one, *chunk(seed))
            two, _, found = compiled(two, *chunk(seed))
            torch.testing.assert_close(found, expected)
            assert torch.equal(one.position, two.position)
    assert len(graphs) == 1


@pytest.mark.parametrize("heads", [pytest.param(1, marks=pytest.mark.thorough), 4])
def test_one_graph_for_any_shape(heads):
    """Where a step is compiled for any shape, lengths are symbols, the number of heads too."""
    memory = at.KeyValueMemory(M, at.FIFO())

    def step(state, query, key, value):
        state, _ = memory.insert(state, key, value)
        return memory.attend(state, query, causal=True)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="eager", dynamic=True)
    for groups in (2, 3):
        made = torch.Generator().manual_seed(groups)
        given = [torch.randn(B, S, n, D, generator=made) for n in (groups * heads, groups, groups)]
        empty = memory.init(like=given[1])
        _, expected = step(empty, *given)
        _, found = compiled(empty, *given)
        torch.testing.assert_close(found, expected)


def test_gradients_reach_keys_and_values_but_not_scores():
    memory = at.KeyValueMemory(M, at.LFA())
    query, key, value, valid = chunk(1)
    key.requires_grad_()
    value.requires_grad_()
    state, _, output = step_of(memory)(
        memory.init(batch=B, heads=G, head_dim=D, xp=torch), query, key, value, valid
    )
    assert not state.score.requires_grad
    output.sum().backward()
    assert key.grad.abs().sum() > 0
    # Weights add up to one: d sum(output) / d value counts the valid queries of each row.
    expected = valid.sum(1) * H * D
    torch.testing.assert_close(value.grad.sum((1, 2, 3)), expected.float())


def test_donated_states_are_written_in_place_and_others_never():
    memory = at.KeyValueMemory(M)
    _, key, value, _ = chunk(2)
    state = memory.init(batch=B, heads=G, head_dim=D, xp=torch)
    after, _ = memory.insert(state, key, value)
    assert after.key.data_ptr() != state.key.data_ptr()
    assert not state.valid.any()
    donated, _ = memory.insert(state, key, value, donate=True)
    assert donated.key.data_ptr() == state.key.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_scored_in_float32(dtype):
    memory = at.KeyValueMemory(M, at.LFA())
    state = memory.init(batch=B, heads=G, head_dim=D, xp=torch, dtype=dtype)
    query, key, value, _ = chunk(3)
    big = (100 * torch.ones_like(query)).to(dtype)
    state, _ = memory.insert(state, (100 * torch.ones_like(key)).to(dtype), value.to(dtype))
    state, output = memory.attend(state, big)  # the logits are beyond what float16 can hold
    assert output.dtype == dtype
    assert state.score.dtype == torch.float32
    assert torch.isfinite(state.score).all()
    assert torch.isfinite(output).all()


def test_public_names_are_pinned_and_documented():
    import attendre_torch

    assert sorted(attendre_torch.__all__) == [
        "AttendreAttention",
        "AttendreCache",
        "AttentionOutput",
        "HeadParallel",
        "Segment",
        "Streaming",
        "TrainableModel",
        "TrainingOutput",
        "TransformersModel",
        "backend",
        "bounded",
        "compile_steps",
        "compiled_step",
        "detach",
        "from_transformers",
        "head_group",
        "shard_heads",
    ]
    for name in attendre_torch.__all__:
        assert getattr(attendre_torch, name).__doc__, f"attendre_torch.{name} has no docstring"
