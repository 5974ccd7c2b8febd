"""Write what `attendre eval` measured into the guide: run it as a script, without arguments.

Each table is between two comments, ``<!-- begin NAME -->`` and ``<!-- end NAME -->``, and comes
from the results file NAME.jsonl beside this file: scores of items, none of their texts. The table
NAME.helped is that of the items for which reading helps. A test compares both.
"""

from __future__ import annotations

import re
from pathlib import Path

from attendre_core.evaluation.controls import label_of
from attendre_core.evaluation.sweep import Measured, cell_table, read_results, summarise
from attendre_core.evaluation.sweep.summary import where_reading_helps
from attendre_core.evaluation.tasks import Embedding, Metric, Perplexity, TriviaQA

HERE = Path(__file__).parent
PAGE = HERE.parent / "guides" / "evaluating.md"
METRICS: dict[str, tuple[Metric, ...]] = {
    "triviaqa": TriviaQA.metrics,
    "perplexity": Perplexity.metrics,
    "embedding": Embedding.metrics,
}
#: Which system the others are compared with, where it is not FIFO.
BASELINES = {"triviaqa-smollm2-new": "LRA-sum+softmax+c=0"}
BLOCK = re.compile(r"(<!-- begin ([\w.-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def table(name: str) -> str:
    """Return the table of a results file."""
    file, _, some = name.partition(".")
    metrics = METRICS[file.partition("-")[0]]
    _, found = read_results(HERE / f"{file}.jsonl")
    measured = [Measured(m.cell._replace(policy=label_of(m.cell.policy)), m.scores) for m in found]
    if some:
        measured = where_reading_helps(measured, metrics[0])
    return cell_table(summarise(measured, metrics, BASELINES.get(file, "MT"))).markdown()


def written(text: str) -> str:
    """Return the page with all its tables as the results say."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{table(match[2])}\n\n{match[3]}", text)


def main() -> None:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
