"""Where one chunk holds the whole prompt, a memory keeps what the press of kvpress keeps."""

import os
import warnings
from dataclasses import dataclass
from importlib import metadata

import pytest

import attendre_core as at

torch = pytest.importorskip("torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
Requirement = pytest.importorskip("packaging.requirements").Requirement

try:
    needed = [Requirement(line) for line in metadata.requires("kvpress") or ()]
except metadata.PackageNotFoundError:
    pytest.skip("needs kvpress", allow_module_level=True)
(wanted,) = (one for one in needed if one.name == "transformers")
if not wanted.specifier.contains(transformers.__version__):
    pytest.skip(f"kvpress needs {wanted}", allow_module_level=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own dependencies
    kvpress = pytest.importorskip("kvpress")

from attendre_torch import AttendreCache  # noqa: E402

T, M = 50, 20
RATIO = 1 - M / T


@dataclass(frozen=True)
class SmallKeys(at.Policy):
    """Keep the keys of the smallest norm, as `KnormPress` does."""

    def enter(self, stored, new):
        return -new.key.norm(dim=-1)


CASES = {
    "StreamingLLM": (
        lambda: kvpress.StreamingLLMPress(RATIO, n_sink=3),
        at.preset(f"AS+sinks=3+visible+chunk={T}:{M}"),
    ),
    "TOVA": (lambda: kvpress.TOVAPress(RATIO), at.preset(f"TOVA+chunk={T}:{M}")),
    "Knorm": (
        lambda: kvpress.KnormPress(RATIO),
        at.MemoryConfig(SmallKeys(), kv_size=M, chunk=T, present="visible", per_head=True),
    ),
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def places(kept, full):
    """Return at which positions of the prompt keys are, (slots, dim) and (T, dim)."""
    apart = (kept[:, None] - full[None]).abs().amax(dim=2)
    assert apart.amin(dim=1).max() < 1e-5
    return set(apart.argmin(dim=1).tolist())


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_the_same_keys_are_kept(model, name):
    press, memory = CASES[name]
    ids = torch.randperm(64)[None, :T]  # equal tokens would have equal scores
    full, theirs = transformers.DynamicCache(), transformers.DynamicCache()
    model(ids, past_key_values=full)
    with press()(model):
        want = model(ids, past_key_values=theirs).logits
    ours = AttendreCache(model, memory)
    torch.testing.assert_close(model(ids, past_key_values=ours).logits, want)
    model(ids[:, :1], past_key_values=ours)  # before another token is read, the prompt competes
    for number, layer in ours.memories.items():
        state = layer.state.kv
        for head in range(2):
            record = (0, head) if memory.per_head else (0,)
            kept = state.position[record][state.valid[record]].tolist()
            found = places(theirs.layers[number].keys[0, head], full.layers[number].keys[0, head])
            assert len(found) == M
            if name == "TOVA":
                found -= {T - 1}  # the press keeps the last token in any case
            assert found <= set(kept) - {T}
            assert len(kept) == M + 1
