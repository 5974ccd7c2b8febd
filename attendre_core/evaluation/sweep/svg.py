"""Line charts with intervals, written directly as SVG, without a plotting package."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from attendre_core.evaluation.intervals import Interval

__all__ = ["Line", "Panel", "Scale", "chart"]

#: Colours that colour-blind readers can tell apart (Okabe and Ito), with black and grey.
_COLOURS = ("#000000", "#999999", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7", "#e69f00")
#: Once the colours are used up, lines are dashed and their dots hollow.
_DASHES = ("", ' stroke-dasharray="6 3"', ' stroke-dasharray="2 3"')
_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 330, 260, 56, 64, 130


class Line(NamedTuple):
    """A named line: x values, and an interval at each of them."""

    name: str
    points: Sequence[tuple[int, Interval]]


class Scale(NamedTuple):
    """The y axis: range, distance of the grid lines, format of a number, unit."""

    low: float = 0.0
    high: float = 1.0
    step: float = 0.2
    write: Callable[[float], str] = lambda y: f"{100 * y:.0f}"
    unit: str = " %"


class Panel(NamedTuple):
    """One of several charts side by side; the x axis is logarithmic, y is a share by default."""

    title: str
    x_label: str
    lines: Sequence[Line]
    scale: Scale = Scale()


def chart(title: str, panels: Sequence[Panel]) -> str:
    """Draw panels side by side with one legend.

    Examples
    --------
    >>> half = Interval(0.5, 0.4, 0.6)
    >>> svg = chart("Shares", [Panel("all", "M", [Line("MT", [(16, half), (32, half)])])])
    >>> svg.startswith("<svg") and svg.count("<polyline")
    1
    """
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    dashes = {name: _DASHES[i // len(_COLOURS) % len(_DASHES)] for i, name in enumerate(names)}
    legend = max([_LEGEND, *(56 + 7 * len(name) for name in names)])
    width = len(panels) * (_WIDTH + _LEFT) + legend
    height = _TOP + max(_HEIGHT + 56, 20 * len(names) + 24)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 24, title, size=15),
    ]
    for i, panel in enumerate(panels):
        parts += _panel(panel, _LEFT + i * (_WIDTH + _LEFT), colours, dashes)
    for i, name in enumerate(names):
        x, y = width - legend + 18, _TOP + 12 + 20 * i
        parts.append(
            f'<path d="M{x} {y}h22" stroke="{colours[name]}" stroke-width="2.5"{dashes[name]}/>'
        )
        parts.append(_text(x + 30, y + 4, name))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: int, colours: dict[str, str], dashes: dict[str, str]) -> list[str]:
    places = sorted({x for line in panel.lines for x, _ in line.points})
    low, high = (math.log2(places[0]), math.log2(places[-1])) if places else (0.0, 1.0)

    # Lines are shifted sideways so that intervals do not hide each other; with a single x value
    # they are spread over the width.
    single = len(places) == 1
    apart = (_WIDTH - 60) / len(panel.lines) if single else 2.5

    def across(x: int) -> float:
        share = 0.5 if single else (math.log2(x) - low) / (high - low)
        return left + 24 + (_WIDTH - 48) * share

    scale = panel.scale

    def down(y: float) -> float:
        inside = min(max(y, scale.low), scale.high)
        return _TOP + _HEIGHT * (scale.high - inside) / (scale.high - scale.low)

    parts = [_text(left + _WIDTH / 2, _TOP - 12, panel.title, anchor="middle")]
    for i in range(round((scale.high - scale.low) / scale.step) + 1):
        mark = scale.low + i * scale.step
        y = down(mark)
        parts.append(f'<path d="M{left} {y:.1f}h{_WIDTH}" stroke="#dddddd"/>')
        parts.append(_text(left - 8, y + 4, scale.write(mark) + scale.unit, anchor="end"))
    end = -math.inf
    for x in places:
        # A label that would touch the previous one is left out.
        if across(x) - end > 4 * len(str(x)) + 6:
            parts.append(_text(across(x), _TOP + _HEIGHT + 20, str(x), anchor="middle"))
            end = across(x) + 4 * len(str(x))
    parts.append(_text(left + _WIDTH / 2, _TOP + _HEIGHT + 42, panel.x_label, anchor="middle"))
    for number, line in enumerate(panel.lines):
        colour = colours[line.name]
        aside = apart * (number - (len(panel.lines) - 1) / 2)
        dots = [(across(x) + aside, share) for x, share in line.points]
        for at, share in dots:
            parts.append(
                f'<path d="M{at:.1f} {down(share.low):.1f}V{down(share.high):.1f}" '
                f'stroke="{colour}" stroke-opacity="0.45"/>'
            )
            parts.append(
                f'<circle cx="{at:.1f}" cy="{down(share.value):.1f}" r="3" stroke="{colour}" '
                f'fill="{"#ffffff" if dashes[line.name] else colour}">'
                f"<title>{escape(line.name)}: {scale.write(share.value)}{scale.unit} "
                f"({scale.write(share.low)} to {scale.write(share.high)})</title></circle>"
            )
        path = " ".join(f"{at:.1f},{down(share.value):.1f}" for at, share in dots)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"'
            f"{dashes[line.name]}/>"
        )
    return parts


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="#222222">{escape(words)}</text>'
    )
