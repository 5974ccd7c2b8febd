"""A transformer for scikit-learn: in pipelines, searched, cloned, pickled, checked by theirs."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import attendre_core as at

pytest.importorskip("sklearn", reason="needs scikit-learn: nox -s integrations")
pytest.importorskip("tokenizers")

from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from attendre_core.integrations.scikit_learn import DocumentEmbedder

TEXTS = ["aaaa aa", "zz zzzz", "aa a aaa", "z zz zzzz"] * 3
LABELS = [0, 1, 0, 1] * 3

#: What scikit-learn checks of every estimator and needs no numbers as input. All others of its
#: checks draw tables of numbers, and it leaves them out for what takes text, its own included.
CHECKS = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)


def test_in_a_pipeline_that_is_searched(byte_llama):
    pipeline = make_pipeline(DocumentEmbedder(str(byte_llama), memory=64), LogisticRegression())
    grid = {"documentembedder__pooling": ["mean", "max"]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(TEXTS, LABELS)
    assert search.predict(["aaa a", "zzz z"]).tolist() == [0, 1]
    assert search.score(TEXTS, LABELS) == 1.0


def test_vectors_and_names(byte_llama):
    embedder = DocumentEmbedder(byte_llama, memory=64, pooling="max", normalize=True)
    vectors = embedder.set_output(transform="default").fit_transform(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(
        vectors, at.load(byte_llama, memory=64).embed(TEXTS, "max", True), atol=1e-6
    )
    names = embedder.get_feature_names_out()
    assert list(names[:2]) == ["documentembedder0", "documentembedder1"]
    assert len(names) == embedder.n_features_out_ == vectors.shape[1]
    assert embedder.transform(np.asarray(TEXTS[:2])).shape == (2, vectors.shape[1])
    assert embedder.transform([]).shape == (0, vectors.shape[1])
    # Other settings, other vectors, and no fit between.
    last = embedder.set_params(pooling="last", memory=None).transform(TEXTS)
    np.testing.assert_allclose(last, at.load(byte_llama).embed(TEXTS, "last", True), atol=1e-6)


def test_a_column_of_a_table(byte_llama):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"body": TEXTS, "n": range(len(TEXTS))})
    columns = make_column_transformer(
        (DocumentEmbedder(byte_llama, memory=64), "body"), ("passthrough", ["n"])
    )
    found = columns.fit_transform(table)
    assert found.shape == (len(TEXTS), 33)
    assert columns.get_feature_names_out()[0] == "documentembedder__documentembedder0"


def test_a_pickle_has_the_path_and_not_the_weights(byte_llama):
    embedder = DocumentEmbedder(str(byte_llama), memory=64).fit(TEXTS)
    want = embedder.transform(TEXTS[:2])
    data = pickle.dumps(embedder)
    assert len(data) < 2000
    np.testing.assert_array_equal(pickle.loads(data).transform(TEXTS[:2]), want)
    np.testing.assert_array_equal(clone(embedder).fit(TEXTS).transform(TEXTS[:2]), want)
    with pytest.raises(NotFittedError):
        clone(embedder).transform(TEXTS)


@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_scikit_learn(name, byte_llama):
    getattr(estimator_checks, name)("DocumentEmbedder", DocumentEmbedder(str(byte_llama)))


@pytest.mark.filterwarnings("ignore:Can't test estimator DocumentEmbedder which requires input")
def test_check_estimator(byte_llama):
    found = estimator_checks.check_estimator(DocumentEmbedder(str(byte_llama)), on_skip=None)
    assert all(result["status"] == "passed" for result in found)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ("one text", r"X is one text, expected several. Write \[text\]"),
        ([["a"], ["b"]], r"X\[0\] is a list, expected a text. Of a table, give one column"),
        (["a", None], r"X\[1\] is a NoneType"),
    ],
)
def test_what_are_no_documents(documents, message, byte_llama):
    with pytest.raises(at.ConfigError, match=message):
        DocumentEmbedder(str(byte_llama)).fit(documents)
    with pytest.raises(at.ConfigError, match="model is None, expected the path"):
        DocumentEmbedder().fit(TEXTS)
