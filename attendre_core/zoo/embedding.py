"""Embeddings of texts of any length, pooled while they are read.

::

    documents ─► by length into batches ─► chunk by chunk ─► hidden states ─► sums, maxima
                                                             (dropped)         (kept)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attendre_core import checks
from attendre_core.backend import Array, wide
from attendre_core.errors import ConfigError
from attendre_core.progress import progress_bar
from attendre_core.zoo.full_attention import Whole
from attendre_core.zoo.memories import keeps_first
from attendre_core.zoo.pooling import Recipe, SpanPool, normalized, pooling_named
from attendre_core.zoo.reader import Hidden
from attendre_core.zoo.spans_of_tokens import (
    Ids,
    Span,
    checked_spans,
    listed,
    tokens_at,
    tokens_of,
)

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["embed", "pooled_rows"]

#: Tokens of a document that are fed at a time.
_PIECE = 4096


def embed(
    model: Model,
    documents: Any,
    pooling: str | None,
    normalize: bool | None,
    spans: Any,
    batch_size: int,
    progress: bool | None,
) -> Any:
    """Do what `Model.embed` says."""
    where = "Model.embed"
    checks.whole_number(where, "batch_size", batch_size, least=1, hint="It counts documents.")
    pooling, normalize = _wanted(model, pooling, normalize, spans is not None)
    given, single = listed(where, documents)
    if not given:
        return model.array(np.zeros((0, model.reading_part.dim), np.float32))
    own = (
        [None] * len(given)
        if spans is None
        else _spans_of_each([spans] if single else spans, given)
    )
    rows, wanted = [], []
    for number, (document, parts) in enumerate(zip(given, own, strict=True)):
        name = f"{where}: document {number}"
        if parts is not None and isinstance(document, str):
            row, found = tokens_at(model, name, document, checked_spans(name, parts, document))
        else:
            row = tokens_of(model, name, document)
            found = [(0, len(row))] if parts is None else checked_spans(name, parts, row)
        rows.append(row)
        wanted.append(found)
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]), reverse=True)
    bar = progress_bar(sum(map(len, rows)), "embedding", " tokens", progress)
    vectors: dict[int, Array] = {}
    try:
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            spans_of = [wanted[number] for number in batch]
            pooled = pooled_rows(model, pooling, [rows[number] for number in batch], spans_of, bar)
            pooled = normalized(pooled) if normalize else pooled
            for place, number in enumerate(batch):
                vectors[number] = pooled[place, : len(wanted[number]), :]
                name = f"a number in the vector of document {number}"
                checks.finite_results(where, name, vectors[number])
    finally:
        bar.close()
    results = [vectors[number] for number in range(len(rows))]
    if spans is None:
        joined = model.backend.xp.concat(results, axis=0)
        return joined[0, :] if single else joined
    return results[0] if single else results


def _wanted(
    model: Model, pooling: str | None, normalize: bool | None, spans: bool
) -> tuple[str, bool]:
    """Return the pooling, and whether to normalise; what is not said, the checkpoint says."""
    where = "Model.embed"
    if pooling is None:
        recipe = model.recipe or Recipe()
        if recipe.refused:
            raise ConfigError(
                f"{where}: this checkpoint makes its embeddings with {recipe.refused}, which is "
                "not supported. Name another pooling to go without: pooling='mean'."
            )
        pooling = recipe.pooling
        normalize = recipe.normalize if normalize is None else normalize
    pooling = pooling_named(where, pooling)
    if pooling == "cls" and spans:
        raise ConfigError(
            f"{where}: pooling='cls' takes the first token of a document, so a span has none of "
            "its own. Pool spans with 'mean', 'max' or 'last'."
        )
    if pooling == "cls" and model.causal:
        raise ConfigError(
            f"{where}: pooling='cls' takes the first token, but this model reads only forwards, so "
            "that token never sees another. Use 'last', or 'mean'."
        )
    return pooling, bool(normalize)


def _spans_of_each(spans: Any, documents: list[Any]) -> list[Any]:
    if not isinstance(spans, Sequence) or len(spans) != len(documents):
        raise ConfigError(
            f"Model.embed: spans has {len(spans) if isinstance(spans, Sequence) else 'no'} entries "
            f"for {len(documents)} documents, expected a list of (start, end) for each."
        )
    return list(spans)


def pooled_rows(
    model: Model,
    pooling: str,
    rows: list[Ids],
    spans: list[list[Span]],
    bar: Any,
    through: Callable[[Array], Array] = lambda x: x,
) -> Array:
    """Read rows of different lengths and pool their spans, (rows, spans, dim).

    With a memory the vector of the first token, ``"cls"``, is what `Stream.first` returns.

    Parameters
    ----------
    rows
        Ids with types, as `typed_rows` writes them.
    through
        What hidden states go through before they are pooled.
    """
    pool = SpanPool(model, pooling, spans)
    vocabulary = model.reading_part.vocabulary
    if at_once(model, max(map(len, rows))):
        whole = Whole(model, [row.tolist() for row in rows])
        xp = model.backend.xp
        position = xp.cumulative_sum(xp.astype(whole.valid, xp.int32), axis=1, dtype=xp.int32) - 1
        pool.add(Hidden(through(whole.hidden), position, whole.valid))
        bar.update(sum(map(len, rows)))
        return pool.result()
    memory = model.memory
    if pooling == "cls" and memory and not keeps_first(model.reading_part, model.used_memory):
        model = model.with_memory(replace(memory, pin=(*memory.pin, (0, 1))))
    stream = model.stream(len(rows))
    for start in range(0, max(map(len, rows)), _PIECE):
        typed = [np.divmod(row[start : start + _PIECE], np.int32(vocabulary)) for row in rows]
        pieces, types = [ids.tolist() for _, ids in typed], [kind.tolist() for kind, _ in typed]
        for hidden in stream.read(pieces, types):
            if pooling != "cls":
                pool.add(hidden._replace(x=through(hidden.x)))
        bar.update(sum(map(len, pieces)))
    if pooling == "cls":
        return wide(through(stream.first()[:, None, :]))
    for hidden in stream.finish():
        pool.add(hidden._replace(x=through(hidden.x)))
    return pool.result()


def at_once(model: Model, length: int) -> bool:
    """Whether rows of this length are read with full attention, which computes the same.

    So it is without a memory in a model that looks both ways, and wherever nothing is evicted and
    every query waits until the end: a memory would only take longer.
    """
    if model.memory is None:
        return not model.causal
    part, used = model.reading_part, model.used_memory
    far = part.context is not None and length > part.context
    if used is None or far or used.tiers or used.top_k is not None:
        return False
    if not model.causal and used.q_size + 1 < length:
        return False
    policies = [used.policy_of(i) for i in range(part.layers)]
    sizes = [used.kv_memory(i).size for i in range(part.layers) if used.governs(i, part.window(i))]
    plain = all(policy.soft_mask is None for policy in policies)
    return plain and length <= min(sizes, default=length)
