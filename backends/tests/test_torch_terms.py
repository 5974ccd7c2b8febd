"""Near and far slots apart: what LM-Infinite does where PyTorch attends to each in a fused call."""

from dataclasses import dataclass

import pytest

import attendre_core as at

torch = pytest.importorskip("torch")

B, M, S, G, H, D = 3, 48, 8, 2, 4, 8
POLICIES = {
    "LRA-sum": at.LRA("sum"),
    "LRA-mean-heads": at.LRA("sum", heads="mean"),
    "LRA-max-heads": at.LRA("sum", heads="max"),
    "LRA-last": at.LRA("last"),
    "LFA": at.LFA(decay=1e-2),
    "LFA-softmax": at.LFA(score="softmax"),
    "FIFO": at.FIFO(),
}


@dataclass(frozen=True)
class Modest(at.Policy):
    """A policy that says that it needs no pairs, and reads them all the same."""

    needs_pairs = False

    def observe(self, stored, attention):
        """Return the largest logit."""
        return attention.pool(attention.logits, queries="max", heads="max", unseen=stored.score)


def stepping(seed, policy, n_local, *, causal, value_dim=D, per_head=False, documents=False):
    """Return the state of a memory with empty slots and a function that attends to it."""
    made = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=made)

    memory = at.KeyValueMemory(M, policy, per_head=per_head)
    ids = torch.randint(0, 2, (B, M), generator=made, dtype=torch.int32)
    aux = {"document": ids} if documents else None
    state = memory.init(batch=B, heads=G, head_dim=D, xp=torch, value_dim=value_dim, aux=aux)
    place = torch.stack([torch.randperm(3 * M, generator=made)[:M] for _ in range(B)])
    held = torch.rand(B, M, generator=made) < torch.tensor([[0.9], [0.6], [1.0]])
    state, _ = memory.insert(
        state, normal(B, M, G, D), normal(B, M, G, value_dim), place.to(torch.int32), held, aux=aux
    )
    # Of the rows the first is far behind most entries, the second among them, the third before.
    first = torch.tensor([[4 * M], [M], [0]], dtype=torch.int32)
    position = first + 2 * torch.arange(S, dtype=torch.int32)
    valid = torch.rand(B, S, generator=made) < 0.8
    document = torch.ones(B, S, dtype=torch.int32) if documents else None

    def attend(query, key, value, rows=slice(None)):
        mine = type(state)(*(x if x is None or isinstance(x, dict) else x[rows] for x in state))
        mine = mine._replace(key=key[rows], value=value[rows])
        if documents:
            mine = mine._replace(aux={"document": state.aux["document"][rows]})
        return memory.attend(
            mine, query[rows], position[rows], valid[rows], causal=causal,
            encoding=at.LMInfinite(n_local),
            document=None if document is None else document[rows],
        )  # fmt: skip

    return (normal(B, S, H, D), state.key, state.value), attend


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_local", [0, 1, 20, 60, 1000])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_pieces_equal_the_generic_path(policy, n_local, causal):
    """Outputs, scores and gradients, with padding, empty slots and slots on several sides."""
    arrays, attend = stepping(n_local, policy, n_local, causal=causal)

    def everything():
        state, output = attend(*arrays)
        leaves = [x.clone().requires_grad_() for x in arrays]
        attend(*leaves)[1].square().sum().backward()
        return output, state.score, state.observed, *(x.grad for x in leaves)

    own = everything()
    with at.force_generic():
        generic = everything()
    for one, other in zip(own, generic, strict=True):
        close(one, other)


@pytest.mark.parametrize(
    "options",
    [{"value_dim": 5}, {"per_head": True}, {"documents": True}],
    ids=lambda options: next(iter(options)),
)
def test_other_memories_equal_the_generic_path(options):
    arrays, attend = stepping(1, at.LFA(), 20, causal=True, **options)
    state, output = attend(*arrays)
    with at.force_generic():
        expected, wanted = attend(*arrays)
    close(output, wanted)
    close(state.score, expected.score)


def test_a_policy_may_read_logits_that_were_not_made():
    arrays, attend = stepping(2, Modest(), 20, causal=True)
    state, _ = attend(*arrays)
    with at.force_generic():
        expected, _ = attend(*arrays)
    close(state.score, expected.score)


@pytest.mark.parametrize("causal", [True, False])
def test_no_row_is_rounded_by_what_others_hold(causal):
    arrays, attend = stepping(3, at.LRA("sum"), 20, causal=causal)
    state, output = attend(*arrays)
    for row in range(B):
        alone, single = attend(*arrays, rows=slice(row, row + 1))
        assert torch.equal(single[0], output[row])
        assert torch.equal(alone.score[0], state.score[row])


def test_sums_of_logits_need_no_pairs(monkeypatch):
    """Neither logits of all pairs are made nor slots sorted, but where a policy asks for pairs."""

    def refused(*_):
        raise AssertionError("logits of all pairs were made")

    monkeypatch.setattr("attendre_core.positions.lm_infinite.logits_of", refused)
    monkeypatch.setattr("attendre_core.memory.key_value.sorted_by_position", refused)
    for policy in (at.LRA("sum"), at.LFA(), at.FIFO()):
        arrays, attend = stepping(4, policy, 60, causal=False)
        attend(*arrays)
    arrays, attend = stepping(4, at.LRA("max"), 60, causal=False)
    with pytest.raises(AssertionError, match="all pairs"):
        attend(*arrays)
