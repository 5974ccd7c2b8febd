"""Training: the functions that are trained are those that run, on either framework."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.synthetic_words import KEYS, VOCABULARY
from attendre_core.evaluation.tiny import train as command
from attendre_core.evaluation.tiny.cut import layer_params, layers_of
from attendre_core.evaluation.tiny.objective import answer_logits, draw_batch, nested, objective
from attendre_core.evaluation.tiny.optimizer import adamw, no_moments
from attendre_core.evaluation.tiny.recipe import MODELS, TRAINED_LENGTH, Recipe, architecture
from attendre_core.evaluation.tiny.shipped import load_tiny
from attendre_core.evaluation.tiny.training import FRAMEWORKS, initial_parameters, train
from attendre_core.zoo.full_attention import full_pass
from attendre_core.zoo.model import Model

#: With the seeds below all inputs have one length, because each is compiled.
SHORT = Recipe(steps=3, warmup=2, tokens=128, growth=100.0)


def nobody(step: int, loss: float, right: float) -> None:
    """Say nothing."""


@pytest.mark.parametrize("name", MODELS)
class TestObjective:
    def test_it_trains_what_a_model_runs(self, name: str) -> None:
        own = architecture(name)
        flat = initial_parameters(own, np.random.default_rng(0))
        batch = draw_batch(np.random.default_rng(1), 4, 64, VOCABULARY)
        logits, _ = answer_logits(own, flat, batch.tokens, batch.valid, "numpy")
        attention = "prefix" if own.kind == "decoder" else None
        model = Model(own, nested(own, flat), attention=attention)
        expected = np.asarray(model.logits(batch.tokens.tolist()))[:, -1]
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)

    def test_shared_tensors_are_one(self, name: str) -> None:
        own = architecture(name)
        flat = initial_parameters(own, np.random.default_rng(0))
        model = Model(own, nested(own, flat))
        assert model.parameter_count == sum(array.size for array in flat.values())

    def test_a_perfect_answer_costs_nothing(self, name: str) -> None:
        own = architecture(name)
        flat = initial_parameters(own, np.random.default_rng(0))
        batch = draw_batch(np.random.default_rng(1), 8, 32, VOCABULARY)
        logits, first = answer_logits(own, flat, batch.tokens, batch.valid, "numpy")
        hints = {
            n: np.zeros((first.shape[2], len(KEYS)), np.float32) for n in ("owner", "question")
        }
        loss, right = objective(own, flat, hints, batch, 0.0, "numpy")
        chance = np.exp(logits - logits.max(axis=-1, keepdims=True))
        chance /= chance.sum(axis=-1, keepdims=True)
        told = (chance * batch.answer).sum(axis=-1)
        assert loss == pytest.approx(-np.log(told).mean(), rel=1e-5)
        assert right == (logits.argmax(axis=-1) == batch.answer.argmax(axis=-1)).sum()
        hinted, _ = objective(own, flat, hints, batch, 1.0, "numpy")
        assert hinted - loss == pytest.approx(2 * np.log(len(KEYS)), rel=1e-5)


def test_layers_add_up() -> None:
    own = architecture("prefix-lm")
    params = nested(own, initial_parameters(own, np.random.default_rng(0)))
    batch = draw_batch(np.random.default_rng(1), 3, 48, VOCABULARY)
    whole, _ = full_pass(own, params, batch.tokens, batch.valid, causal=False, library="numpy")
    below = None
    for i in range(own.layers):
        below, _ = full_pass(
            layers_of(own, i, i + 1), layer_params(params, i, i + 1, below),
            batch.tokens, batch.valid, causal=False, library="numpy",
        )  # fmt: skip
    np.testing.assert_allclose(below, whole, rtol=1e-5, atol=1e-6)


def test_batches_say_what_is_to_be_learned() -> None:
    batch = draw_batch(np.random.default_rng(1), 8, 64, VOCABULARY)
    assert np.all(batch.answer.sum(axis=-1) == 1)
    for row in range(8):
        values = np.flatnonzero(batch.owner[row].sum(axis=-1))
        assert np.all((batch.tokens[row, values] >= 20) & (batch.tokens[row, values] < 52))
        asked = batch.question[row].argmax(axis=-1)[batch.question[row].sum(axis=-1) > 0]
        assert set(asked) == {int(batch.tokens[row][3:7][batch.tokens[row][3:7] < 12][0]) - 4}
        told = batch.answer[row].argmax()
        owners = batch.owner[row].argmax(axis=-1)
        assert np.any(owners[values[batch.tokens[row, values] == told]] == asked[0])


def test_the_optimizer_is_adamw() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    start = {"w": rng.standard_normal((3, 4)), "b": rng.standard_normal(4)}
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in start.items()}
    groups = [
        {"params": [leaves["w"]], "weight_decay": 0.1},
        {"params": [leaves["b"]], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-8)
    arrays, moments = start, no_moments(start)
    for step in range(1, 6):
        gradients = {name: rng.standard_normal(array.shape) for name, array in start.items()}
        for name, leaf in leaves.items():
            leaf.grad = torch.tensor(gradients[name])
        torch.nn.utils.clip_grad_norm_(list(leaves.values()), 1.0)
        reference.step()
        arrays, moments = adamw(arrays, gradients, moments, step=step, rate=0.01, decay=0.1)
        for name, leaf in leaves.items():
            # PyTorch adds 1e-6 to the length before it divides by it.
            np.testing.assert_allclose(arrays[name], leaf.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_frameworks_take_the_same_steps(name: str) -> None:
    for framework in FRAMEWORKS:
        pytest.importorskip(framework)
    losses: dict[str, list[float]] = {}
    results = {}
    for framework in FRAMEWORKS:
        seen = losses.setdefault(framework, [])
        results[framework] = train(
            architecture(name), SHORT, seed=7, framework=framework,
            on_step=lambda step, loss, right, seen=seen: seen.append(loss),
        )  # fmt: skip
    np.testing.assert_allclose(losses["torch"], losses["jax"], rtol=1e-4)
    for tensor, array in results["torch"].items():
        np.testing.assert_allclose(array, results["jax"][tensor], rtol=1e-2, atol=2e-3)


def test_a_seed_fixes_a_run() -> None:
    pytest.importorskip("torch")
    first, again, other = (
        train(architecture("prefix-lm"), SHORT, seed=seed, framework="torch", on_step=nobody)
        for seed in (0, 0, 1)
    )
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["lm_head.weight"], other["lm_head.weight"])


def test_the_loss_falls() -> None:
    pytest.importorskip("torch")
    losses: list[float] = []
    recipe = Recipe(steps=150, warmup=20, tokens=1024, fade=100.0, growth=100.0)
    train(
        architecture("prefix-lm"), recipe, seed=0, framework="torch",
        on_step=lambda step, loss, right: losses.append(loss),
    )  # fmt: skip
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])


def test_the_recipe_grows_and_fades() -> None:
    recipe = Recipe()
    lengths = [recipe.longest_at(step) for step in range(recipe.steps)]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (48, TRAINED_LENGTH)
    assert recipe.auxiliary_at(0) == 1.0
    assert recipe.auxiliary_at(int(0.8 * recipe.steps)) == 0.0
    assert max(recipe.rate_at(step) for step in range(recipe.steps)) == recipe.rate


def test_the_command_writes_what_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    monkeypatch.setattr(command, "_CHECK_COUNT", 5)
    arguments = ["--out", str(tmp_path), "--models", "prefix-lm", "--steps", "2", "--seed", "5"]
    assert command.main(arguments) == 0
    known = json.loads((tmp_path / "manifest.json").read_text())["models"]["prefix-lm"]
    assert known["seed"] == 5
    assert known["recipe"]["steps"] == 2
    assert set(known["short_context_accuracy"].values()) != {1.0}
    assert load_tiny("prefix-lm", folder=tmp_path).parameter_count == known["parameters"]


def test_an_unknown_framework() -> None:
    with pytest.raises(ConfigError, match="framework is 'theano', expected torch or jax"):
        train(architecture("prefix-lm"), SHORT, seed=0, framework="theano", on_step=nobody)
