"""Heads and types of tokens: where they come from, what is refused, how streams carry them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attendre_core as at
from attendre_core.layer.chunks import in_order
from attendre_core.zoo.architectures.heads import Head, pooled

pytest.importorskip("safetensors")

#: On JAX most of the time is compiling.
pytestmark = pytest.mark.thorough("jax")

CONFIG = {
    "model_type": "bert", "architectures": ["BertForTokenClassification"], "vocab_size": 30,
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "type_vocab_size": 3, "id2label": {"0": "O", "1": "PER"},
}  # fmt: skip
MEMORY = at.preset("LFA-0", kv_size=12, q_size=6, chunk=4)
ROW = [3, 9, 27, 4, 5, 11, 20, 8, 14, 2, 6]
TYPES = [0, 0, 0, 1, 1, 2, 2, 2, 0, 1, 1]


def changed(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    return folder


@pytest.fixture
def folder(made_up):
    return made_up(CONFIG)


def test_a_head_is_found_and_shared(folder):
    model = at.load(folder)
    assert (model.head.kind, model.head.labels) == ("token", ("O", "PER"))
    remembering = model.with_memory(MEMORY)
    assert remembering.head == model.head
    assert remembering.params["classifier"]["out"] is model.params["classifier"]["out"]
    assert model.classify([ROW, ROW[:3]]).shape == (2, len(ROW), 2)
    assert not model.classify([ROW, ROW[:3]])[1, 3:].any()


@pytest.mark.parametrize("names", [None, [], ["BertModel"], ["BertForMaskedLM"]])
def test_without_a_class_that_has_one_there_is_no_head(names, folder):
    model = at.load(changed(folder, architectures=names))
    assert model.head is None
    with pytest.raises(at.ConfigError, match="no head that gives labels"):
        model.classify(ROW)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"id2label": {"0": "O", "1": "PER", "2": "LOC"}}, r"names 3 labels.* 2 rows"),
        ({"id2label": {"0": "O", "2": "PER"}}, "a label .* for each number from 0"),
        ({"id2label": ["O", "PER"]}, "a label .* for each number from 0"),
        ({"id2label": {"0": "O", "1": "x" * 2000}}, "at most 1000 characters"),
        ({"id2label": {"0": "O", "1": None}}, "a label .* for each number from 0"),
        ({"id2label": None, "num_labels": 10**9}, "num_labels is 1000000000, expected"),
        ({"architectures": "BertForTokenClassification"}, "expected a list of names"),
        ({"architectures": [3]}, "expected a list of names"),
        ({"architectures": ["BertForQuestionAnswering"]}, "qa_outputs.weight is missing"),
        ({"type_vocab_size": 65}, "type_vocab_size is 65, expected a whole number from 1 to 64"),
    ],
)
def test_odd_configurations_are_refused(values, match, folder, refused):
    refused(changed(folder, **values), match)


def test_labels_without_names_are_numbered(folder):
    assert at.load(changed(folder, id2label=None)).head.labels == ("LABEL_0", "LABEL_1")


def test_poolings_see_what_is_real():
    x = np.asarray([[[1.0, 2.0], [3.0, 6.0], [50.0, 60.0]]])
    valid = np.asarray([[True, True, False]])
    found = {how: pooled(x, valid, how)[0].tolist() for how in ("cls", "mean", "last")}
    assert found == {"cls": [1.0, 2.0], "mean": [2.0, 4.0], "last": [3.0, 6.0]}


def test_pooling_late_is_pooling_what_dense_makes():
    early = Head("sequence", ("a",), 2, "out", "dense", "relu", pooling="mean")
    late = Head("sequence", ("a",), 2, "out", "dense", "relu", pooling="mean", late=True)
    own = {"dense": np.eye(2), "dense_bias": np.zeros(2), "out": np.ones((1, 2)),
           "out_bias": np.zeros(1)}  # fmt: skip
    x, valid = np.asarray([[[4.0, -4.0], [-2.0, 2.0]]]), np.asarray([[True, True]])
    for head, want in ((early, 1.0), (late, 3.0)):
        params = {"classifier": own}
        assert head.logits(params, head.row(params, x, valid)).tolist() == [[want]]


# ------------------------------------------------------------------ types of tokens


def test_types_change_what_is_read_and_none_is_the_first(folder, library):
    model = at.load(folder, backend=library)
    to_numpy = model.backend.to_numpy
    plain, same, other = (to_numpy(model.encode(ROW, types)) for types in (None, 0, TYPES))
    assert np.array_equal(plain, same)
    assert np.abs(other - plain).max() > 0.01
    rows = model.encode([ROW, ROW[:5]], [TYPES, 2])
    assert np.abs(to_numpy(rows)[0] - other).max() < 1e-5
    alone = to_numpy(model.encode(ROW[:5], [2] * 5))
    assert np.abs(to_numpy(rows)[1, :5] - alone[0]).max() < 1e-5


@pytest.mark.parametrize(
    ("types", "match"),
    [
        (3, "row 0 has a token of type 3, expected 0 to 2"),
        (-1, "row 0 has a token of type -1"),
        ([0, 1], "types of row 0|one for each row"),
        ([[0] * 4], r"11 of them, one for each token"),
        ("ab", "expected the type of all tokens"),
        ([["a"] * 11], "expected a whole number"),
        (1.5, "expected the type of all tokens"),
    ],
)
def test_odd_types_are_refused(types, match, folder):
    model = at.load(folder)
    with pytest.raises(at.ConfigError, match=match):
        model.encode(ROW, types)
    stream = model.with_memory(MEMORY).stream()
    with pytest.raises(at.ConfigError, match=match):
        stream.feed(ROW, types=types)
    assert stream.lengths == (0,)


def test_a_model_without_types_says_so(made_up):
    settings = {**CONFIG, "model_type": "mpnet", "architectures": None}
    model = at.load(made_up({name: v for name, v in settings.items() if v is not None}))
    assert model.encode(ROW, 0).shape == (1, len(ROW), 16)
    with pytest.raises(at.ConfigError, match="has no types of tokens"):
        model.encode(ROW, 1)


@pytest.mark.parametrize("pieces", [[11], [1, 3, 2, 5], [6, 5]])
def test_pieces_change_nothing(pieces, folder):
    model = at.load(folder, memory=MEMORY)
    want = model.encode(ROW, TYPES)
    stream, outputs, start = model.stream(), [], 0
    for piece in pieces:
        part = slice(start, start + piece)
        outputs += stream.read(ROW[part], TYPES[part])
        stream, start = stream.copy(), start + piece
    got = in_order([*outputs, *stream.finish()], len(ROW))
    assert np.array_equal(got, want)


def test_types_of_waiting_tokens_are_saved(folder, tmp_path):
    model = at.load(folder, memory=MEMORY)
    stream = model.stream()
    early = stream.read(ROW[:6], TYPES[:6])  # two of them wait for a full chunk
    stream.save(tmp_path / "state.safetensors")
    later = model.restore(tmp_path / "state.safetensors")
    outputs = [*early, *later.read(ROW[6:], TYPES[6:]), *later.finish()]
    got = in_order(outputs, len(ROW))
    assert np.array_equal(got, model.encode(ROW, TYPES))


def test_what_ends_a_text_has_the_type_of_its_last_piece(folder):
    words = ["[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz0"]
    (folder / "vocab.txt").write_text("\n".join(words))
    model = at.load(folder, memory=MEMORY)
    stream = model.stream()
    outputs = [*stream.read("a b"), *stream.read("c d e", 1), *stream.finish()]
    got = in_order(outputs, 7)
    want = model.encode([1, 3, 4, 5, 6, 7, 2], [0, 0, 0, 1, 1, 1, 1])
    assert np.array_equal(got, want)
