"""Steps for which PyTorch generates code, which takes a C++ compiler."""

import pytest

import attendre_core as at

torch = pytest.importorskip("torch")

from attendre_torch import compiled_step  # noqa: E402


# PyTorch's code generator warns of PyTorch itself.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.usefixtures("needs_compiler")
def test_generated_code_computes_what_the_layer_computes():
    layer = at.AttendreLayer(
        at.KeyValueMemory(8, at.LFA()), at.DataOnlyMemory(4), top_k=5, encoding=at.RoPE()
    )
    step = compiled_step(layer)
    one, two = (layer.init(batch=2, heads=2, head_dim=8, xp="torch") for _ in range(2))
    seeded = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(5):
            chunk = at.Chunk(*torch.randn(3, 2, 3, 2, 8, generator=seeded).unbind(0))
            one, want = layer.step(one, chunk)
            two, got = step(two, chunk)
            torch.testing.assert_close(got.value, want.value)
            assert two.kv.position.sort().values.tolist() == one.kv.position.sort().values.tolist()
