"""Turn a size, a byte budget or a name into a `MemoryConfig` for one architecture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from attendre_core.errors import ConfigError
from attendre_core.memory.sizes import byte_count
from attendre_core.presets.config import MemoryConfig
from attendre_core.presets.grammar import ParsedName
from attendre_core.presets.systems import build, parse

__all__ = ["memory_for", "recommended"]


def recommended(causal: bool) -> str:
    """Return the name of the recommended system.

    Parameters
    ----------
    causal
        Whether the model attends only backwards.

    Examples
    --------
    >>> recommended(causal=True)
    'attendre-causal'
    """
    return "attendre-causal" if causal else "attendre"


def memory_for(
    memory: int | str | MemoryConfig | None,
    *,
    causal: bool,
    layers: int,
    kv_heads: int,
    head_dim: int,
    dtype: Any = "float32",
    heads: int | None = None,
    carry_dim: int | None = None,
    value_dim: int | None = None,
    batch: int = 1,
    windows: Sequence[int | None] = (),
) -> MemoryConfig | None:
    """Make the memories of one architecture from a size, a byte budget or a name.

    Parameters
    ----------
    memory
        ``1024`` or ``"64MiB"``: the recommended system (`recommended`) with that many entries per
        layer, or with the most entries that fit into that many bytes. ``"NAME[+option...]:size"``:
        that system; see `preset`. A `MemoryConfig` is returned unchanged. None or ``"full"``
        returns None: full attention, without a memory.
    causal
        Whether the model attends only backwards. A causal model cannot use what comes after a
        query, so ``"attendre"``, whose queries wait for it, is refused unless the name says how
        long they wait (``"attendre+wait=0:1024"``).
    layers, kv_heads, head_dim, dtype, heads, carry_dim, value_dim, batch, windows
        Shape of the model, used only to fit bytes; see `MemoryConfig.nbytes`. The bytes are those
        of all layers, including the layers with a sliding window, whose size does not depend on M.

    Examples
    --------
    >>> sizes = {"causal": True, "layers": 12, "kv_heads": 8, "head_dim": 64}
    >>> memory_for(1024, **sizes).name
    'attendre-causal:1024'
    >>> config = memory_for("LRA-sum+softmax:64MiB", **sizes)
    >>> config.name, config.nbytes(layers=12, kv_heads=8, head_dim=64) <= 64 * 2**20
    ('LRA-sum+softmax:1360', True)
    """
    if memory is None or isinstance(memory, MemoryConfig):
        return memory
    if isinstance(memory, bool) or not isinstance(memory, int | str):
        raise ConfigError(
            f"memory: {memory!r} is a {type(memory).__name__}, expected entries (1024), bytes "
            f"('64MiB'), a name ('{recommended(causal)}:1024'), a MemoryConfig, or None for full "
            "attention."
        )
    text = str(memory).strip()
    if text.lower() == "full":
        return None
    if re.match(r"-?[0-9]", text):
        text = f"{recommended(causal)}:{text}"
    parsed = parse(text)
    if causal and parsed.name == "attendre" and not parsed.has("wait"):
        fix = parsed._replace(name="attendre-causal")
        raise ConfigError(
            f"memory name {text!r}: 'attendre' lets queries wait for later positions, which a "
            f"causal model does not attend to. Use {str(fix)!r}; or load a prefix language model "
            "with attention='prefix'."
        )
    if parsed.size is None:
        raise ConfigError(
            f"memory name {text!r}: the size is missing, expected {str(parsed) + ':1024'!r} "
            f"(entries per layer) or {str(parsed) + ':64MiB'!r} (bytes of all layers)."
        )
    if isinstance(parsed.size, int):
        return build(parsed, parsed.size)
    shape: dict[str, Any] = {
        "layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype,
        "heads": heads, "carry_dim": carry_dim, "value_dim": value_dim, "batch": batch,
        "windows": windows,
    }  # fmt: skip
    return _largest(parsed, byte_count(parsed.size), shape)


def _largest(parsed: ParsedName, budget: int, shape: dict[str, Any]) -> MemoryConfig:
    """Return the largest configuration that fits into a number of bytes."""
    build(parsed, 2**31 - 1)  # Raises the errors that do not depend on the size.
    windows = [window for window in shape["windows"] if window is not None]
    # If every layer has a window, M does not matter beyond the largest of them.
    fits, beyond = 0, (max(windows) if len(windows) == shape["layers"] else budget) + 1
    beyond = min(beyond, 2**31)
    while beyond - fits > 1:
        size = (fits + beyond) // 2
        config = _built(parsed, size)
        small = config is None or config.nbytes(**shape) <= budget
        fits, beyond = (size, beyond) if small else (fits, size)
    config = _built(parsed, fits)
    if config is not None:
        return config
    configs = (_built(parsed, size) for size in range(1, 2**31))
    smallest = next(config for config in configs if config is not None)
    least = smallest.nbytes(**shape)
    held = ""
    if windows:
        sliding = {**shape, "layers": len(windows), "windows": windows}
        held = f", {smallest.nbytes(**sliding)} of them for sliding windows, held at every size"
    raise ConfigError(
        f"memory name {str(parsed)!r}: {parsed.size} is too small: the smallest such memory, "
        f"{smallest.name}, takes {least} bytes in {shape['layers']} layers{held}. Give at least "
        f"{least}B; a shorter chunk (+chunk=16) needs less if the chunk is visible or layers have "
        "a sliding window."
    )


def _built(parsed: ParsedName, size: int) -> MemoryConfig | None:
    """Return the configuration; None if the size is too small for what it protects or retrieves."""
    try:
        return build(parsed, size)
    except ConfigError:
        return None
