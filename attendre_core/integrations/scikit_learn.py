"""Documents to vectors, as a transformer in a scikit-learn pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from attendre_core.errors import ConfigError
from attendre_core.zoo.loading import load
from attendre_core.zoo.model import Model

__all__ = ["DocumentEmbedder"]


class DocumentEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turn documents of any length into vectors, with a model in a memory of fixed size.

    Nothing is learned: `fit` loads the model. It is not copied or pickled with this object, which
    remembers its path; a copy loads it again when it is first used.

    Parameters
    ----------
    model
        Path of the checkpoint, as in `attendre_core.load`.
    memory
        As in `attendre_core.load`; None is full attention.
    pooling, normalize, batch_size
        As in `Model.embed`.
    backend, device, dtype, tokenizer
        As in `attendre_core.load`.

    Attributes
    ----------
    n_features_out_
        Length of the vectors.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        memory: Any = 1024,
        pooling: Any = None,
        normalize: bool | None = None,
        batch_size: int = 8,
        backend: str = "numpy",
        device: Any = None,
        dtype: str = "float32",
        tokenizer: Any = None,
    ) -> None:
        self.model = model
        self.memory = memory
        self.pooling = pooling
        self.normalize = normalize
        self.batch_size = batch_size
        self.backend = backend
        self.device = device
        self.dtype = dtype
        self.tokenizer = tokenizer

    def fit(self, X: Iterable[str], y: Any = None) -> Self:  # noqa: N803 - sklearn's name
        """Load the model; the documents are checked and otherwise not looked at."""
        _documents("fit", X)
        self.n_features_out_: int = self._found().reading_part.dim
        return self

    def transform(self, X: Iterable[str]) -> Any:  # noqa: N803 - sklearn's name
        """Return the vectors of documents, float32, ``(documents, n_features_out_)``."""
        check_is_fitted(self)
        documents, model = _documents("transform", X), self._found()
        if not documents:
            return np.zeros((0, self.n_features_out_), dtype=np.float32)
        found = model.embed(
            documents, pooling=self.pooling, normalize=self.normalize, batch_size=self.batch_size
        )
        return np.asarray(model.backend.to_numpy(found), dtype=np.float32)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the columns, ``documentembedder0`` and so on."""
        check_is_fitted(self)
        name = type(self).__name__.lower()
        return np.asarray([f"{name}{i}" for i in range(self.n_features_out_)], dtype=object)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_loaded", None)
        return state

    def _found(self) -> Model:
        """Return the model, loaded once for these settings."""
        if self.model is None:
            raise ConfigError(
                "DocumentEmbedder: model is None, expected the path of a checkpoint. Write "
                "DocumentEmbedder('path/to/checkpoint')."
            )
        settings = (
            self.model, self.memory, self.backend, self.device, self.dtype, self.tokenizer
        )  # fmt: skip
        if getattr(self, "_loaded", (None, None))[0] != settings:
            model = load(
                self.model, self.memory, self.backend,
                device=self.device, dtype=self.dtype, tokenizer=self.tokenizer, progress=False,
            )  # fmt: skip
            self._loaded = settings, model
        found: Model = self._loaded[1]
        return found


def _documents(where: str, X: Iterable[str]) -> list[str]:  # noqa: N803 - sklearn's name
    """Return texts as a list; refuse anything else, a single text included."""
    if isinstance(X, str):
        raise ConfigError(
            f"DocumentEmbedder.{where}: X is one text, expected several. Write [text]."
        )
    documents = list(X)
    for number, document in enumerate(documents):
        if not isinstance(document, str):
            raise ConfigError(
                f"DocumentEmbedder.{where}: X[{number}] is a {type(document).__name__}, expected "
                "a text. Of a table, give one column."
            )
    return documents
