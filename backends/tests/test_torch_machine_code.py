"""Machine code under PyTorch: eager, compiled, and where it has to stand back."""

import pytest

import attendre_core as at
from attendre_core import numba_kernels, ops

torch = pytest.importorskip("torch")
if not numba_kernels.installed():
    pytest.skip("needs numba: pip install 'attendre-core[compiled]'", allow_module_level=True)

from attendre_torch import machine_code  # noqa: E402

SLOTS, K = 70, 9


def arguments(dtype=torch.float32):
    seeded = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 2, 1, 6, SLOTS, generator=seeded, dtype=dtype)
    value = torch.randn(2, 2, SLOTS, 5, generator=seeded, dtype=dtype)
    order = torch.arange(SLOTS, dtype=torch.int32)[None, None, None, None]
    return logits, value, torch.rand(2, 1, 1, 1, SLOTS, generator=seeded) < 0.8, K, order, None


def generic(*given):
    with at.force_generic():
        return ops.attend_top_k(*given)


def agree(found, given):
    for one, other in zip(found, generic(*given), strict=True):
        assert one.dtype == other.dtype
    output, threshold, oldest = found
    torch.testing.assert_close(output, generic(*given)[0])
    logits, _, allowed, _, order, _ = given
    marked = (logits > threshold) | ((logits == threshold) & (order >= oldest))
    assert ((marked & allowed).sum(-1) == K).all()


def test_eager_code_uses_it():
    given = arguments()
    found = machine_code.attend_top_k(*given)
    assert found is not NotImplemented
    agree(found, given)


@pytest.mark.parametrize("bad", [0.0, -torch.inf])
def test_one_operation_of_a_compiled_graph(bad):
    given = arguments()
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    run = torch.compile(lambda *a: ops.attend_top_k(*a), fullgraph=True, backend=keep)
    given[0][0, 0, 0, 0, 0] = bad  # infinity is left to the generic op
    with torch.no_grad():
        agree(run(*given), given)
    assert "attendre.attend_top_k" in graphs[0].code


def test_the_operation_obeys_the_rules_of_pytorch():
    given = arguments()
    torch.library.opcheck(machine_code._later, given, test_utils=("test_schema", "test_faketensor"))


def test_gradients_are_those_of_the_generic_op():
    grads = []
    for run in (ops.attend_top_k, generic):
        logits, value, *rest = arguments()
        logits.requires_grad_()
        value.requires_grad_()
        run(logits, value, *rest)[0].square().sum().backward()
        grads.append((logits.grad, value.grad))
    assert grads[0][0].abs().sum() > 0
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


# PyTorch compiles its decompositions for forward derivatives in a way that it has deprecated.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_derivatives_are_not_lost():
    logits, value, *rest = arguments()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(logits, torch.ones_like(logits))
        assert machine_code.attend_top_k(dual, value, *rest) is NotImplemented
        dual = torch.autograd.forward_ad.make_dual(value, torch.ones_like(value))
        output = ops.attend_top_k(logits, dual, *rest)[0]
        tangent = torch.autograd.forward_ad.unpack_dual(output).tangent
    torch.testing.assert_close(tangent, torch.ones_like(tangent))


def test_what_is_mapped_or_exported_or_wider_is_left_to_the_generic_op():
    logits, value, *rest = arguments()
    declined = []
    torch.func.vmap(lambda x: declined.append(machine_code.attend_top_k(x, value, *rest)) or x)(
        torch.stack([logits, 2 * logits])
    )
    assert declined == [NotImplemented]
    assert machine_code.attend_top_k(*arguments(torch.float64)) is NotImplemented

    class Module(torch.nn.Module):
        def forward(self, x):
            return ops.attend_top_k(x, value, *rest)[0]

    with torch.no_grad():
        exported = torch.export.export(Module(), (logits,))
    assert "attendre" not in exported.graph_module.code
    torch.testing.assert_close(exported.module()(logits), Module()(logits))
