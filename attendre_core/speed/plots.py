"""An SVG picture of the headlines: how long something takes, as a multiple of something else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from attendre_core.speed.figures import Figure
from attendre_core.speed.headlines import Line, lines_of

__all__ = ["chart"]

_WIDTH, _LEFT, _WIDE, _ROW = 600, 8, 500, 40
#: Variables of the documentation's pages give the colours there, light or dark; alone, the
#: picture follows the settings of the system.
_STYLE = """\
<style>
.bench { --ink: #1c1b19; --soft: #6b6b6b; --line: #d5d5d5; --empty: #f0f0f0; --good: #0f6fb3;
  --bad: #b4501e; --mark: #a87400; }
@media (prefers-color-scheme: dark) { .bench { --ink: #e6e6e6; --soft: #a3a3a3; --line: #444;
  --empty: #26282b; --good: #5fb0ec; --bad: #f08c5a; --mark: #f2c14e; } }
.picture .bench { --ink: var(--color-foreground-primary);
  --soft: var(--color-foreground-secondary); --line: var(--color-background-border);
  --empty: var(--color-background-secondary); --good: var(--picture-good);
  --bad: var(--picture-bad); --mark: var(--picture-mark); }
.bench text { fill: var(--ink); font: 14px system-ui, sans-serif; }
.bench .soft { fill: var(--soft); } .bench .title { font-weight: 600; }
.bench .empty { fill: var(--empty); } .bench .pass { fill: var(--good); }
.bench .short { fill: var(--bad); }
.bench .line { stroke: var(--ink); stroke-dasharray: 2 2; }
.bench .target { stroke: var(--mark); stroke-width: 3; }
</style>"""


def chart(figures: Sequence[Figure]) -> str:
    """Draw the headlines; where there are none, every figure that was measured.

    A bar is as long as what is measured takes, and the dotted line is what it is compared with.
    The mark is the target.

    Examples
    --------
    >>> from attendre_core.speed import Figure, Ratio, Target
    >>> one = Figure(1, "a step", Target("at most", 1.2), Ratio(1.1, 1.0, 1.2, 5))
    >>> chart([one]).count('class="pass"')
    1
    """
    lines = lines_of(figures)
    far = max([2.0, *(min(line.times, 8.0) for line in lines)])
    parts = [_text(_LEFT, 20, "Time, as a multiple of what is named in grey", "title")]
    y, group = 30.0, ""
    for line in lines:
        if line.group != group:
            y, group = y + 34, line.group
            parts.append(_text(_LEFT, y - 8, group, "title"))
        parts += _bar(line, y, far)
        y += _ROW
    words = _text(_LEFT, y + 18, "Dotted: 1, as long. Mark: the target. Shorter is better.", "soft")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 28:g}" class="bench" '
        f'style="max-width: {_WIDTH}px" role="img" aria-label="Times of the headlines as bars">'
    )
    return "\n".join([head, _STYLE, *parts, words, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{kind}>{escape(words)}</text>'


def _bar(line: Line, y: float, far: float) -> list[str]:
    long, target = (_WIDE * min(x, far) / far for x in (line.times, line.bound))
    grey = f' <tspan class="soft">against {escape(line.theirs)}</tspan>' if line.theirs else ""
    one = _LEFT + _WIDE / far
    return [
        f'<text x="{_LEFT}" y="{y + 12:g}">{escape(line.ours)}{grey}</text>',
        f'<rect x="{_LEFT}" y="{y + 18:g}" width="{_WIDE}" height="12" class="empty"/>',
        f'<rect x="{_LEFT}" y="{y + 18:g}" width="{long:.1f}" height="12" '
        f'class="{line.figure.verdict}"/>',
        f'<line x1="{one:g}" y1="{y + 15:g}" x2="{one:g}" y2="{y + 33:g}" class="line"/>',
        f'<line x1="{_LEFT + target:.1f}" y1="{y + 15:g}" x2="{_LEFT + target:.1f}" '
        f'y2="{y + 33:g}" class="target"/>',
        _text(_LEFT + _WIDE + 10, y + 29, f"{line.times:.2f}"),
    ]
