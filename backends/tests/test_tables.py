"""Tables are kept for the next call, and never something that a trace or transform owns."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at
from attendre_core import ops
from attendre_core.backend import backend

#: Every test has a table of its own, so that none finds what another has kept.
NUMBER = iter(range(1, 10_000))


def series(start):
    return [float(start), 2.0 * start]


def made(like, start, dtype):
    return ops.table(like, series, start, dtype=dtype)


@pytest.fixture(params=["numpy", "torch", "jax"])
def library(request):
    pytest.importorskip(request.param)
    return backend(request.param)


def test_a_table_is_made_once(library):
    like, start = library.from_numpy(np.zeros(3, np.float32)), next(NUMBER)
    one = made(like, start, library.xp.float32)
    assert made(like, start, library.xp.float32) is one
    assert library.to_numpy(one).tolist() == series(start)
    half = made(like, start, library.xp.float16)
    assert half.dtype == library.xp.float16
    assert made(like, next(NUMBER), library.xp.float32) is not one


def test_a_table_of_numpy_cannot_be_written_to():
    table = made(np.zeros(1), next(NUMBER), np.float32)
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 7.0


def test_specs_that_differ_have_their_own_tables(library):
    position = library.xp.astype(library.from_numpy(np.arange(5)), library.xp.float32)
    angles = [
        library.to_numpy(rope.angles(position, 8)[0])
        for rope in (at.RoPE(), at.RoPE(base=500.0), at.RoPE(scaling=at.NTK(2.0)), at.RoPE())
    ]
    assert (angles[0] == angles[3]).all()
    assert (angles[0] != angles[1]).any()
    assert (angles[0] != angles[2]).any()


# ---------------------------------------------------------------- PyTorch


def test_a_table_of_inference_mode_serves_gradients():
    torch = pytest.importorskip("torch")
    x, start = torch.ones(2), next(NUMBER)
    with torch.inference_mode():
        made(x, start, torch.float32)
    x.requires_grad_()
    (x * made(x, start, torch.float32)).sum().backward()
    assert x.grad.tolist() == series(start)


def test_every_device_has_its_own_table():
    torch = pytest.importorskip("torch")
    start = next(NUMBER)
    for device in ("meta", "cpu", "meta"):
        assert made(torch.ones(2, device=device), start, torch.float32).device.type == device


@pytest.mark.parametrize("how", ["vmap", "grad", "functionalize", "fake", "make_fx", "compile"])
def test_what_a_transform_made_is_not_kept(how):
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    start = next(NUMBER)

    def product(x):
        return (x * made(x, start, torch.float32)).sum()

    x = torch.ones(2)
    if how == "vmap":
        torch.vmap(product)(torch.ones(3, 2))
    elif how == "grad":
        torch.func.grad(product)(x)
    elif how == "functionalize":
        torch.func.functionalize(product)(x)
    elif how == "fake":
        with FakeTensorMode() as mode:
            product(mode.from_tensor(x))
    elif how == "make_fx":
        make_fx(product, tracing_mode="fake")(x)
    else:
        torch.compile(product, fullgraph=True, backend="aot_eager")(x)
    # A wrapper that outlived its transform has no memory that NumPy could share.
    assert made(x, start, torch.float32).numpy().tolist() == series(start)
    assert product(x).item() == 3.0 * start
    x.requires_grad_()
    product(x).backward()
    assert x.grad.tolist() == series(start)


@pytest.mark.parametrize("how", ["vmap", "grad", "compile"])
def test_what_is_kept_serves_transforms(how):
    torch = pytest.importorskip("torch")
    start, x = next(NUMBER), torch.ones(2)
    made(x, start, torch.float32)

    def product(x):
        return (x * made(x, start, torch.float32)).sum()

    if how == "vmap":
        assert torch.vmap(product)(torch.ones(3, 2)).tolist() == [3.0 * start] * 3
    elif how == "grad":
        assert torch.func.grad(product)(x).tolist() == series(start)
    else:
        compiled = torch.compile(product, fullgraph=True, backend="aot_eager")
        assert compiled(x).item() == 3.0 * start


# ---------------------------------------------------------------- JAX


@pytest.mark.parametrize("how", ["jit", "vmap", "grad", "beside a trace"])
def test_no_tracer_is_kept(how):
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    start, constant = next(NUMBER), jnp.ones(2)

    def product(x):
        like = constant if how == "beside a trace" else x
        return (x * made(like, start, jnp.float32)).sum()

    x = jnp.ones(2)
    with jax.checking_leaks():
        if how == "vmap":
            jax.vmap(product)(jnp.ones((3, 2)))
        elif how == "grad":
            jax.grad(product)(x)
        else:
            jax.jit(product)(x)
    assert not isinstance(made(x, start, jnp.float32), jax.core.Tracer)
    assert float(product(x)) == float(jax.jit(product)(x)) == 3.0 * start
