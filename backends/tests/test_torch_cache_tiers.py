"""AttendreCache with tiers: the system that the zoo runs, exact while everything fits, saved."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attendre_core as at
from attendre_core.errors import ConfigError

torch = pytest.importorskip("torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

from attendre_torch import AttendreCache, from_transformers  # noqa: E402

V = 89
SIZES = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
SINKS = {"head_dim": 8, "sliding_window": 9, "num_local_experts": 4}
SINKS["layer_types"] = ["full_attention"] * 2  # type: ignore[assignment]
COMPRESSORS = {
    "mean": at.MeanPool(3), "max": at.MaxPool(2), "most-used": at.MostUsed(2), "merge": at.Merge(),
}  # fmt: skip


def made(name: str = "Llama", **changes: Any) -> Any:
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**SIZES, **changes)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def texts(count: int, batch: int = 2) -> Any:
    return torch.randint(1, V, (batch, count), generator=torch.Generator().manual_seed(0))


def two_tiers(first: int, second: int, compress: Any = None, **settings: Any) -> at.MemoryConfig:
    tier = at.Tier(at.KeyValueMemory(second), compress=compress)
    settings = {"decode": "inside", "chunk": 8, **settings}
    return at.MemoryConfig(at.Usage(), first + second, tiers=(tier,), **settings)


def in_chunks(model: Any, tokens: Any, cache: Any, **options: Any) -> Any:
    with torch.no_grad():
        parts = [
            model(part, past_key_values=cache, **options).logits for part in tokens.split(8, dim=1)
        ]
    return torch.cat(parts, dim=1)


def close(one: Any, other: Any) -> None:
    assert (one - other).abs().max() <= 1e-5 * other.abs().max()


@pytest.mark.parametrize("name", ["Llama", "GptOss"])
def test_logits_are_those_of_full_attention_while_everything_is_held(name: str) -> None:
    """With sinks of the model, too; 40 tokens are 16 in the first tier and 24 in the second."""
    model, tokens = made(name, **(SINKS if name == "GptOss" else {})), texts(40)
    with torch.no_grad():
        expected = model(tokens).logits
    for settings in (two_tiers(16, 24), two_tiers(16, 24, present="visible")):
        cache = AttendreCache(model, settings)
        close(in_chunks(model, tokens, cache), expected)
        assert {report.used for report in cache.reports()} == {(40, 40)}


@pytest.mark.parametrize("positions", ["clamp", "in-cache", "model"])
@pytest.mark.parametrize("compress", COMPRESSORS)
def test_it_is_the_system_that_the_zoo_runs(compress: str, positions: str) -> None:
    """Also beyond the 64 trained positions: keys are compressed as they are before rotation."""
    model, tokens = made(), texts(100, batch=1)
    settings = two_tiers(12, 12, COMPRESSORS[compress], positions=positions)
    cache = AttendreCache(model, settings)
    found = in_chunks(model, tokens, cache)
    zoo = from_transformers(model, settings)
    close(found[0], torch.as_tensor(zoo.logits(tokens[0].tolist()))[0])
    one = in_chunks(model, tokens, AttendreCache(model, replace(settings, tiers=())))
    assert not torch.allclose(found, one, rtol=1e-3)


def test_a_preset_generates_saves_and_continues(tmp_path: Path) -> None:
    model, tokens = made(), texts(72)
    cache = AttendreCache(model, "Compressive-Transformer+chunk=8:24")
    in_chunks(model, tokens[:, :56], cache)
    cache.save(tmp_path / "cache.safetensors")
    other = AttendreCache(model, cache.memory).restore(tmp_path / "cache.safetensors")
    twin = copy.deepcopy(cache)
    expected = in_chunks(model, tokens[:, 56:], cache)
    assert torch.equal(in_chunks(model, tokens[:, 56:], other), expected)
    assert torch.equal(in_chunks(model, tokens[:, 56:], twin), expected)
    plain = {"max_new_tokens": 6, "do_sample": False}
    more = torch.cat([tokens, tokens[:, :4]], dim=1)
    assert model.generate(more, past_key_values=other, **plain).shape == (2, 82)


def test_beams_select_and_repeat_rows() -> None:
    model, plain = made(), {"max_new_tokens": 8, "do_sample": False, "num_beams": 2}
    cache = AttendreCache(model, two_tiers(30, 30))
    found = model.generate(texts(44), past_key_values=cache, **plain)
    assert torch.equal(found, model.generate(texts(44), **plain))


def test_what_cannot_be_held_is_refused() -> None:
    with pytest.raises(ConfigError, match="outside of the device, whose rows cannot be selected"):
        AttendreCache(made(), "MT+host=100:16")
    alone = transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=V, hidden_size=32, n_layer=2, n_head=4)
    )
    with pytest.raises(ConfigError, match="has tiers, but this model attends by itself"):
        AttendreCache(alone, replace(two_tiers(8, 8), policy=at.FIFO()))
    model = made()
    cache = AttendreCache(model, two_tiers(8, 8, at.MeanPool(2)), trace=True)
    with pytest.raises(ConfigError, match="cannot be traced where they compress"):
        in_chunks(model, texts(8), cache)
