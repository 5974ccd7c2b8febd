"""Embed or tag the documents of a Ray dataset: one model in each actor, batch by batch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from attendre_core.errors import ConfigError

__all__ = ["embed_dataset", "tag_dataset"]


def embed_dataset(
    dataset: Any,
    model: Any,
    *,
    memory: Any = 1024,
    text: str = "text",
    vector: str = "vector",
    pooling: str | None = None,
    normalize: bool | None = None,
    batch_size: int = 32,
    actors: int | tuple[int, int] = 1,
    backend: str = "numpy",
    device: Any = None,
    dtype: str = "float32",
    tokenizer: Any = None,
    **resources: Any,
) -> Any:
    """Return a Ray dataset with the vectors of its documents, computed when it is consumed.

    Every actor loads the model once. A row has one vector however often a worker dies: Ray starts
    the actor again and gives it the batches that it had not handed back.

    Parameters
    ----------
    dataset
        A ``ray.data.Dataset``.
    model
        Path of the checkpoint, which every node can read.
    memory, backend, device, dtype, tokenizer
        As in `attendre_core.load`.
    text, vector
        The column with the documents, and the one that is added: a list of fixed size of float32.
    pooling, normalize
        As in `Model.embed`.
    batch_size
        Rows that an actor embeds at a time, and that are embedded again if it dies.
    actors
        How many, or the fewest and the most. Each takes a processor unless `resources` say
        otherwise, and reading needs one, too: with fewer, Ray waits for ever.
    resources
        Of each actor, as ``map_batches`` takes them: ``num_cpus=2``, ``num_gpus=1``.
    """
    settings = {
        "memory": memory, "backend": backend, "device": device, "dtype": dtype,
        "tokenizer": tokenizer,
    }  # fmt: skip
    options = {"pooling": pooling, "normalize": normalize}
    given = (str(model), settings, text, vector, options)
    return _mapped("embed_dataset", dataset, _Embedder, given, batch_size, actors, resources)


def tag_dataset(
    dataset: Any,
    model: Any,
    *,
    memory: Any = 512,
    text: str = "text",
    spans: str = "spans",
    aggregation: str = "first",
    batch_size: int = 32,
    actors: int | tuple[int, int] = 1,
    backend: str = "numpy",
    device: Any = None,
    dtype: str = "float32",
    tokenizer: Any = None,
    **resources: Any,
) -> Any:
    """Return a Ray dataset with the labelled spans of its documents, as `embed_dataset` does.

    Parameters
    ----------
    dataset, memory, text, batch_size, actors, backend, device, dtype, tokenizer, resources
        As in `embed_dataset`.
    model
        A checkpoint for token classification.
    spans
        The column that is added: a list of structs with ``label``, ``text``, ``start``, ``end``
        and ``score``.
    aggregation
        As in `attendre_core.pipeline`.
    """
    settings = {
        "memory": memory, "backend": backend, "device": device, "dtype": dtype,
        "tokenizer": tokenizer, "aggregation": aggregation,
    }  # fmt: skip
    given = (str(model), settings, text, spans)
    return _mapped("tag_dataset", dataset, _Tagger, given, batch_size, actors, resources)


def _mapped(
    where: str,
    dataset: Any,
    worker: type,
    given: tuple[Any, ...],
    batch_size: int,
    actors: int | tuple[int, int],
    resources: dict[str, Any],
) -> Any:
    """Map the batches of a dataset with actors that hold a model."""
    try:
        data = importlib.import_module("ray.data")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{where} needs Ray. Install it with: pip install 'attendre-core[ray]'."
        ) from error
    if not isinstance(dataset, data.Dataset):
        raise ConfigError(
            f"{where}: dataset is a {type(dataset).__name__}, expected a ray.data.Dataset, such as "
            "ray.data.read_parquet(path)."
        )
    fewest, most = actors if isinstance(actors, tuple) else (actors, actors)
    return dataset.map_batches(
        worker,
        fn_constructor_args=given,
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=data.ActorPoolStrategy(min_size=fewest, max_size=most),
        **resources,
    )


class _Embedder:
    """What an actor holds: a model, loaded when the actor starts."""

    def __init__(
        self, path: str, settings: dict[str, Any], text: str, vector: str, options: dict[str, Any]
    ) -> None:
        from attendre_core.zoo.loading import load

        self.model = load(path, progress=False, **settings)
        self.text, self.vector, self.options = text, vector, options

    def __call__(self, table: Any) -> Any:
        """Add the vectors to a table of pyarrow."""
        import pyarrow

        found = self.model.embed(_column("embed_dataset", table, self.text), **self.options)
        vectors = np.asarray(self.model.backend.to_numpy(found), dtype=np.float32)
        flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
        column = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        return _with(table, self.vector, column)


class _Tagger:
    """What an actor holds: a model for token classification."""

    def __init__(self, path: str, settings: dict[str, Any], text: str, spans: str) -> None:
        from attendre_core.zoo.pipelines import pipeline

        self.tagger = pipeline("token-classification", path, progress=False, **settings)
        self.text, self.spans = text, spans

    def __call__(self, table: Any) -> Any:
        """Add the spans to a table of pyarrow."""
        import pyarrow

        found = self.tagger(_column("tag_dataset", table, self.text))
        # Said, because a batch without spans does not show it.
        span = pyarrow.struct(
            [
                ("label", pyarrow.string()),
                ("text", pyarrow.string()),
                ("start", pyarrow.int64()),
                ("end", pyarrow.int64()),
                ("score", pyarrow.float32()),
            ]
        )
        rows = [[span._asdict() for span in spans] for spans in found]
        return _with(table, self.spans, pyarrow.array(rows, pyarrow.list_(span)))


def _column(where: str, table: Any, name: str) -> list[str]:
    """Return the texts of a column."""
    if name not in table.column_names:
        raise ConfigError(
            f"{where}: there is no column {name!r}, only {', '.join(table.column_names)}. Name "
            "the one with the documents: text=..."
        )
    found: list[Any] = table.column(name).to_pylist()
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise ConfigError(
                f"{where}: row {number} of a batch has a {type(text).__name__} under {name!r}, "
                "expected a text. Leave such rows out: dataset.filter(...)."
            )
    return found


def _with(table: Any, name: str, column: Any) -> Any:
    """Add a column, in place of one with its name."""
    if name in table.column_names:
        table = table.drop_columns([name])
    return table.append_column(name, column)
