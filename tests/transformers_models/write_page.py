"""Write docs/transformers_models.md: run it as a script, with the newest transformers allowed.

With the oldest one, it writes ``oldest.json`` instead, which the page quotes. With names of model
types as arguments, it only prints what becomes of them.
"""

from __future__ import annotations

import json
import sys
import tomllib
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from cache_checks import LARGE, MEMORIES, PROMPT, SMALL, TOLERANCE, WRITTEN, Outcome, outcome_of
from packaging.requirements import Requirement
from tiny_models import WINDOW, class_of, model_types

#: What may become of a type.
GOOD = ("exact", "refused", "cannot run")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "transformers_models.md"
OLDEST = Path(__file__).parent / "oldest.json"

TEXT = """\
# Causal LMs of transformers

What `attendre_torch.AttendreCache` does with every model type that `AutoModelForCausalLM` of
transformers {version} knows. This page is written by `tests/transformers_models/write_page.py`.

| transformers | types | that run here | exact and bounded |
|---|---|---|---|
{newest}
{oldest}

The second one is the oldest version allowed. With {version}, {any_policy} types take any policy and
{some} some of them; {refused} are refused with the reason. Each was run as a tiny random model
in float32, of one layer of every kind that the type has, with windows of {window} tokens:

- *Exact*: with a memory of {large} slots, which holds everything, the logits of a prompt read at
  once and in chunks, and of tokens read one by one after it, are those that transformers computes
  with its own cache. They differ by at most {tolerance:.0e} of the largest logit; the table has the
  largest difference. `generate` writes the same {written} tokens greedily, also in a batch whose
  second row is padded on the left.
- *Bounded*: with {small} slots, `generate` runs, and the cache holds the same number of bytes after
  {short} and after {long} tokens. The last column says how much the logits change when {small}
  slots must do for {read} tokens, as a part of the largest logit. Zero: all attention layers of the
  type have a window or a recurrent state, which is bounded anyway and left as it is.
- *Policies*: any, or only those that look at no attention (`MT`, `AS`), where the model computes
  attention in its own layers instead of the function that transformers lets others set.

## Exact and bounded

| type | class | policies | largest difference | change with {small} slots |
|---|---|---|---|---|
{exact_rows}

## Refused

| type | class | why |
|---|---|---|
{refused_rows}

## Not run

transformers itself cannot run these here.

| type | class | why |
|---|---|---|
{missing_rows}
"""


class Count(NamedTuple):
    """How many types there are in a version of transformers, run in it, and are exact."""

    version: str
    types: int
    run: int
    exact: int

    @classmethod
    def of_oldest(cls) -> Count:
        """Return what was found with the oldest version allowed."""
        return cls(**json.loads(OLDEST.read_text()))

    def __str__(self) -> str:
        share = 100 * self.exact / self.run
        return f"| {self.version} | {self.types} | {self.run} | **{self.exact} ({share:.1f} %)** |"


def counted(outcomes: dict[str, Outcome]) -> Count:
    """Count what became of the types of the installed version."""
    statuses = [outcome.status for outcome in outcomes.values()]
    run = len(statuses) - statuses.count("cannot run")
    return Count(transformers.__version__, len(statuses), run, statuses.count("exact"))


def is_oldest(version: str) -> bool:
    """Whether a version is the oldest that pyproject.toml allows."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (wanted,) = (r for r in map(Requirement, extras["parity"]) if r.name == "transformers")
    (bound,) = (part.version for part in wanted.specifier if part.operator == ">=")
    return version.startswith(f"{bound}.")


def page_of(outcomes: dict[str, Outcome]) -> str:
    """Return the page that reports these outcomes."""
    found = {
        status: {name: o for name, o in outcomes.items() if o.status == status}
        for status in ("exact", "refused", "cannot run")
    }
    exact = [row_of(name, o) for name, o in found["exact"].items()]
    return TEXT.format(
        version=transformers.__version__,
        newest=counted(outcomes),
        oldest=Count.of_oldest(),
        any_policy=sum(o.memory == MEMORIES[0] for o in found["exact"].values()),
        some=sum(o.memory == MEMORIES[1] for o in found["exact"].values()),
        refused=len(found["refused"]),
        window=WINDOW,
        large=LARGE,
        small=SMALL,
        tolerance=TOLERANCE,
        written=WRITTEN,
        short=2 * PROMPT,
        long=3 * PROMPT,
        read=PROMPT + 4,
        exact_rows="\n".join(exact),
        refused_rows="\n".join(row_of(name, o) for name, o in found["refused"].items()),
        missing_rows="\n".join(row_of(name, o) for name, o in found["cannot run"].items()),
    )


def row_of(model_type: str, outcome: Outcome) -> str:
    """Return the row of a type."""
    cells = [model_type, f"`{class_of(model_type).__name__}`"]
    if outcome.status == "exact":
        policies = "any" if outcome.memory == MEMORIES[0] else "`MT`, `AS`"
        cells += [policies, f"{outcome.worst:.0e}", f"{outcome.change:.2g}"]
    else:
        cells += [outcome.reason.rpartition("cannot be bounded: ")[2]]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


def main() -> None:
    """Run all types, or those that are named."""
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    outcomes = {}
    for name in sys.argv[1:] or model_types():
        outcomes[name] = outcome_of(name)
        print(f"{name:24}", *outcomes[name], flush=True)
    broken = [name for name, o in outcomes.items() if o.status not in GOOD]
    if broken:
        raise SystemExit(f"neither exact nor refused: {', '.join(broken)}")
    if len(sys.argv) > 1:
        return
    if is_oldest(transformers.__version__):
        OLDEST.write_text(json.dumps(counted(outcomes)._asdict()) + "\n")
    else:
        PAGE.write_text(page_of(outcomes))


if __name__ == "__main__":
    main()
