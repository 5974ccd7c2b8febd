"""An SVG picture of the table: how far each figure is from its target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from attendre_core.speed.figures import Figure

__all__ = ["chart"]

_WIDTH, _LEFT, _ROW, _TOP = 960, 560, 22, 34
_COLOURS = {"pass": "#2a7f62", "short": "#c4572b"}
#: The axis ends at this factor from the target on either side; left is better.
_FAR = 8.0


def chart(figures: Sequence[Figure]) -> str:
    """Draw every measured figure against its target.

    The axis is the factor between figure and target, in powers of two; left of the target is
    better. The thin line spans the quartiles.

    Examples
    --------
    >>> from attendre_core.speed import Figure, Ratio, Target
    >>> one = Figure(1, "a step", Target("at most", 1.2), Ratio(1.1, 1.0, 1.2, 5))
    >>> chart([one]).startswith("<svg")
    True
    """
    drawn = [f for f in figures if f.ratio is not None]
    height = _TOP + _ROW * len(drawn) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12" role="img" '
        'aria-label="Figures against their targets">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for factor in (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8):
        x = _place(factor)
        label = "target" if factor == 1 else f"{factor:g}" if factor > 1 else f"1/{1 / factor:g}"
        shade = "#333333" if factor == 1 else "#dddddd"
        lines += [
            f'<line x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{height - 8}" stroke="{shade}"/>',
            f'<text x="{x:.1f}" y="{_TOP - 14}" text-anchor="middle" fill="#555555">{label}</text>',
        ]
    for number, figure in enumerate(drawn):
        lines += _bar(figure, _TOP + _ROW * number + _ROW / 2)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bar(figure: Figure, y: float) -> list[str]:
    ratio = figure.ratio
    if ratio is None:
        return []
    colour = _COLOURS[figure.verdict]
    low, middle, high = (
        _place(_distance(figure, x)) for x in (ratio.low, ratio.median, ratio.high)
    )
    name = escape(f"{figure.row}  {figure.name}")
    if len(name) > 88:
        name = name[:87] + "…"
    return [
        f'<text x="{_LEFT - 110}" y="{y + 4:.1f}" text-anchor="end" fill="#222222" '
        f'font-size="10">{name}</text>',
        f'<line x1="{_place(1):.1f}" y1="{y:.1f}" x2="{middle:.1f}" y2="{y:.1f}" '
        f'stroke="{colour}" stroke-width="9"/>',
        f'<line x1="{low:.1f}" y1="{y:.1f}" x2="{high:.1f}" y2="{y:.1f}" stroke="#222222"/>',
        f'<circle cx="{middle:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>',
    ]


def _distance(figure: Figure, value: float) -> float:
    """Return the factor from the target; above 1, the target is missed."""
    ratio = max(value, 1e-9) / figure.target.bound
    return ratio if figure.target.sense == "at most" else 1 / ratio


def _place(factor: float) -> float:
    """Return the x coordinate of a factor; factors beyond the axis are drawn at its end."""
    share = math.log(min(max(factor, 1 / _FAR), _FAR)) / math.log(_FAR)
    middle = (_LEFT - 90 + _WIDTH - 20) / 2
    return middle + share * (_WIDTH - 20 - middle)
