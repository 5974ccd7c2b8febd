"""Full attention, without any memory: what the memory is compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from attendre_core.backend import Array, backend_of
from attendre_core.ops.attention import attention, grouped, logits_of, mix, ungrouped
from attendre_core.ops.softmax import masked_softmax
from attendre_core.positions.base import Encoding, Pairing
from attendre_core.positions.window import Window
from attendre_core.zoo.architectures.base import Cross, Params, Part
from attendre_core.zoo.stacks import compiled

__all__ = ["full_encoding", "full_pass", "layer_program"]

#: Queries are taken this many at a time, so that the logits stay small.
_BLOCK = 512


def full_pass(
    part: Part,
    params: Params,
    tokens: Array,
    valid: Array,
    *,
    causal: bool,
    library: str,
    crosses: list[Cross] | None = None,
) -> tuple[Array, list[tuple[Array, Array]]]:
    """Run a part over a whole input at once.

    Parameters
    ----------
    tokens, valid
        (batch, length); rows are filled up behind their end.

    Returns
    -------
    hidden
        (batch, length, dim), after the final norm.
    entries
        Key and value of each layer, (batch, length, kv_heads, head_dim).
    """
    xp = backend_of(tokens).xp
    position = xp.cumulative_sum(xp.astype(valid, xp.int32), axis=1, dtype=xp.int32) - 1
    position = xp.where(valid, position, xp.zeros_like(position))
    x = part.embed(params, tokens, position)
    entries = []
    for i in range(part.layers):
        run = layer_program(library, part, full_encoding(part, i), causal)
        cross = None if crosses is None else crosses[i]
        x, key, value = run(params["layers"][i], x, position, valid, cross)
        entries.append((key, value))
    return part.final(params, x), entries


def full_encoding(part: Part, layer: int) -> Encoding:
    """Return the position scheme of a layer with its window."""
    encoding, window = part.encoding(layer), part.window(layer)
    return encoding if window is None else Window(window, encoding)


@lru_cache(maxsize=256)
def layer_program(library: str, part: Part, encoding: Encoding, causal: bool) -> Callable[..., Any]:
    """Return ``run(params, x, position, valid, cross)``: one layer, compiled if that pays.

    It returns the output of the layer, (batch, length, dim), and its keys and values.
    """

    def run(params: Params, x: Array, position: Array, valid: Array, cross: Cross | None) -> Any:
        query, key, value = part.project(params, x, position)
        blocks = []
        for start in range(0, x.shape[1], _BLOCK):
            stop = min(start + _BLOCK, x.shape[1])
            # Rows are filled up behind their end, so later places are never in the past.
            seen = stop if causal else x.shape[1]
            queries = (query[:, start:stop, ...], position[:, start:stop], valid[:, start:stop])
            keys = (position[:, :seen], valid[:, :seen])
            entries = (key[:, :seen, ...], value[:, :seen, ...])
            table = part.encoding_params(params)
            blocks.append(_attended(part, encoding, table, causal, queries, entries, keys))
        xp = backend_of(x).xp
        attended = blocks[0] if len(blocks) == 1 else xp.concat(blocks, axis=1)
        return part.finish(params, attended, x, cross), key, value

    return compiled(library, run)


def _attended(
    part: Part,
    encoding: Encoding,
    encoding_params: Any,
    causal: bool,
    queries: tuple[Array, Array, Array],
    entries: tuple[Array, Array],
    keys: tuple[Array, Array],
) -> Array:
    """Attend with some queries to all keys, (batch, seq, heads, head_dim) throughout."""
    (query, at, real), (key, value), (key_at, key_real) = queries, entries, keys
    xp = backend_of(query).xp
    scale = part.head_dim**-0.5 if part.scale is None else part.scale
    exact = xp.float32 if xp.finfo(query.dtype).bits < 32 else query.dtype
    rows = xp.astype(grouped(query, key.shape[2]), exact) * scale
    stored = xp.astype(xp.permute_dims(key, (0, 2, 1, 3)), exact)
    values = xp.astype(xp.permute_dims(value, (0, 2, 1, 3)), exact)
    encoded = encoding.encode(rows, stored, Pairing(at, real, key_at, key_real), encoding_params)
    allowed = real[:, None, None, :, None] & key_real[:, None, None, None, :]
    if causal:
        allowed = allowed & (key_at[:, None, None, None, :] <= at[:, None, None, :, None])
    if encoded.near is not None:
        allowed = allowed & encoded.near
    if encoded.bias is None and encoded.logits is None:
        out = attention(encoded.query, encoded.key, values, allowed)
    else:
        logits = encoded.logits
        if logits is None:
            logits = logits_of(encoded.query, encoded.key)
        if encoded.bias is not None:
            logits = logits + encoded.bias
        out = mix(masked_softmax(logits, allowed), values)
    return xp.astype(ungrouped(out), query.dtype)
