"""AttendreAttention: the module against plain attention, its gradients, states and precision."""

import copy

import pytest

import attendre_core as at

torch = pytest.importorskip("torch")

from attendre_torch import AttendreAttention, AttentionOutput, detach  # noqa: E402

B, T, S, C, H, G = 2, 11, 4, 16, 4, 2
OPTIONS = {
    "fifo": {"memory": 6},
    "lfa": {"memory": 6, "policy": at.LFA(), "encoding": at.RoPE()},
    "waiting": {"memory": at.KeyValueMemory(8, at.LRA("max")), "q_memory": 3, "top_k": 5},
    "preset": {"memory": at.preset("LFA-1e-3", kv_size=9, q_size=4, top_k=3)},
    "visible": {
        "memory": at.KeyValueMemory(6, at.LFA(), present="visible"),
        "causal": True,
        "encoding": at.T5Bias(bidirectional=False),
        "bias": True,
    },
    "tiers": {
        "memory": at.Tiers(
            at.KeyValueMemory(4, at.LFA()), at.Tier(at.KeyValueMemory(3), compress=at.MeanPool(2))
        ),
        "encoding": at.RoPE(),
    },
}


def attention(dtype=None, **options):
    torch.manual_seed(0)
    made = AttendreAttention(C, H, kv_heads=G, dtype=dtype, **options)
    if made.table is not None:
        torch.nn.init.normal_(made.table)
    return made


def sequence(seed=1, dtype=None, length=T, grad=False):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(B, length, C, generator=made, dtype=dtype).requires_grad_(grad)


def plain(module, x, causal):
    """Full attention with the same parameters and no positions."""
    q, k, v = (
        linear(x).unflatten(2, (-1, module.head_dim)).transpose(1, 2)
        for linear in (module.query, module.key, module.value)
    )
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=True
    )
    return module.out(out.transpose(1, 2).flatten(2))


def gradients(module, x, out):
    module.zero_grad()
    x.grad = None
    (out * torch.arange(1.0, C + 1)).square().sum().backward()
    return [x.grad, *(p.grad for p in module.parameters())]


ENOUGH = {
    "causal": {"memory": T, "causal": True},
    "both ways": {"memory": T + 1, "q_memory": T, "policy": at.LFA()},
}


@pytest.mark.parametrize("name", ENOUGH)
@pytest.mark.parametrize("checkpoint", [False, True], ids=["stored", "recomputed"])
def test_while_nothing_is_evicted_outputs_and_gradients_are_those_of_full_attention(
    name, checkpoint
):
    exact = torch.float64
    module = attention(bias=True, checkpoint=checkpoint, dtype=exact, **ENOUGH[name])
    x = sequence(grad=True, dtype=exact)
    expected = plain(module, x, causal=name == "causal")
    want = gradients(module, x, expected)
    found, _ = module.run(x, chunk=S)
    torch.testing.assert_close(found, expected)
    for got, wanted in zip(gradients(module, x, found), want, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_through_a_full_memory_agree_with_differences(name):
    """Finite differences in float64: entries are evicted, and what stays has its gradient."""
    module = attention(dtype=torch.float64, **OPTIONS[name])
    x = sequence(dtype=torch.float64, grad=True)
    parameters = dict(module.named_parameters())

    def run(x, *values):
        changed = dict(zip(parameters, values, strict=True))
        caller = Running(module)
        return torch.func.functional_call(caller, {f"module.{k}": v for k, v in changed.items()}, x)

    assert torch.autograd.gradcheck(run, (x, *parameters.values()), fast_mode=True)


class Running(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module.run(x, chunk=S)[0]


@pytest.mark.parametrize("name", OPTIONS)
def test_recomputed_steps_have_equal_gradients(name):
    stored = attention(**OPTIONS[name])
    again = attention(checkpoint=True, **OPTIONS[name])
    x, y = sequence(grad=True), sequence(grad=True)
    one, two = stored.run(x, chunk=S)[0], again.run(y, chunk=S)[0]
    for a, b in zip(gradients(stored, x, one), gradients(again, y, two), strict=True):
        assert torch.equal(a, b)


def test_recomputing_keeps_less_for_the_backward_pass():
    def kept(checkpoint):
        module = attention(memory=64, policy=at.LRA("max"), checkpoint=checkpoint)
        total = [0]

        def pack(tensor):
            total[0] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module(sequence(length=64, grad=True))
        return total[0]

    assert kept(True) < 0.2 * kept(False)


def test_detaching_stops_gradients_between_chunks():
    first, second = sequence(1, length=S, grad=True), sequence(2, length=S, grad=True)
    for module, cut in ((attention(memory=16), False), (attention(memory=16, detach=True), True)):
        first.grad = None
        _, state = module(first)
        out, _ = module(second, state)
        out.sum().backward()
        assert (first.grad is None) == cut
    module = attention(memory=16)
    _, state = module(first)
    out, _ = module(second, detach(state))
    first.grad = None
    out.sum().backward()
    assert first.grad is None


def test_detach_every_cuts_between_chunks_only_there():
    module = attention(memory=16, causal=True)
    for every, reached in (
        (None, [True] * 3),
        (1, [False, False, True]),
        (2, [False, False, True]),
    ):
        x = sequence(grad=True)
        out, _ = module.run(x, chunk=S, detach_every=every)
        out[:, -1].sum().backward()
        parts = [bool(x.grad[:, i : i + S].any()) for i in range(0, T, S)]
        assert parts == reached, f"detach_every={every}: gradients reach chunks {parts}"
    x = sequence(grad=True)
    out, _ = module.run(x, chunk=S, detach_every=2)
    out[:, 2 * S - 1].sum().backward()
    assert x.grad[:, :S].any()


def test_a_step_says_where_its_outputs_stand_and_carries_the_residual_stream():
    module = attention(memory=16, q_memory=5)
    x = sequence()
    state, positions, carried = None, [], []
    for start in range(0, T, S):
        out, state = module.step(x[:, start : start + S], state, carry=x[:, start : start + S])
        assert isinstance(out, AttentionOutput)
        assert not out.x[~out.valid].any()
        positions += out.position[0][out.valid[0]].tolist()
        carried.append(out.carry[0][out.valid[0]])
    rest, state = module.flush(state)
    positions += rest.position[0][rest.valid[0]].tolist()
    carried.append(rest.carry[0][rest.valid[0]])
    assert positions == list(range(T))
    assert torch.equal(torch.cat(carried), x[0])


def test_draining_is_flushing():
    module = attention(**OPTIONS["waiting"])
    _, state = module.step(sequence(length=8))
    flushed, _ = module.flush(state)
    drained, _ = module.drain(state, chunk=2)
    torch.testing.assert_close(drained.x, flushed.x)


def test_padding_anywhere_changes_nothing():
    module = attention(bias=True, memory=17, policy=at.LFA(), q_memory=3)
    x = sequence()
    places = torch.tensor([0, 2, 3, 5, 6, 7, 9, 11, 12, 14, 15])
    spread = torch.full((B, 17, C), 7.0)
    spread[:, places] = x
    valid = torch.zeros(B, 17, dtype=torch.bool)
    valid[:, places] = True
    got, _ = module.run(spread, chunk=17, valid=valid)
    full, _ = module.run(x, chunk=T)
    torch.testing.assert_close(got[:, places], full)
    assert not got[~valid].any()


def test_documents_do_not_see_each_other():
    module = attention(memory=32)
    x = sequence(length=8)
    document = torch.tensor([[0] * 4 + [1] * 4] * B, dtype=torch.int32)
    got, _ = module.run(x, chunk=8, document=document)
    torch.testing.assert_close(got[:, 4:], module.run(x[:, 4:], chunk=8)[0])


def test_rows_can_be_forgotten_and_reordered():
    module = attention(memory=16)
    x = sequence(length=S)
    _, state = module(x)
    fresh, _ = module(x)
    out, _ = module(x, module.reset(state, torch.tensor([True, False])))
    torch.testing.assert_close(out[0], fresh[0])
    turned = module.reorder(state, torch.tensor([1, 0], dtype=torch.int32))
    assert torch.equal(turned.kv.key[0], state.kv.key[1])


def test_donated_states_are_written_in_place():
    module = attention(memory=16, q_memory=3)
    x = sequence(length=S)
    with torch.inference_mode():
        _, state = module.step(x)
        key = state.kv.key.data_ptr()
        _, kept = module.step(x, state)
        assert kept.kv.key.data_ptr() != key
        _, after = module.step(x, state, donate=True)
    assert after.kv.key.data_ptr() == key


def test_donating_while_gradients_are_recorded_changes_nothing_but_memory():
    """Parameters need gradients: nothing may be overwritten, whatever the caller allows."""
    module, x = attention(memory=16), sequence(length=S, grad=True)

    def total(donate):
        state, loss = None, 0.0
        for _ in range(3):
            out, state = module(x, state, donate=donate)
            loss = loss + out.square().sum()
        return gradients(module, x, loss * torch.ones(C))

    for a, b in zip(total(True), total(False), strict=True):
        assert torch.equal(a, b)


def test_state_dict_and_deepcopy_hold_the_parameters():
    module, other = attention(**OPTIONS["visible"]), attention(**OPTIONS["visible"])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    names = {"table", *(f"{n}.{p}" for n in ("query", "key", "value", "out") for p in WEIGHTS)}
    assert set(module.state_dict()) == names
    other.load_state_dict(module.state_dict())
    x = sequence()
    assert torch.equal(other.run(x)[0], module.run(x)[0])
    assert torch.equal(copy.deepcopy(module).run(x)[0], module.run(x)[0])


WEIGHTS = ("weight", "bias")


@pytest.mark.parametrize("name", ["waiting", "tiers"])
def test_states_are_saved_and_loaded_without_trust(name, tmp_path):
    module = attention(**OPTIONS[name])
    x = sequence(length=S)
    _, state = module.step(x)
    torch.save(state, tmp_path / "state.pt")
    again = torch.load(tmp_path / "state.pt", weights_only=True)
    assert type(again) is type(state)
    assert torch.equal(module.step(x, again)[0].x, module.step(x, state)[0].x)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 2.0**-7), (torch.float16, 2.0**-10)], ids=str
)
@pytest.mark.parametrize("policy", [at.FIFO(), at.LFA(), at.LRA("max")], ids=str)
def test_half_precision_scores_as_float32(dtype, tolerance, policy):
    """Of the same (rounded) keys, half precision keeps the same entries with float32 scores.

    The output is rounded once, at its end: within the spacing of numbers of the dtype, relative
    to the largest value.
    """
    layer = at.AttendreLayer(at.KeyValueMemory(9, policy), at.DataOnlyMemory(3))
    made = torch.Generator().manual_seed(3)
    states = [
        layer.init(batch=B, heads=H, kv_heads=G, head_dim=8, xp=torch, dtype=d)
        for d in (dtype, torch.float32)
    ]
    for _ in range(6):
        parts = [torch.randn(B, S, n, 8, generator=made).to(dtype) for n in (H, G, G)]
        outputs = []
        for i, kind in enumerate((dtype, torch.float32)):
            states[i], out = layer.step(states[i], at.Chunk(*(p.to(kind) for p in parts)))
            outputs.append(out.value)
        half, full = states[0].kv, states[1].kv
        assert half.score.dtype == torch.float32
        assert torch.equal(half.position, full.position)
        torch.testing.assert_close(half.score, full.score, rtol=1e-6, atol=1e-6)
        assert outputs[0].dtype == dtype
        error = (outputs[0].float() - outputs[1]).abs().max()
        assert error <= tolerance * full.value.abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.02), (torch.float16, 0.003)])
def test_a_module_in_half_precision_stays_near_float32(dtype, tolerance):
    module, x = attention(memory=6, encoding=at.RoPE()), sequence(length=40)
    want, _ = module.run(x, chunk=S)
    got, state = copy.deepcopy(module).to(dtype).run(x.to(dtype), chunk=S)
    assert got.dtype == state.kv.key.dtype == dtype
    assert state.kv.score.dtype == torch.float32
    assert (got.float() - want).abs().max() < tolerance * want.abs().max()


def test_autocast_keeps_states_in_half_and_scores_in_single_precision():
    module, x = attention(memory=8, q_memory=3), sequence(length=40)
    want, _ = module.run(x, chunk=S)
    with torch.autocast("cpu", torch.bfloat16):
        got, state = module.run(x, chunk=S)
        out, _ = module.step(x[:, :S], carry=x[:, :S])
    assert got.dtype == state.kv.key.dtype == state.queue.data[0].dtype == torch.bfloat16
    assert state.kv.score.dtype == torch.float32
    assert out.carry.dtype == torch.float32
    assert (got.float() - want).abs().max() < 0.02 * want.abs().max()


def test_autocast_does_not_reach_the_scores():
    """With a state in float32, logits under autocast are those without it, of the same keys."""
    module, x = attention(memory=6, policy=at.LFA()), sequence(length=S)
    state = module.init_state(B)
    with torch.autocast("cpu", torch.bfloat16):
        _, cast = module(x, state)
    parts = [
        linear(x.bfloat16()).float().unflatten(2, (-1, module.head_dim))
        for linear in (
            copy.deepcopy(m).bfloat16() for m in (module.query, module.key, module.value)
        )
    ]
    exact, _ = module.layer.step(state, at.Chunk(*parts))
    torch.testing.assert_close(cast.kv.score, exact.kv.score, rtol=1e-6, atol=1e-6)


def test_everything_is_made_on_the_device_of_the_parameters():
    """The meta device stands for an accelerator: mixing it with the CPU raises."""
    module = attention(**OPTIONS["preset"]).to("meta")
    x = sequence(length=S).to("meta")
    out, state = module.step(x, carry=x)
    rest, _ = module.flush(state)
    assert out.x.device.type == rest.carry.device.type == state.kv.key.device.type == "meta"


def test_fused_attention_is_used_where_it_applies(monkeypatch):
    calls = []
    own = torch.nn.functional.scaled_dot_product_attention

    def counting(*args, **kwargs):
        calls.append(1)
        return own(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counting)
    x = sequence(length=S)
    attention(memory=16, policy=at.LFA(), encoding=at.RoPE())(x)
    assert calls
    calls.clear()
    attention(memory=16, top_k=3)(x)
    assert not calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "does not divide into 5 heads"),
        ({"kv_heads": 3}, "expected a multiple"),
        ({"memory": at.KeyValueMemory(4), "policy": at.LFA()}, "beside a size"),
        ({"memory": 4, "q_memory": 4}, "expected N < M"),
        ({"memory": 0}, "size is 0"),
    ],
)
def test_impossible_sizes_are_refused(options, message):
    with pytest.raises(at.ConfigError, match=message):
        AttendreAttention(**{"dim": C, "heads": H, **options})


def test_input_of_another_width_is_refused():
    with pytest.raises(at.ShapeError, match=r"\(2, 11, 5\), expected .*any, any, 16"):
        attention(memory=4)(torch.zeros(B, T, 5))


def test_arrays_of_heads_are_refused():
    with pytest.raises(at.ShapeError, match="Pass hidden states; it makes queries, keys and"):
        attention(memory=4)(torch.zeros(B, H, T, C // H))


def test_another_batch_than_that_of_the_state_is_refused():
    module = attention(memory=4)
    _, state = module(sequence(length=S))
    message = r"x has 3 rows, but the state has 2\. .* init_state\(batch=3\)"
    with pytest.raises(at.ShapeError, match=message):
        module(torch.zeros(3, S, C), state)


def test_outputs_that_come_late_are_not_returned_as_those_of_x():
    """Without a warning, the first N outputs would be zeros."""
    module = attention(memory=8, q_memory=3)
    with pytest.raises(at.ConfigError, match=r"N = 3 positions late.*run\(x\).*step\(x, state"):
        module(sequence())
