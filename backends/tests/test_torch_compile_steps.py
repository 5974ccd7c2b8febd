"""Steps that are compiled by default: one graph for equal layers, made for an accelerator."""

import pytest

import attendre_core as at
from attendre_core.backend import machine_code

torch = pytest.importorskip("torch")

from torch._dynamo.backends.common import aot_autograd  # noqa: E402

from attendre_torch import AttendreAttention, compile_steps, compiling, tables  # noqa: E402

B, S, M, H, G, D = 2, 4, 8, 4, 2, 8


class Capture:
    """A backend of ``torch.compile`` that keeps the graphs."""

    def __init__(self):
        self.graphs = []
        self.compiler = aot_autograd(fw_compiler=self.keep)

    def keep(self, graph, inputs):
        self.graphs.append(graph)
        return graph.forward

    def __call__(self, graph, inputs):
        return self.compiler(graph, inputs)


@pytest.fixture(autouse=True)
def _afresh():
    torch._dynamo.reset()
    compiling._programs_of.cache_clear()


def layer_of(**options):
    memory = at.KeyValueMemory(M, at.LFA(), present="visible")
    return at.AttendreLayer(memory, causal=True, **options)


def empty(layer):
    return layer.init(batch=B, heads=H, kv_heads=G, head_dim=D, xp="torch", chunk=S)


def chunks(count, length=S):
    made = torch.Generator().manual_seed(0)
    return [
        at.Chunk(*(torch.randn(B, length, n, D, generator=made) for n in (H, G, G)))
        for _ in range(count)
    ]


def test_equal_layers_share_one_program():
    capture = Capture()
    with torch.no_grad(), compile_steps(True, backend=capture):
        for layer in (layer_of(), layer_of()):
            state = empty(layer)
            for chunk in chunks(4):
                state, out = layer.step(state, chunk)
    assert len(capture.graphs) == 1
    layer, state = layer_of(), empty(layer_of())
    with torch.no_grad():
        for chunk in chunks(4):
            state, wanted = layer.step(state, chunk)
    torch.testing.assert_close(out.value, wanted.value)


def test_a_module_runs_compiled_steps():
    torch.manual_seed(0)
    module, capture = AttendreAttention(16, 4, memory=6, policy=at.LFA(), causal=True), Capture()
    parts = [torch.randn(B, S, 16) for _ in range(4)]
    one = two = module.init_state(B, chunk=S)
    with torch.no_grad():
        for x in parts:
            wanted, one = module(x, one)
            with compile_steps(True, backend=capture):
                found, two = module(x, two)
            torch.testing.assert_close(found, wanted)
    assert len(capture.graphs) == 1
    assert torch.equal(one.kv.position, two.kv.position)


READS = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten._unique2")


@pytest.mark.parametrize(
    ("top_k", "encoding"),
    [
        pytest.param(None, at.NoPosition(), marks=pytest.mark.thorough),
        (3, at.RoPE()),
        (None, at.RoPE(scaling=at.YaRN(4.0, 64))),
        (None, at.LMInfinite(6)),
        pytest.param(3, at.ALiBi(), marks=pytest.mark.thorough),
    ],
)
def test_a_program_neither_reads_nor_copies_from_the_host(top_k, encoding, monkeypatch):
    """Fixed shapes, nothing that depends on values, no constant: what a CUDA graph asks for."""
    monkeypatch.setattr(tables, "_NOTHING_TO_COPY", ())  # as on an accelerator
    capture = Capture()
    layer = layer_of(top_k=top_k, encoding=encoding)
    state, (chunk,) = empty(layer), chunks(1)
    with torch.no_grad(), machine_code(False):
        _, wanted = layer.step(state, chunk)
        with compile_steps(True, backend=capture):
            _, found = layer.step(state, chunk)
    torch.testing.assert_close(found.value, wanted.value)
    (graph,) = capture.graphs
    nodes = list(graph.graph.nodes)
    assert not [node for node in nodes if node.op == "get_attr"], "a constant in the graph"
    names = {
        node.target.overloadpacket.__name__
        for node in nodes
        if hasattr(node.target, "overloadpacket")
    }
    assert not names & set(READS)
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            assert all(isinstance(length, int) for length in value.shape)


def test_by_default_the_cpu_runs_eagerly():
    layer, capture = layer_of(), Capture()
    with torch.no_grad(), compile_steps(None, backend=capture):
        layer.step(empty(layer), chunks(1)[0])
    with torch.no_grad(), compile_steps(False, backend=capture):
        layer.step(empty(layer), chunks(1)[0])
    assert not capture.graphs


def test_gradients_and_many_shapes_run_eagerly(monkeypatch):
    monkeypatch.setattr(compiling, "_MOST_PROGRAMS", 1)
    layer, capture = layer_of(), Capture()
    with compile_steps(True, backend=capture):
        chunk = chunks(1)[0]
        layer.step(empty(layer), chunk._replace(query=chunk.query.requires_grad_()))
        assert not capture.graphs
        with torch.no_grad():
            for length in (2, 3, 4):
                layer.step(empty(layer), chunks(1, length)[0])
    assert len(capture.graphs) == 1


def test_what_cannot_be_compiled_runs_eagerly_and_explains_mistakes():
    def broken(graph, inputs):
        raise RuntimeError("no such device")

    layer = layer_of()
    with torch.no_grad(), compile_steps(True, backend=broken):
        with pytest.warns(RuntimeWarning, match="runs eagerly"):
            _, out = layer.step(empty(layer), chunks(1)[0])
        assert out.value.shape == (B, S, H, D)
        wrong = chunks(1)[0]._replace(valid=torch.ones(B, S))
        with pytest.warns(RuntimeWarning), pytest.raises(at.DTypeError, match="expected bool"):
            layer.step(empty(layer), wrong)
