"""Draw a trace: survival maps of all policies, and what the last query attended to."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tracing.coarse import coarse_map
from attendre_core.evaluation.tracing.labels import short_names
from attendre_core.evaluation.tracing.record import HELD, STATES, LayerTrace, TextTrace

__all__ = ["figure_of", "write_png"]

#: Colours of the states, the same as on the page.
_PALETTE = ("#ffffff", "#0072b2", "#e3ded4", "#e8a33d")
_WEIGHT, _INK, _LINE = "#00805e", "#1c1b19", "#d9d6cf"
#: Maximum number of layers side by side, and of rows and columns of a map.
_LAYERS, _ROWS, _COLUMNS = 3, 400, 1600


def write_png(trace: TextTrace, path: str | Path) -> None:
    """Draw a trace into a PNG file; needs the package matplotlib."""
    figure = figure_of(trace)
    with warnings.catch_warnings():
        # A next word may be in a script that the font lacks; it is drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(path, format="png", dpi=140, facecolor="white")


def figure_of(trace: TextTrace, figure: Any = None) -> Any:
    """Return a ``matplotlib.figure.Figure``: a row per policy, a column per layer.

    If there are more than three layers, the first, the middle and the last are drawn. Below each
    map is the attention of the last query, averaged over its heads.

    Parameters
    ----------
    figure
        An empty figure to draw into, such as ``plt.figure()``; None makes one without a window.
    """
    try:
        matplotlib = importlib.import_module("matplotlib.figure")
        patches = importlib.import_module("matplotlib.patches")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "trace: the package matplotlib is not installed, so there is no PNG. Install it with "
            "pip install 'attendre-core[eval]'."
        ) from error
    names, shared = short_names([policy.name for policy in trace.policies])
    layers = _chosen_layers(len(trace.policies[0].layers))
    rows, columns = len(trace.policies), len(layers)
    wide, tall = 1.2 + 5.4 * columns, 1.3 + 2.5 * rows
    figure = matplotlib.Figure() if figure is None else figure
    figure.set_size_inches(wide, tall)
    figure.set_layout_engine("constrained")
    said = f"{trace.title}\nall memories: {shared}" if shared else trace.title
    figure.suptitle("\n".join(map(_plain, said.split("\n"))), fontsize=11, color=_INK, wrap=True)
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=[4, 1] * rows)
    for i, policy in enumerate(trace.policies):
        for j, number in enumerate(layers):
            above = figure.add_subplot(grid[2 * i, j])
            below = figure.add_subplot(grid[2 * i + 1, j], sharex=above)
            layer = policy.layers[number]
            kept = f"{layer.counts()['held']} of {len(trace.words)} kept"
            title = f"layer {layer.layer}: {kept}"
            if layer.window is not None:
                title += f" (sliding window of {layer.window})"
            if policy.next_words and j == columns - 1:
                word, share = policy.next_words[0]
                # The font has these two signs.
                mark = {
                    None: "next:",
                    True: "\N{CHECK MARK} answers",
                    False: "\N{BALLOT X} answers",
                }
                title += f"; {mark[policy.answers(trace.answer)]} {word} {100 * share:.0f} %"
            name = f"{_plain(names[i])}\n{_plain(title)}"
            above.set_title(name, fontsize=9, loc="left", color=_INK)
            _draw_map(above, layer)
            _draw_weights(below, layer, last=i == rows - 1)
    handles = [
        patches.Patch(facecolor=_PALETTE[state], edgecolor=_LINE, label=STATES[state])
        for state in (1, 2, 3, 0)
    ]
    handles.append(patches.Patch(facecolor=_WEIGHT, label="attention of the last query"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles) if columns > 1 else 3,
        fontsize=8, frameon=False,
    )  # fmt: skip
    return figure


def _chosen_layers(count: int) -> list[int]:
    """Return the first, the middle and the last layer, or all if there are at most three.

    Examples
    --------
    >>> _chosen_layers(2), _chosen_layers(30)
    ([0, 1], [0, 15, 29])
    """
    return list(range(count)) if count <= _LAYERS else [0, count // 2, count - 1]


def _draw_map(axes: Any, layer: LayerTrace) -> None:
    count = len(layer.born)
    axes.imshow(
        _colours(coarse_map(layer, _ROWS, _COLUMNS)), aspect="auto", interpolation="nearest",
        extent=(0, count, layer.steps, 0),
    )  # fmt: skip
    axes.set_ylabel("step", fontsize=8)
    axes.yaxis.set_major_locator(_few_ticks(6))
    axes.tick_params(labelsize=7, labelbottom=False)
    for side in axes.spines.values():
        side.set_color(_LINE)


def _colours(share: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mix the colours of the states, (rows, columns, 3); even a few survivors stay visible."""
    parts = share.copy()
    parts[HELD] = np.sqrt(share[HELD])
    rest = np.where(share[HELD] < 1, (1 - parts[HELD]) / np.maximum(1 - share[HELD], 1e-6), 0)
    for state in range(len(STATES)):
        if state != HELD:
            parts[state] *= rest
    palette = [[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in _PALETTE]
    mixed = np.einsum("src,sk->rck", parts, np.asarray(palette, dtype=np.float32))
    clipped: NDArray[np.float32] = np.clip(mixed, 0, 1).astype(np.float32)
    return clipped


def _draw_weights(axes: Any, layer: LayerTrace, *, last: bool) -> None:
    count = len(layer.born)
    if layer.attended is not None and layer.attended.position.size:
        weight = layer.attended.mean
        # At least as wide as can be seen; the first one begins at 0, beside the axis.
        wide = max(0.85, count / 400)
        place = np.minimum(layer.attended.position, count - wide)
        axes.bar(place, weight, width=wide, align="edge", color=_WEIGHT, zorder=3)
        axes.set_ylim(0, max(float(weight.max()) * 1.1, 1e-6))
    axes.set_xlim(0, count)
    axes.xaxis.set_major_locator(_few_ticks(8))
    axes.yaxis.set_major_locator(_few_ticks(2, whole=False))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    axes.tick_params(labelsize=7)
    if last:
        axes.set_xlabel("token", fontsize=8)
    for name, side in axes.spines.items():
        side.set_visible(name in ("bottom", "left"))
        side.set_color(_LINE)
    # Away from the bars: that of token 0, often a sink, is the highest.
    axes.spines["left"].set_position(("outward", 4))


def _few_ticks(most: int, *, whole: bool = True) -> Any:
    return importlib.import_module("matplotlib.ticker").MaxNLocator(most, integer=whole)


def _plain(text: str) -> str:
    """Escape dollar signs, which matplotlib reads as mathematics, and join lines."""
    return " ".join(text.split()).replace("$", r"\$")
