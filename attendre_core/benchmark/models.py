"""Rows 8 and 9: a real model, end to end, beside the library it comes from."""

from __future__ import annotations

from collections.abc import Iterator

from attendre_core.benchmark.figures import Figure, Target
from attendre_core.benchmark.steps import skipped

__all__ = ["model_rows"]

_ROWS = (
    (8, "SmolLM2-135M, M=1024, chunk 128: prefill ÷ transformers with full attention",
     Target("at most", 0.6)),
    (8, "the same ÷ the same model over a cache cropped to 1024", Target("at most", 1.1)),
    (9, "SmolLM2-135M: decoded tokens a second ÷ transformers with its full cache",
     Target("at least", 1.8)),
)  # fmt: skip


def model_rows(quick: bool) -> Iterator[Figure]:
    """Measure prefill and decoding of SmolLM2-135M against transformers."""
    if quick:
        for row, name, target in _ROWS:
            yield skipped(row, name, target, "takes minutes: run attendre bench without --quick")
        return
    try:
        from attendre_torch.model_benchmark import model_ratios
    except ImportError as error:
        for row, name, target in _ROWS:
            yield skipped(row, name, target, f"needs pip install {error.name}")
        return
    for (row, name, target), found in zip(_ROWS, model_ratios(), strict=True):
        yield Figure(row, name, target, found)
