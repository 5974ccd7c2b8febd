"""Rerankers: a pinned query, a document of any length, and a first token that saw it all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation import load_tiny
from attendre_core.zoo.tokenizers.around import around_pair

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

#: On JAX most of the time is compiling.
pytestmark = pytest.mark.thorough("jax")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
QUERY = "a b c"
DOCUMENTS = ["d e f g h i j k l m n o p q r s t u v w x y z " * 2, "b", "c a b " * 9]
#: Everything is held and every query waits until the end; a top K keeps it from being read at once.
HOLDS_ALL = at.MemoryConfig(at.FIFO(), 96, 95, chunk=16, top_k=96, positions="model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """Make a folder with a random cross-encoder of so many labels; return it with their model."""
    made: dict[int, tuple[Path, Any]] = {}

    def make(labels: int) -> tuple[Path, Any]:
        if labels not in made:
            config = transformers.BertConfig(
                hidden_size=24, num_hidden_layers=2, num_attention_heads=2, vocab_size=len(WORDS),
                intermediate_size=32, max_position_embeddings=128, num_labels=labels,
                attn_implementation="eager",
            )  # fmt: skip
            theirs = transformers.BertForSequenceClassification(config)
            generator = torch.Generator().manual_seed(labels)
            with torch.no_grad():
                for parameter in theirs.parameters():
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.copy_(noise * 0.3 if parameter.ndim > 1 else parameter + 0.1 * noise)
            place = tmp_path_factory.mktemp(f"cross-{labels}")
            theirs.eval().save_pretrained(place)
            (place / "vocab.txt").write_text("\n".join(WORDS) + "\n")
            made[labels] = place, theirs
        return made[labels]

    return make


def expected(folder: Path, theirs: Any) -> np.ndarray:
    """Return the logits of transformers, each pair by itself."""
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    with torch.no_grad():
        pairs = [tokenizer(QUERY, text, return_tensors="pt") for text in DOCUMENTS]
        return np.concatenate([theirs(**pair).logits.numpy() for pair in pairs])


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("memory", [None, HOLDS_ALL])
def test_scores_are_those_of_transformers(labels, memory, library, folder, tolerance):
    if library == "jax" and labels == 2:
        pytest.skip("another head costs another compilation; NumPy and PyTorch show the same")
    place, theirs = folder(labels)
    model = at.load(place, memory=memory, backend=library)
    want = expected(place, theirs)[:, -1]
    got = np.asarray(model.backend.to_numpy(model.rerank(QUERY, DOCUMENTS, batch_size=2)))
    assert np.abs(got - want).max() < tolerance * np.abs(want).max()
    assert np.ptp(want) > 100 * tolerance * np.abs(want).max()


def test_classify_reads_as_a_stream(folder, tolerance):
    place, _ = folder(2)
    model = at.load(place)
    rows = [model.tokens(text) for text in DOCUMENTS]
    want = model.classify(rows)
    got = model.with_memory(HOLDS_ALL).classify(rows)
    assert got.shape == (3, 2)
    assert np.abs(got - want).max() < tolerance * np.abs(want).max()


def test_the_query_is_never_evicted(folder, monkeypatch):
    place, _ = folder(1)
    model = at.load(place, memory="MT+wait=4+chunk=8:16")
    held = []
    finish = at.Stream.finish

    def finished(stream):
        outputs = finish(stream)
        held.append([set(e.position[0][e.valid[0]].tolist()) for e in stream.entries()])
        return outputs

    monkeypatch.setattr(at.Stream, "finish", finished)
    model.rerank(QUERY, DOCUMENTS[:1])
    assert all({0, 1, 2, 3, 4} < layer for layers in held for layer in layers)
    assert held
    assert all(len(layer) == 16 for layers in held for layer in layers)


def test_what_comes_last_matters(folder):
    """N is 4, M 16: the query's [CLS] is far away when the document ends."""
    place, _ = folder(1)
    model = at.load(place, memory="MT+wait=4+chunk=8:16")
    one, other = model.rerank(QUERY, ["d " * 60 + "e e e", "d " * 60 + "f f f"])
    assert abs(one - other) > 1e-3


def test_batches_and_order_change_nothing(folder):
    place, _ = folder(1)
    model = at.load(place, memory="LFA-0+softmax+wait=8+chunk=8:24")
    want = [float(model.rerank(QUERY, text)) for text in DOCUMENTS]
    for size in (1, 2, 3):
        assert np.allclose(model.rerank(QUERY, DOCUMENTS, batch_size=size), want, atol=1e-5)
    back = model.rerank(QUERY, DOCUMENTS[::-1])
    assert np.allclose(back[::-1], want, atol=1e-5)
    ids = around_pair(model.tokenizer)
    query = [*ids.before, *model.tokens(QUERY, special=False), *ids.between]
    rows = [[*model.tokens(text, special=False), *ids.after] for text in DOCUMENTS]
    assert np.allclose(model.rerank(query, rows), want, atol=1e-5)


#: Ranks a document of random tokens, and prints the largest resident size of the process.
PROGRAM = """
import resource, sys
import numpy as np
import attendre_core as at
model = at.load(sys.argv[1], memory="MT+wait=64+chunk=128+visible:128")
model.rerank([2, 5, 6, 3], [np.random.default_rng(0).integers(5, 31, int(sys.argv[2]))])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(folder: Path, length: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(length)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_peak_memory_does_not_grow_with_the_document(folder):
    place, _ = folder(1)
    short, long = peak(place, 4 * 1024), peak(place, 64 * 1024)
    assert long <= 1.02 * short, f"{long} KiB for 64k tokens, {short} KiB for 4k"


def test_pairs_as_tokenizers_join_them(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from attendre_core.zoo.tokenizers.fast import FastTokenizer

    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[S]": 1, "[C]": 2}, "a"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.add_special_tokens(["[S]", "[C]"])
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[C] $A [S]", pair="[C] $A [S] [S] $B:1 [S]:1",
        special_tokens=[("[C]", 2), ("[S]", 1)],
    )  # fmt: skip
    assert around_pair(FastTokenizer(inner)) == ([2], [1, 1], [1], 1)


@pytest.mark.parametrize(
    ("labels", "memory", "given", "said"),
    [
        (3, None, (QUERY, DOCUMENTS), "a head for sequences, 3 labels"),
        (1, 8, ("a b c d e f", DOCUMENTS), "the query takes 8 tokens"),
        (1, None, (QUERY, [[1, 2]]), "mixed"),
        (1, None, ("", DOCUMENTS), "the query has no tokens"),
    ],
)
def test_mistakes_are_explained(labels, memory, given, said, folder):
    model = at.load(folder(labels)[0], memory=memory)
    with pytest.raises(at.errors.ConfigError, match=said):
        model.rerank(*given)


def test_a_model_without_a_head_says_what_to_do():
    with pytest.raises(at.errors.ConfigError, match=r"no head.*model\.embed"):
        load_tiny("prefix-lm").rerank([1], [[2]])


def test_a_score_that_is_no_number_is_refused(folder, tmp_path):
    """It would be sorted anywhere."""
    numpy_files = pytest.importorskip("safetensors.numpy")
    place = shutil.copytree(folder(1)[0], tmp_path / "broken")
    tensors = numpy_files.load_file(place / "model.safetensors")
    tensors["classifier.weight"][0, 0] = np.nan
    numpy_files.save_file(tensors, place / "model.safetensors")
    with pytest.raises(at.errors.NonFiniteError, match=r"Model\.rerank: a score is NaN"):
        at.load(place).rerank(QUERY, DOCUMENTS)
