"""How many entries each K/V head of a model gets: more where attention is spread out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attendre_core.errors import ConfigError
from attendre_core.policies import LFA, ConstantScore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attendre_core.zoo.model import Model

__all__ = ["head_sizes"]

#: How many times M the memory has that measures which entries matter.
_WIDER = 4


def head_sizes(model: Model, text: Any, *, floor: float = 0.2) -> tuple[tuple[int, ...], ...]:
    """Measure sizes for `MemoryConfig.head_sizes` on a text.

    The budget of "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient
    LLM Inference" (arXiv 2407.11550), once and for all inputs instead of for each prompt: of the
    attention that all heads of a layer paid to all entries, the largest amounts are marked, as many
    as the heads may hold together. A head's size is its number of marks, blended with M.

    Parameters
    ----------
    model
        A causal model with a memory that has ``per_head=True``.
    text
        Text or tokens of the kind that will be read, several times M long.
    floor
        The share of M that every head gets anyway; 0.2 as published. A head gets at least its
        sinks, its protected entries and one more.

    Returns
    -------
    tuple
        For each layer the sizes of its K/V heads; their mean is M.

    Notes
    -----
    Sizes do not change while reading, because a step hands back as many entries as it inserts in
    every head. Arrays are as large as the largest head of the layer needs.

    Examples
    --------
    ::

        sizes = head_sizes(model, "What will be read is like this text ...")
        model = model.with_memory(replace(model.memory, head_sizes=sizes))
    """
    memory = model.used_memory
    if memory is None or not memory.per_head or not model.causal:
        raise ConfigError(
            f"head_sizes: the memory is {memory and memory.name}, expected a causal model with a "
            "memory whose heads decide on their own, such as 'H2O:512'."
        )
    if not 0.0 <= floor <= 1.0:
        raise ConfigError(f"head_sizes: floor is {floor}, expected a share between 0 and 1.")
    least = memory.protect_recent + max(memory.sinks, memory.policy.sinks) + memory.q_size + 1
    measure = LFA(decay=0.0, initial=ConstantScore(0.0), score="softmax")
    wide = replace(
        memory, kv_size=_WIDER * memory.kv_size, policy=measure, present="visible", q_size=0,
        protect_recent=0, sinks=0, pin=(), layer_policies=(), layer_sizes=(), head_sizes=(),
        adapt=False,
    )  # fmt: skip
    stream = model.with_memory(wide).stream()
    stream.feed(text)
    found = []
    for layer, entries in enumerate(stream.entries()):
        paid = model.backend.to_numpy(entries.score)[0]
        paid = np.where(model.backend.to_numpy(entries.valid)[0], paid, -np.inf)
        if memory.governs(layer, model.reading_part.window(layer)):
            found.append(_shared_out(paid, memory.kv_size, floor, least))
        else:
            found.append((memory.kv_size,) * len(paid))
    return tuple(found)


def _shared_out(paid: NDArray[np.float32], size: int, floor: float, least: int) -> tuple[int, ...]:
    """Share out ``size`` entries per head by where the largest amounts are."""
    heads = len(paid)
    total = heads * size
    marked = np.argsort(-paid, axis=None, kind="stable")[: min(total, int(np.sum(paid > -np.inf)))]
    count = np.bincount(marked // paid.shape[1], minlength=heads)
    wanted = np.maximum(floor * size + (1 - floor) * count * total / count.sum(), least)
    spare = wanted - least
    wanted = least + spare * (total - heads * least) / max(spare.sum(), 1e-9)
    sizes = np.floor(wanted).astype(int)
    for head in np.argsort(sizes - wanted, kind="stable")[: total - sizes.sum()]:
        sizes[head] += 1
    return tuple(int(n) for n in sizes)
