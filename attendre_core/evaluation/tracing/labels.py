"""Words about memories that are shown side by side: their names, and how much they hold."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attendre_core.evaluation.tracing.record import LayerTrace, PolicyTrace

__all__ = ["holds", "room", "short_names"]

_PARTS = re.compile(r"(?P<head>.*?)(?P<options>(?:\+[\w.=-]+)*)(?P<size>(?::\d+\w*)?)", re.DOTALL)


def short_names(names: Sequence[str]) -> tuple[list[str], str]:
    """Return the names without the options and the size that all have, and what was left out.

    ``full`` has neither and does not count.

    Examples
    --------
    >>> short_names(["MT+wait=16+k=8:32", "attendre+k=8:32", "full"])
    (['MT+wait=16', 'attendre', 'full'], '+k=8:32')
    >>> short_names(["MT:32", "AS:64"])
    (['MT:32', 'AS:64'], '')
    """
    found = [_PARTS.fullmatch(name) for name in names]
    parts = [
        (m["head"], m["options"].split("+")[1:], m["size"])
        for name, m in zip(names, found, strict=True)
        if m and name != "full"
    ]
    if len(parts) + names.count("full") < len(names) or not parts:
        return list(names), ""
    shared = [o for o in parts[0][1] if all(o in options for _, options, _ in parts)]
    size = parts[0][2] if len({size for *_, size in parts}) == 1 else ""
    short = iter(
        "+".join((head, *(o for o in options if o not in shared))) + own.removesuffix(size)
        for head, options, own in parts
    )
    said = "".join(f"+{option}" for option in shared) + size
    return [name if name == "full" else next(short) for name in names], said


def room(policy: PolicyTrace, layer: LayerTrace) -> str:
    """Return how many entries there is room for in a layer.

    With ``present="visible"``, the S entries of the last chunk are held besides: they compete only
    in the next step. With eviction per head, a token is held while any head holds it. A layer with
    a sliding window has room for what all queries of a chunk can see.

    Examples
    --------
    >>> import attendre_core as at
    >>> import numpy as np
    >>> no = np.zeros(0, np.int32)
    >>> layer = LayerTrace(0, 32, no, no, no.astype(np.int8), 1, None)
    >>> memories = [at.preset(name, 32, chunk=16) for name in ("MT", "attendre", "attendre-causal")]
    >>> [room(PolicyTrace(memory.name, memory, (layer,), 1), layer) for memory in memories]
    ['M = 32', 'M + S = 32 + 16', 'M + S = 32 + 16 per head']
    """
    if layer.window is not None:
        return f"sliding window of {layer.window:,}, room for {layer.size:,}"
    memory = policy.memory
    each = f"{layer.size:,}"
    most = f"M + S = {each} + {memory.chunk:,}" if memory.present == "visible" else f"M = {each}"
    return f"{most} per head" if memory.per_head else most


def holds(policy: PolicyTrace, layer: LayerTrace) -> str:
    """Return how many tokens a layer holds at the end, and how many there is room for."""
    tokens = len(layer.born)
    if policy.full and layer.window is None:
        return f"all {tokens:,} tokens"
    return f"{layer.counts()['held']:,} of {tokens:,} tokens ({room(policy, layer)})"
