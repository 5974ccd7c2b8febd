"""The evaluation in five lines."""

from __future__ import annotations

from collections.abc import Sequence

from meetings import comparisons
from study_results import Study

from attendre_core.presets import PAPER_PRESETS

_SCORED = [name for name in PAPER_PRESETS if name[:3] in ("LRA", "LFA")]
_WORDS = (
    """**What is kept matters more than how much.** Choosing by attention (LFA-0 at its best c), 32
    entries answer {chosen}; FIFO answers {fifo}, and with 256 entries {large_fifo}.""",
    """**Waiting helps where the answer is explained later, if the present is kept.** With 32
    entries `attendre` goes from {at_once} to {waiting} there, and stays at {past_waiting}
    where nothing is to be awaited; LFA-0 gains there too ({lfa_at_once} to {lfa_waiting})
    and loses here ({lfa_past} to {lfa_past_waiting}).""",
    """**Most of what the paper says does not hold here with its own c.** It lets {admitted} of the
    new entries in, and {theirs} of the answers are right; at the best c {best}.""",
    """**Sinks beat FIFO in one model and not in the other**: with 32 entries {sinks_encoder}
    against {fifo_encoder} in the encoder-decoder, {sinks_prefix} against {fifo_prefix} in
    the prefix-LM.""",
    """**The recommended `attendre` is made for queries that wait**: against the systems of the
    paper at their best c it wins {wins[0]} comparisons, ties {wins[1]} and loses {wins[2]}.
    Where nothing waits it wins {at_once_wins[0]}, ties {at_once_wins[1]} and loses
    {at_once_wins[2]}. It holds a chunk more than they do.""",
)


def five_lines(found: Study) -> str:
    """Return five statements, with means over models and tasks."""

    def right(name: str, kv: int, q: int, *places: str) -> str:
        return f"{found.mean(name, kv, q, places) or 0.0:.0f} %"

    def span(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{min(known):.0f} to {max(known):.0f} %"

    def at_papers_c(metric: str) -> str:
        return span([found.mean(name, 32, 0, papers_c=True, metric=metric) for name in _SCORED])

    figures = {
        "chosen": right("LFA-0", 32, 0),
        "fifo": right("MT", 32, 0),
        "large_fifo": right("MT", 256, 0),
        "at_once": right("attendre", 32, 0, "look-ahead"),
        "waiting": right("attendre", 32, 16, "look-ahead"),
        "past_waiting": right("attendre", 32, 16, "past-only"),
        "lfa_at_once": right("LFA-0", 32, 0, "look-ahead"),
        "lfa_waiting": right("LFA-0", 32, 16, "look-ahead"),
        "lfa_past": right("LFA-0", 32, 0, "past-only"),
        "lfa_past_waiting": right("LFA-0", 32, 16, "past-only"),
        "admitted": at_papers_c("admitted"),
        "theirs": at_papers_c("right"),
        "best": span([found.mean(name, 32, 0) for name in _SCORED]),
        "sinks_encoder": right("AS", 32, 0, "encoder-decoder"),
        "fifo_encoder": right("MT", 32, 0, "encoder-decoder"),
        "sinks_prefix": right("AS", 32, 0, "prefix-lm"),
        "fifo_prefix": right("MT", 32, 0, "prefix-lm"),
        "wins": comparisons(found, "attendre", PAPER_PRESETS, "same M, same N > 0"),
        "at_once_wins": comparisons(found, "attendre", PAPER_PRESETS, "neither waits"),
    }
    lines = (" ".join(words.format(**figures).split()) for words in _WORDS)
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
