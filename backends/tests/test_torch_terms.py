"""Near and far slots apart: what LM-Infinite does where PyTorch attends to each in a fused call."""

from dataclasses import dataclass

import pytest

import attendre_core as at
from attendre_core import ops
from attendre_core.backend import backend
from attendre_core.eager.parts import groups_of
from attendre_core.positions.base import Places

torch = pytest.importorskip("torch")

from attendre_torch import kernels  # noqa: E402

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
class LargestLogit(at.Policy):
    """A policy that reads the logits of all pairs."""

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
def test_terms_equal_the_generic_path(policy, n_local, causal):
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


def test_a_policy_may_read_logits_that_attention_did_without():
    arrays, attend = stepping(2, LargestLogit(), 20, causal=True)
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
    """Logits are made of the few slots at an edge, of all pairs only where a policy asks."""
    kernel = backend("torch").kernels["logits"]

    def of_few(pairs):
        assert pairs.key_position.shape[-1] < M / 2, "logits of all pairs were made"
        return kernel(pairs)

    monkeypatch.setitem(backend("torch").kernels, "logits", of_few)
    for policy in (at.LRA("sum"), at.LFA(), at.FIFO()):
        arrays, attend = stepping(4, policy, 60, causal=False)
        attend(*arrays)
    arrays, attend = stepping(4, at.LRA("max"), 60, causal=False)
    with pytest.raises(AssertionError, match="all pairs"):
        attend(*arrays)


class TestGroups:
    """Slots apart by the term that they need."""

    slots, n_local = 12, 5

    def pairs(self, *, causal=False, valid=(True, True), grad=False):
        made = torch.Generator().manual_seed(0)
        query = torch.randn(1, G, 2, 2, D, generator=made, requires_grad=grad)
        key = torch.randn(1, G, self.slots, D, generator=made)
        # Queries at 20 and 23, keys at 10 to 31 in no order, of which one is an empty slot.
        at_key = 10 + 2 * torch.randperm(self.slots, generator=made, dtype=torch.int32)
        key_position = at_key.to(torch.int32)[None, None]
        query_position = torch.tensor([[[[20, 23]]]], dtype=torch.int32)
        held = torch.ones(1, 1, self.slots, dtype=torch.bool)
        held[..., 3] = False
        places = Places(query_position, key_position, torch.tensor([valid]), held)
        encoded = at.LMInfinite(self.n_local).encode(query, key, places)
        return ops.Pairs(
            query_position, key_position, torch.tensor([valid]), held, key_position,
            encoded.terms, places.query, places.key, causal=causal, memo={},
        )  # fmt: skip

    def test_each_slot_is_in_one_group_with_the_terms_that_it_needs(self):
        pairs = self.pairs()
        ((*groups,),) = groups_of(pairs)
        found = torch.cat([group.slots for group in groups])
        assert found.sort().values.tolist() == list(range(self.slots))
        for group in groups:
            kinds = set()
            for slot in set(group.slots.tolist()) - {3}:
                distances = (pairs.query_position - pairs.key_position[0, 0, slot]).flatten()
                far = [d >= self.n_local for d in distances.tolist()]
                ahead = [d <= -self.n_local for d in distances.tolist()]
                kinds.add((all(far), all(ahead), any(far), any(ahead)))
            pure = len(group.pairs) == 1
            assert pure == (len(kinds) == 1 and kinds <= {PAST, AHEAD, NEAR}), kinds
        assert sorted(len(group.pairs) for group in groups) == [1, 1, 1, 3]

    def test_they_are_found_once_a_step(self):
        pairs = self.pairs()
        assert groups_of(pairs) is groups_of(pairs)

    def test_a_row_without_queries_or_entries_is_one_group(self):
        ((group,),) = groups_of(self.pairs(valid=(False, False)))
        assert group.slots is None
        empty = self.pairs()
        empty = empty._replace(key_valid=torch.zeros_like(empty.key_valid))
        ((group,),) = groups_of(empty)
        assert group.slots is None

    @pytest.mark.parametrize("causal", [False, True])
    def test_fused_calls_are_joined_to_attention_over_all(self, causal):
        pairs = self.pairs(causal=causal)
        value = torch.randn(1, G, self.slots, D, generator=torch.Generator().manual_seed(1))
        found = kernels.attend(pairs, value)
        assert found is not NotImplemented
        close(found, ops.attend.plain(pairs, value))

    def test_what_the_fused_call_cannot_do_is_declined(self):
        value = torch.randn(1, G, self.slots, D)
        assert kernels.attend(self.pairs(grad=True), value) is NotImplemented
        assert kernels.attend(self.pairs(), value[..., :3]) is NotImplemented
        per_head = self.pairs()
        per_head = per_head._replace(key_place=per_head.key_place.expand(-1, G, -1))
        assert kernels.attend(per_head, value) is NotImplemented
        bias = torch.zeros(1, G, 2, 2, self.slots)
        assert kernels.attend(self.pairs()._replace(bias=bias), value) is NotImplemented


PAST, AHEAD, NEAR = (
    (True, False, True, False), (False, True, False, True), (False, False, False, False),
)  # fmt: skip
