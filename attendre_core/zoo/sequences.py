"""Logits of whole sequences, with a head, over inputs of any length: classes, and rerankers.

::

    [CLS] query [SEP] document ............................ [SEP]
    └─ pinned: never evicted ┘ └─ read chunk by chunk ─┘
      └─ asked again at the end ─► head ─► score
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attendre_core import checks
from attendre_core.backend import Array
from attendre_core.checks import dtype_named
from attendre_core.errors import ConfigError
from attendre_core.progress import progress_bar
from attendre_core.zoo.embedding import pooled_rows
from attendre_core.zoo.heads import head_programs, required
from attendre_core.zoo.spans_of_tokens import Ids, listed, tokens_of
from attendre_core.zoo.tokenizers.around import PairFrame, around_pair

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["rerank", "sequence_logits"]


def sequence_logits(model: Model, rows: list[Ids], bar: Any = None) -> Array:
    """Return the logits of rows of tokens, (rows, labels), with a head for sequences.

    Parameters
    ----------
    rows
        Ids with types, as `typed_rows` writes them.
    """
    head = required(model.head, "Model.classify")
    logits_of, poolable = head_programs(model.library, head)
    whole = [[(0, len(row))] for row in rows]

    def through(x: Array) -> Array:
        return poolable(model.params, x) if head.late else x

    bar = bar or progress_bar(0, "", "", show=False)
    row = pooled_rows(model, head.pooling, rows, whole, bar, through)[:, 0, :]
    xp = model.backend.xp
    return logits_of(model.params, xp.astype(row, dtype_named(xp, model.dtype)))


def rerank(
    model: Model, query: Any, documents: Any, batch_size: int, progress: bool | None
) -> Array:
    """Do what `Model.rerank` says."""
    where = "Model.rerank"
    checks.whole_number(where, "batch_size", batch_size, least=1, hint="It counts documents.")
    head = model.head
    if head is None or head.kind != "sequence" or len(head.labels) > 2:
        what = "no head" if head is None else f"a head for {head.kind}s, {len(head.labels)} labels"
        raise ConfigError(
            f"{where}: this checkpoint has {what}, expected a cross-encoder: sequence "
            "classification with one label or two. To compare texts that are read apart, use "
            "model.embed."
        )
    given, single = listed(where, documents)
    texts = [isinstance(part, str) for part in (query, *given)]
    if any(texts) and not all(texts):
        raise ConfigError(f"{where}: texts and token ids are mixed. Give one or the other.")
    frame = _frame(model) if all(texts) else PairFrame([], [], [], 1)
    part = model.reading_part
    kind = frame.second if part.types > 1 else 0

    def joined(before: list[int], what: str, x: Any, after: list[int]) -> Ids:
        own = tokens_of(model, f"{where}: {what}", x, special=False)
        return np.concatenate([before, own, after]).astype(np.int32)

    asked = joined(frame.before, "the query", query, frame.between)
    rows = []
    for number, document in enumerate(given):
        own = joined([], f"document {number}", document, frame.after)
        rows.append(np.concatenate([asked, own + np.int32(kind * part.vocabulary)]))
    if not rows:
        return model.array(np.zeros(0, np.float32))
    model = _holding(model, len(asked))
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]), reverse=True)
    bar = progress_bar(sum(map(len, rows)), "reranking", " tokens", progress)
    try:
        logits = [
            sequence_logits(model, [rows[n] for n in order[i : i + batch_size]], bar)
            for i in range(0, len(order), batch_size)
        ]
    finally:
        bar.close()
    xp = model.backend.xp
    scores = xp.concat(logits, axis=0)[:, -1]
    scores = xp.take(scores, model.array(np.argsort(order)), axis=0)
    checks.finite_results(where, "a score", scores)
    return scores[0] if single else scores


def _frame(model: Model) -> PairFrame:
    frame = around_pair(model.require_tokenizer("rerank"))
    if frame is None:
        raise ConfigError(
            "Model.rerank: this tokenizer does not say how two texts are joined. Put its "
            "tokenizer.json beside the weights, or give token ids with all special tokens: the "
            "query's up to the document, and the document's to the end."
        )
    return frame


def _holding(model: Model, count: int) -> Model:
    """Return the model with memories that never evict the first tokens."""
    if model.memory is None:
        return model
    part = model.reading_part
    memory = model.memory.for_layers([part.window(i) for i in range(part.layers)])
    sizes = (*map(int, memory.layer_sizes), *map(min, memory.head_sizes)) or (memory.kv_size,)
    if count + max(memory.sinks, memory.protect_recent) >= min(sizes):
        raise ConfigError(
            f"Model.rerank: the query takes {count} tokens, which do not fit into a memory of "
            f"{min(sizes)} entries that must hold the document, too. Shorten it, or enlarge the "
            f"memory to well over {count}."
        )
    return model.with_memory(replace(model.memory, pin=(*model.memory.pin, (0, count))))
