"""The evaluation in five lines."""

from __future__ import annotations

from meetings import comparisons
from study_results import Study

from attendre_core.presets import PAPER_PRESETS

_ENCODER, _PREFIX = "encoder-decoder", "prefix-lm"


def five_lines(found: Study) -> str:
    """Return five statements, with means over models and tasks."""

    def right(*cell: object, **options: bool) -> str:
        return f"{found.mean(*cell, **options):.0f} %"  # type: ignore[arg-type]

    names = [name for name in PAPER_PRESETS if name[:3] in ("LRA", "LFA")]
    theirs = [found.mean(name, 32, 0, papers_c=True) or 0.0 for name in names]
    best = [found.mean(name, 32, 0) or 0.0 for name in names]
    admitted = [found.mean(name, 32, 0, papers_c=True, metric="admitted") or 0.0 for name in names]
    won, tied, lost = comparisons(found, "attendre", PAPER_PRESETS, "same M, same N > 0")
    not_waiting = comparisons(found, "attendre", PAPER_PRESETS, "neither waits")

    def span(values: list[float]) -> str:
        return f"{min(values):.0f} to {max(values):.0f} %"

    ahead, past = ("look-ahead",), ("past-only",)
    lines = [
        f"**What is kept matters more than how much.** Choosing by attention (LFA-0 at its best c), 32 "
        f"entries answer {right('LFA-0', 32, 0)}; FIFO answers {right('MT', 32, 0)}, and with 256 "
        f"entries {right('MT', 256, 0)}.",
        f"**Waiting helps where the answer is explained later, if the present is kept.** With 32 "
        f"entries `attendre` goes from {right('attendre', 32, 0, ahead)} to "
        f"{right('attendre', 32, 16, ahead)} there, and stays at {right('attendre', 32, 16, past)} where "
        f"nothing is to be awaited; LFA-0 gains there too ({right('LFA-0', 32, 0, ahead)} to "
        f"{right('LFA-0', 32, 16, ahead)}) and loses here ({right('LFA-0', 32, 0, past)} to "
        f"{right('LFA-0', 32, 16, past)}).",
        f"**Most of what the paper says does not hold here with its own c.** It lets {span(admitted)} of "
        f"the new entries in, and {span(theirs)} of the answers are right; at the best c "
        f"{span(best)}.",
        f"**Sinks beat FIFO in one model and not in the other**: with 32 entries "
        f"{right('AS', 32, 0, (_ENCODER,))} against {right('MT', 32, 0, (_ENCODER,))} in the "
        f"encoder-decoder, {right('AS', 32, 0, (_PREFIX,))} against {right('MT', 32, 0, (_PREFIX,))} in "
        "the prefix-LM.",
        f"**The recommended `attendre` is made for queries that wait**: against the systems of the paper "
        f"at their best c it wins {won} comparisons, ties {tied} and loses {lost}. Where nothing waits it "
        f"wins {not_waiting[0]}, ties {not_waiting[1]} and loses {not_waiting[2]}. It holds a chunk "
        "more than they do.",
    ]
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
