"""The figures that come first: how long something takes, as a multiple of something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attendre_core.speed.figures import Figure

__all__ = ["Line", "headlines", "lines_of", "sentence"]

_LONG, _OTHERS, _COST = "Long inputs", "Against other software", "What a memory costs"
_SMOLLM2 = "torch: SmolLM2-135M, M=1024, S=128, attendre-causal: "
_JAX_SMOLLM2 = _SMOLLM2.replace("torch", "jax", 1)

#: (group, what is measured, what it is compared with) by the name of the figure.
HEADLINES = {
    "torch: time per chunk at token 1,000,000 ÷ at token 10,000":
        (_LONG, "A chunk at token 1,000,000", "one at token 10,000"),
    "torch: reading both ways, M=512, N=256: time per token at 65,536 ÷ at 8,192":
        (_LONG, "Reading both ways, a token at 65,536", "one at 8,192"),
    f"{_SMOLLM2}prefill of 16k ÷ transformers with full attention":
        (_OTHERS, "Reading 16k tokens", "transformers with full attention"),
    f"{_SMOLLM2}tokens per second after 16k ÷ transformers":
        (_OTHERS, "Writing after 16k tokens", "transformers with full attention"),
    f"{_SMOLLM2}prefill of 4k ÷ llama.cpp, same file":
        (_OTHERS, "Reading 4k tokens", "llama.cpp with full attention"),
    f"{_SMOLLM2}tokens per second ÷ llama.cpp":
        (_OTHERS, "Writing after 4k tokens", "llama.cpp with full attention"),
    "torch: memorizing-transformers-pytorch's memory layer ÷ our layer, M=2048, K=32":
        (_OTHERS, "A layer with its top 32", "memorizing-transformers-pytorch"),
    "torch: eager layer step, M=2048, K=M ÷ bare SDPA":
        (_COST, "A step, PyTorch, eager", "attention alone"),
    "torch: compiled layer step, M=2048, K=M ÷ bare SDPA":
        (_COST, "A step, PyTorch, compiled", "attention alone"),
    "jax: layer step, M=2048, K=M ÷ jitted dense attention":
        (_COST, "A step, JAX", "attention alone"),
    "torch: eager step in machine code, M=2048, K=128, exact ÷ compiled dense attention":
        (_COST, "A step with its exact top 128", "attention to all 2,048"),
    f"{_SMOLLM2}prefill ÷ FIFO":
        (_COST, "Reading with attendre-causal, PyTorch", "FIFO"),
    f"{_JAX_SMOLLM2}prefill ÷ FIFO":
        (_COST, "Reading with attendre-causal, JAX", "FIFO"),
    f"{_SMOLLM2}time per token ÷ FIFO":
        (_COST, "Writing with attendre-causal, PyTorch", "FIFO"),
}  # fmt: skip


class Line(NamedTuple):
    """How many times as long something takes as something else.

    Attributes
    ----------
    group, ours, theirs
        A heading, what is measured, and what it is compared with.
    times
        The median: below 1, ours is faster.
    bound
        The target: at most this.
    figure
        Where it comes from.
    """

    group: str
    ours: str
    theirs: str
    times: float
    bound: float
    figure: Figure


def headlines(figures: Sequence[Figure]) -> list[Line]:
    """Return the headlines that were measured, in their order.

    Figures that grow when ours is faster, such as tokens per second, are turned over.

    Examples
    --------
    >>> from attendre_core.speed import Figure, Ratio, Target
    >>> name = f"{_SMOLLM2}tokens per second after 16k ÷ transformers"
    >>> (line,) = headlines([Figure(9, name, Target("at least", 2.0), Ratio(4.0, 3.9, 4.1, 5))])
    >>> line.ours, line.times, line.bound
    ('Writing after 16k tokens', 0.25, 0.5)
    """
    measured = {figure.name: figure for figure in figures if figure.ratio is not None}
    return [_line(*words, measured[name]) for name, words in HEADLINES.items() if name in measured]


def lines_of(figures: Sequence[Figure]) -> list[Line]:
    """Return the headlines, or every figure that was measured if there is none."""
    rows = [figure for figure in figures if figure.ratio is not None]
    return headlines(figures) or [_line(f"Row {f.row}", f.name, "", f) for f in rows]


def _line(group: str, ours: str, theirs: str, figure: Figure) -> Line:
    if figure.ratio is None:
        raise ValueError(f"{figure.name} was not measured")
    times, bound = figure.ratio.median, figure.target.bound
    if figure.target.sense == "at least":
        times, bound = 1 / max(times, 1e-9), 1 / bound
    return Line(group, ours, theirs, times, bound, figure)


def sentence(line: Line) -> str:
    """Say a headline in Markdown.

    Examples
    --------
    >>> from attendre_core.speed import Figure, Ratio, Target
    >>> name = "jax: layer step, M=2048, K=M ÷ jitted dense attention"
    >>> slow = Figure(3, name, Target("at most", 1.2), Ratio(1.5, 1.4, 1.6, 5))
    >>> sentence(headlines([slow])[0])
    'A step, JAX: **1.50** times as long as attention alone (target 1.2, missed)'
    """
    missed = "" if line.figure.verdict == "pass" else ", missed"
    note = f"; {line.figure.note}" if line.figure.note else ""
    theirs = f"times as long as {line.theirs}" if line.theirs else "times as long"
    return f"{line.ours}: **{line.times:.2f}** {theirs} (target {line.bound:.3g}{missed}{note})"
