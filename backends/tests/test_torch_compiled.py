"""Compiled and exported steps: one graph, few of them, the same numbers."""

import io
import warnings

import pytest

import attendre_core as at

torch = pytest.importorskip("torch")

from attendre_torch import AttendreAttention, Streaming, compiled_step  # noqa: E402
from attendre_torch.constants import constant_in_traces  # noqa: E402

B, S, C = 2, 4, 16
OPTIONS = {
    "attends at once": {"memory": 6, "policy": at.LFA(), "encoding": at.RoPE()},
    "waits": {
        "memory": at.KeyValueMemory(8, at.LRA("max"), present="visible"),
        "q_memory": 3,
        "top_k": 5,
        "encoding": at.T5Bias(),
        "bias": True,
    },
}


def made(name):
    torch.manual_seed(0)
    return AttendreAttention(C, 4, kv_heads=2, **OPTIONS[name])


class Stepping(torch.nn.Module):
    """Calls `step`, as is needed where queries wait."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module.step(*args)


def stepped(name):
    module = made(name)
    return Stepping(module) if module.delay else module


LONG = pytest.mark.thorough


def chunks(count):
    seeded = torch.Generator().manual_seed(1)
    return [torch.randn(B, S, C, generator=seeded) for _ in range(count)]


def compiled(function, backend="aot_eager"):
    """Compile without code generation; anything that would break the graph is an error."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch.compile(function, fullgraph=True, backend=backend)


def test_constants_are_marked_as_pytorch_marks_them():
    """We set the attribute ourselves, because PyTorch's function imports Dynamo."""

    def own():
        return 1

    def theirs():
        return 1

    constant_in_traces(own)
    torch.compiler.assume_constant_result(theirs)
    assert vars(own) == vars(theirs) != {}


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


# `test_streaming_compiles` counts the graphs of what waits.
@pytest.mark.parametrize("name", ["attends at once", pytest.param("waits", marks=LONG)])
def test_two_graphs_for_any_number_of_steps(name):
    """One for the start and one for all steps after it, each without a break."""
    module = stepped(name)
    fast, one, two = compiled(module, "eager"), None, None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in chunks(20):
            want, one = module(x, one)
            got, two = fast(x, two)
            torch.testing.assert_close(got, want)
            assert torch.equal(one.kv.position, two.kv.position)
    assert graphs() == 2


# PyTorch looks for a gradient at every tensor that enters compiled code, and warns of itself.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_training_step_over_chunks_compiles():
    """Forward and backward over several chunks, through the memory."""
    module, parts = made("attends at once"), chunks(3)
    fast = compiled(module)

    def gradients(step):
        module.zero_grad()
        state, loss = module.init_state(B, chunk=S), 0.0
        for x in parts:
            out, state = step(x, state)
            loss = loss + out.square().mean()
        loss.backward()
        return [p.grad.clone() for p in module.parameters() if p.grad is not None]

    for a, b in zip(gradients(fast), gradients(module), strict=True):
        torch.testing.assert_close(a, b)
    assert graphs() <= 3  # with a state that needs no gradient yet, and with one that does


def test_streaming_compiles():
    module = made("waits")
    slow, quick = Streaming(module), Streaming(module)
    slow, fast = slow.step, compiled(quick.step)
    with torch.no_grad():
        for x in chunks(10):
            torch.testing.assert_close(fast(x), slow(x))
    assert graphs() == 2


def written_and_read(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.parametrize("name", ["waits", pytest.param("attends at once", marks=LONG)])
def test_a_step_is_exported_with_its_state_outside(name):
    module = stepped(name)
    parts = chunks(4)
    with torch.no_grad():
        _, state = module(parts[0])
        program = written_and_read(torch.export.export(module, (parts[1], state)))
        one = two = state
        for x in parts[1:]:
            want, one = module(x, one)
            got, two = program(x, two)
            torch.testing.assert_close(got, want)
    assert torch.equal(one.kv.position, two.kv.position)


@pytest.mark.thorough
def test_a_stream_is_exported_with_its_state_inside():
    module, parts = made("waits"), chunks(4)
    with torch.no_grad():
        stream = Stepping(Streaming(module))
        stream(parts[0])
        program = written_and_read(torch.export.export(stream, (parts[1],)))
        stream.module.reset()
        stream(parts[0])
        for x in parts[1:]:
            torch.testing.assert_close(program(x), stream(x))


@pytest.mark.parametrize("all_checks", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_compiled_steps_of_two_layers_are_two(all_checks, monkeypatch):
    """They differ in nothing that a tensor shows: a program must not serve the other layer."""
    if all_checks:  # as with a PyTorch that cannot leave any out
        monkeypatch.delattr(torch.compiler, "keep_tensor_guards_unsafe")
    chunk = [at.Chunk(*torch.randn(3, 1, 4, 2, 8).unbind(0)) for _ in range(6)]
    layers = [
        at.AttendreLayer(at.KeyValueMemory(6, policy)) for policy in (at.FIFO(), at.LRA("sum"))
    ]
    kept = []
    with torch.no_grad():
        for layer in layers:
            step = compiled_step(layer, backend="aot_eager")
            one, two = (
                layer.init(batch=1, heads=2, kv_heads=2, head_dim=8, xp=torch) for _ in range(2)
            )
            for each in chunk:
                one, want = layer.step(one, each)
                two, got = step(two, each)
                torch.testing.assert_close(got.value, want.value)
            assert two.kv.position.sort().values.tolist() == one.kv.position.sort().values.tolist()
            kept.append(two.kv.position.sort().values.tolist())
            # A chunk with another field is another program.
            valid = torch.tensor([[True, True, False, False]])
            _, out = step(two, chunk[0]._replace(valid=valid))
            assert out.valid.tolist() == valid.tolist()
    assert kept[0] != kept[1]
