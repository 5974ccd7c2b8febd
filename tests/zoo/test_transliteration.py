"""A real encoder-decoder, Arabic names to Latin letters, with tensors named by CTranslate2."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import attendre_core as at

NAMES = ["آتزمون", "آتشيسون", "إبراهيم", "أوباما"]
WRITTEN = ["atzmon", "achison", "ibrahim", "obama"]


@pytest.fixture
def folder(data_folder):
    return data_folder / "models" / "aren-transliteration"


@pytest.fixture
def copied(folder, tmp_path):
    """Return a copy of the model that may be changed."""
    return shutil.copytree(folder, tmp_path / "model", copy_function=shutil.copyfile)


def test_names_are_transliterated(folder, library):
    model = at.load(folder, backend=library)
    assert model.generate(NAMES) == WRITTEN


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_one_name_gives_one_text(folder, library):
    pytest.importorskip(library)
    assert at.load(folder, backend=library).generate(NAMES[0]) == WRITTEN[0]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_beams_find_likelier_names(folder, library):
    """A beam of one is the greedy choice; three never find a less likely text."""
    pytest.importorskip(library)
    model = at.load(folder, backend=library)
    rows = [model.tokens(name) for name in [*NAMES, "كلينتون", "شكسبير"]]
    greedy, beams = model.generate(rows), model.generate(rows, beams=3, length_penalty=0.0)
    assert greedy[0] == beams[0]
    assert [likelihood(model, *pair) for pair in zip(rows, beams, strict=True)] >= [
        likelihood(model, *pair) - 1e-4 for pair in zip(rows, greedy, strict=True)
    ]


def likelihood(model, row, written):
    logits = np.asarray(model.backend.to_numpy(model.logits([row], [[1, *written]])))[0]
    logits = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    chance = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return chance[np.arange(len(written) + 1), [*written, 2]].sum()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_memory_that_holds_everything_changes_nothing(folder, library, difference, tolerance):
    pytest.importorskip(library)
    memory = at.preset("LRA-sum", kv_size=16, q_size=12, chunk=4)
    model = at.load(folder, backend=library)
    remembering = model.with_memory(memory)
    want = model.backend.to_numpy(model.encode(model.tokens(NAMES[1])))
    assert difference(remembering, remembering.encode(NAMES[1]), want) < tolerance
    assert remembering.generate(NAMES) == WRITTEN


def test_a_stream_of_letters_is_saved_and_goes_on(folder, tmp_path):
    pytest.importorskip("torch")
    memory = at.preset("LFA-0", kv_size=16, q_size=12, chunk=4)
    model = at.load(folder, memory)
    stream = model.stream()
    stream.feed(NAMES[1][:5])
    stream.save(tmp_path / "stream.safetensors")
    stream = at.load(folder, memory, "torch").restore(tmp_path / "stream.safetensors")
    stream.feed(NAMES[1][5:])
    assert stream.generate() == WRITTEN[1]


def test_weights_are_shared_with_the_file(folder):
    model = at.load(folder)
    assert not model.params["encoder"]["layers"][0]["q"].flags.owndata
    assert model.parameter_count == 182_731


def test_letters_that_it_does_not_know(folder):
    """They get the row behind the vocabulary, and special tokens cannot be spelled."""
    model = at.load(folder)
    assert model.tokens("ي") == [3]
    assert model.tokens("X<s>") == [50] * 4
    assert model.text([1, 3, 4, 2, 42]) == "ae"


def test_a_configuration_beside_it_is_read(copied):
    (copied / "config.json").write_text('{"num_heads": 4, "add_source_eos": true}')
    model = at.load(copied)
    assert model.architecture.encoder.heads == 4
    assert model.tokens("ي") == [3, 2]


def test_without_vocabularies_it_takes_token_ids(copied, folder):
    rows = [at.load(folder).tokens(name) for name in NAMES]
    for name in ("source", "target"):
        (copied / f"{name}_vocabulary.txt").unlink()
    model = at.load(copied)
    assert model.generate(rows) == at.load(folder).generate(rows)
    with pytest.raises(at.ConfigError, match="without a tokenizer"):
        model.generate(NAMES[0])


def broken_heads(folder):
    (folder / "config.json").write_text('{"num_heads": 5}')


def hostile_heads(folder):
    (folder / "config.json").write_text('{"num_heads": -8}')


def list_for_a_configuration(folder):
    (folder / "config.json").write_text("[" * 9 + "]" * 9)


def long_vocabulary(folder):
    (folder / "source_vocabulary.txt").write_text("x\n" * 60)


def no_text(folder):
    (folder / "target_vocabulary.txt").write_bytes(b"\xff\xfe")


def no_start(folder):
    (folder / "target_vocabulary.txt").write_text("a\nb\n")


def truncated(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def one_less(folder):
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = safetensors.load_file(folder / "model.safetensors")
    del tensors["decoder/layer_3/attention/linear_1/bias"]
    safetensors.save_file(tensors, folder / "model.safetensors")


def no_matrix(folder):
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = safetensors.load_file(folder / "model.safetensors")
    tensors["decoder/embeddings/weight"] = np.zeros(3, dtype=np.float32)
    safetensors.save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (broken_heads, "32 wide and num_heads is 5, expected"),
        (hostile_heads, "num_heads is -8, expected"),
        (list_for_a_configuration, "config.json: holds a list, expected"),
        (long_vocabulary, "60 tokens, expected at most 51"),
        (no_text, "target_vocabulary.txt: cannot be read as text"),
        (no_start, "the vocabulary has no token '<s>'"),
        (truncated, "is damaged or no safetensors file"),
        (one_less, "decoder/layer_3/attention/linear_1/bias is missing"),
        (no_matrix, r"decoder/embeddings/weight is of shape \(3,\), expected"),
    ],
)
def test_a_damaged_folder_is_refused(damage, message, copied):
    damage(copied)
    with pytest.raises(at.CheckpointError, match=message):
        at.load(copied)


def test_a_folder_that_names_a_model_type_is_not_taken_for_one(copied):
    (copied / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    with pytest.raises(at.CheckpointError, match="model_type is 'nonesuch'"):
        at.load(copied)


@pytest.mark.parametrize("dtype", ["I32", "U32", "F8_E4M3"])
def test_tensors_that_hold_no_floats_are_refused(copied, dtype):
    """As many bytes, so that only the name of the dtype says it."""
    weights = copied / "model.safetensors"
    data = weights.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    changed = header["encoder/layer_0/self_attention/linear_0/weight"]
    assert changed["dtype"] == "F32"
    if dtype.startswith("F8"):
        changed["shape"][-1] *= 4
    changed["dtype"] = dtype
    text = json.dumps(header).encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(at.errors.CheckpointError, match=f"linear_0/weight is stored as {dtype}"):
        at.load(copied)
