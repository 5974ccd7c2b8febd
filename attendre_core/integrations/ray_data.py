"""Embed the documents of a Ray dataset: one model in each actor, batch by batch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from attendre_core.errors import ConfigError

__all__ = ["embed_dataset"]


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
        The column with the documents, and the one that is added.
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
    data = _ray_data()
    if not isinstance(dataset, data.Dataset):
        raise ConfigError(
            f"embed_dataset: dataset is a {type(dataset).__name__}, expected a ray.data.Dataset, "
            "such as ray.data.read_parquet(path)."
        )
    fewest, most = actors if isinstance(actors, tuple) else (actors, actors)
    settings = {
        "model": str(model), "memory": memory, "backend": backend, "device": device,
        "dtype": dtype, "tokenizer": tokenizer,
    }  # fmt: skip
    options = {"pooling": pooling, "normalize": normalize, "batch_size": min(batch_size, 8)}
    return dataset.map_batches(
        _Embedder,
        fn_constructor_kwargs={
            "settings": settings, "options": options, "text": text, "vector": vector
        },
        batch_size=batch_size,
        compute=data.ActorPoolStrategy(min_size=fewest, max_size=most),
        **resources,
    )  # fmt: skip


class _Embedder:
    """What an actor holds: a model, loaded when the actor starts."""

    def __init__(
        self, settings: dict[str, Any], options: dict[str, Any], text: str, vector: str
    ) -> None:
        from attendre_core.zoo.loading import load

        settings = dict(settings)
        self.model = load(settings.pop("model"), progress=False, **settings)
        self.options, self.text, self.vector = options, text, vector

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the vectors to a batch of columns."""
        if self.text not in batch:
            raise ConfigError(
                f"embed_dataset: there is no column {self.text!r}, only "
                f"{', '.join(map(repr, batch))}. Name the one with the documents: text=..."
            )
        found = self.model.embed([str(document) for document in batch[self.text]], **self.options)
        vectors = np.asarray(self.model.backend.to_numpy(found), dtype=np.float32)
        return {**batch, self.vector: vectors}


def _ray_data() -> Any:
    try:
        return importlib.import_module("ray.data")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "embed_dataset needs Ray. Install it with: pip install 'attendre-core[ray]'."
        ) from error
