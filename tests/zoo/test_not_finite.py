"""Weights that are NaN: no token, vector, score or next word is made of them, on any backend."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at
from attendre_core.errors import NonFiniteError
from attendre_core.evaluation import load_tiny, measure, system
from attendre_core.evaluation.tasks import LookAhead, word
from attendre_core.evaluation.tasks.continuation import continued
from attendre_core.evaluation.tracing import trace_text

CONFIG = {
    "model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}  # fmt: skip
ROW = [1, 2, 3]


@pytest.fixture(params=[None, "MT+chunk=2:2"])
def broken(request, made_up, library):
    """A model with one weight behind all layers that is NaN, whose text fits into no memory."""
    numpy_files = pytest.importorskip("safetensors.numpy")
    file = made_up(CONFIG) / "model.safetensors"
    tensors = numpy_files.load_file(file)
    tensors["model.norm.weight"][3] = np.nan
    numpy_files.save_file(tensors, file)
    return at.load(file.parent, request.param, backend=library)


def test_no_token_is_chosen(broken):
    """Not the token 0, which is the place of the largest among NaN."""
    for how in ({}, {"temperature": 1.0, "top_k": 3}, {"beams": 2}):
        with pytest.raises(NonFiniteError, match="no token can be chosen"):
            broken.generate([ROW], max_new_tokens=2, **how)


def test_no_vector_is_returned(broken):
    for spans in (None, [[(0, 2), (1, 3)]]):
        with pytest.raises(NonFiniteError, match="vector of document 0 is NaN"):
            broken.embed([ROW], "mean", spans=spans)


@pytest.fixture
def tiny():
    """A tiny model that knows all logits but one."""
    model = load_tiny("prefix-lm", memory="MT+chunk=16:32")
    head = np.array(model.params["head"])
    head[-1] = np.nan
    model.params = {**model.params, "head": head}
    return model


def test_no_next_word_is_shown(tiny):
    with pytest.raises(NonFiniteError, match="trace: a logit is NaN.*nothing can be chosen"):
        trace_text(
            tiny, ROW, {"MT": tiny.memory}, naming=lambda tokens: [word(t) for t in tokens]
        )  # fmt: skip


def test_no_answer_is_counted(tiny):
    documents = list(LookAhead().documents(seed=0, count=1, chunks=(2, 2)))
    with pytest.raises(NonFiniteError, match="measure: a logit is NaN"):
        measure(tiny, documents, system("MT", 32))
    stream = tiny.stream()
    stream.feed(ROW)
    with pytest.raises(NonFiniteError, match="eval continuation: a logit is NaN"):
        continued(*stream.writer(2), 2)
