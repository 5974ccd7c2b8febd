"""Streaming: a state in buffers, moved and reset, never in a checkpoint."""

import pytest

import attendre_core as at

torch = pytest.importorskip("torch")

from attendre_torch import AttendreAttention, Streaming  # noqa: E402

B, S, C = 2, 4, 16


def attention(**options):
    torch.manual_seed(0)
    return AttendreAttention(C, 4, kv_heads=2, **{"memory": 6, "policy": at.LFA(), **options})


def chunks(count, seed=1):
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(B, S, C, generator=made) for _ in range(count)]


def test_it_gives_what_the_module_gives():
    module = attention(q_memory=3)
    stream, state = Streaming(module), None
    for x in chunks(4):
        want, state = module.step(x, state, carry=x)
        got = stream.step(x, carry=x)
        torch.testing.assert_close(got.x, want.x)
        assert torch.equal(got.position, want.position)
    want, _ = module.flush(state)
    torch.testing.assert_close(stream.flush().x, want.x)


def test_state_dict_holds_parameters_alone_and_buffers_the_state():
    stream = Streaming(attention())
    names = set(stream.state_dict())
    assert not list(stream.buffers())
    stream(chunks(1)[0])
    assert set(stream.state_dict()) == names == {f"module.{n}" for n in stream.module.state_dict()}
    assert len(list(stream.buffers())) == sum(leaf is not None for leaf in stream.state.kv)
    other = Streaming(attention())
    other.load_state_dict(stream.state_dict())


def test_moving_takes_the_state_along_and_spares_the_scores():
    stream = Streaming(attention())
    for x in chunks(3):
        stream(x)
    stream.detach()
    score = stream.state.kv.score
    stream.to(torch.bfloat16)
    assert stream.state.kv.key.dtype == torch.bfloat16
    assert torch.equal(stream.state.kv.score, score)
    assert stream(x.bfloat16()).dtype == torch.bfloat16
    stream.to("meta")
    assert {leaf.device.type for leaf in stream.buffers()} == {"meta"}


def test_reset_forgets_everything_or_single_rows():
    stream, (first, second) = Streaming(attention()), chunks(2)
    fresh = stream(second)
    stream.reset()
    stream(first)
    stream.reset(torch.tensor([True, False]))
    assert stream.state.kv.valid.any(1).tolist() == [False, True]
    out = stream(second)
    torch.testing.assert_close(out[0], fresh[0])
    assert not torch.allclose(out[1], fresh[1])
    stream.reset()
    assert stream.state is None
    stream(second[:1])


def test_detach_stops_gradients():
    stream, (first, second) = Streaming(attention()), chunks(2)
    first.requires_grad_()
    stream(first)
    stream(second).sum().backward()
    assert first.grad.any()
    stream.reset()
    first.grad = None
    stream(first)
    stream.detach()
    stream(second).sum().backward()
    assert first.grad is None


def test_inference_writes_in_place_and_training_may_follow():
    stream, (first, second) = Streaming(attention()), chunks(2)
    with torch.inference_mode():
        stream(first)
        place = stream.state.kv.key.data_ptr()
        stream(second)
        assert stream.state.kv.key.data_ptr() == place
    stream(first).sum().backward()
    assert stream.module.value.weight.grad.any()


def test_looking_on_without_gradients_spares_what_a_backward_pass_needs():
    stream, (first, second) = Streaming(attention()), chunks(2)
    loss = stream(first).square().sum() + stream(second).square().sum()
    with torch.no_grad():
        stream(first)
    loss.backward()
    assert stream.module.key.weight.grad.any()


def test_a_state_may_be_there_before_the_first_call():
    stream = Streaming(attention(), batch=B)
    assert not stream.state.kv.valid.any()
    torch.testing.assert_close(stream(chunks(1)[0]), Streaming(attention())(chunks(1)[0]))


def test_mistakes_are_named():
    stream = Streaming(attention())
    with pytest.raises(at.StateError, match="nothing was read yet"):
        stream.flush()
    stream(chunks(1)[0])
    with pytest.raises(at.StateError, match="x has 1 rows, but 2 are being read"):
        stream(chunks(1)[0][:1])
    with pytest.raises(at.ConfigError, match="expected an AttendreAttention"):
        Streaming(torch.nn.Linear(2, 2))
