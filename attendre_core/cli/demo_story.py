"""The English part of ``attendre demo``: what four memories keep of a text, and the answers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attendre_core.cli.terminal import Terminal

if TYPE_CHECKING:
    from attendre_core.evaluation.tracing import LayerTrace, TextTrace
    from attendre_core.zoo.model import Model

__all__ = ["RULES", "Story", "kept_runs", "read_story", "words_of"]

#: The systems that read the text, unless others are asked for, and what goes first in each.
RULES = {
    "MT": "the oldest word goes first",
    "AS": "the oldest goes first, but never the first four",
    "LFA-1e-3+c=0": "what got the least attention goes first; old attention fades",
    "attendre": "what got the least attention goes first; what is being read is extra",
}
#: Length of a text, and size of a memory, in chunks; queries wait for one chunk.
_CHUNKS, _ROOM = 16, 2


class Story(NamedTuple):
    """A text that was read with several memories, and what it asks for.

    Attributes
    ----------
    trace
        What each memory kept and answered.
    question, fact
        The sentence that asks, and the one that has the answer.
    place
        Position of the answer.
    right
        How many of ``texts`` such texts are answered right with each memory, this one included.
    texts
        How many texts were read.
    """

    trace: TextTrace
    question: str
    fact: str
    place: int
    right: dict[str, int]
    texts: int

    def lines(self, terminal: Terminal, wide: int) -> list[str]:
        """Return what to print: the question, then verdict and words of each memory."""
        from attendre_core.evaluation.tasks.story_words import PEOPLE, PLACES

        first = self.trace.policies[0].memory
        title = f"An English text of {len(self.trace.words)} words, memories of {first.kv_size}"
        lines = [
            terminal.paint(title, "bold"),
            *_filled(
                f"It begins with a question: {self.question} In the middle it says: {self.fact} "
                f"The model is tiny and was trained for such questions; it knows {len(PEOPLE)} "
                f"names and {len(PLACES)} places, and all other words are noise to it. It reads "
                f"{first.chunk} words at a time. Below are the words that each memory holds at the "
                "end, and the answer.",
                wide,
            ),
            "",
        ]
        gap = terminal.choose(" \N{HORIZONTAL ELLIPSIS} ", " ... ")
        for policy in self.trace.policies:
            right = bool(policy.answers(self.trace.answer))
            sign = terminal.choose("\N{CHECK MARK} " if right else "\N{BALLOT X} ", "")
            verdict = f"{sign}{'right' if right else 'wrong'}: {policy.next_words[0][0]}"
            rule = RULES.get(policy.name)
            layer = policy.layers[-1]
            lines += [
                f"{terminal.paint(policy.name, 'bold')}{f': {rule}' if rule else ''}",
                f"  {terminal.paint(verdict, 'green' if right else 'red')}; right in "
                f"{self.right[policy.name]} of {self.texts} such texts; "
                f"{layer.survivors.size} words left:",
                *_filled(gap.join(words_of(kept_runs(self.trace, layer))), wide, "  "),
                "",
            ]
        return lines

    def plain(self) -> dict[str, Any]:
        """Return the same as values for JSON."""
        return {
            "question": self.question,
            "fact": self.fact,
            "answer": self.trace.answer,
            "texts": self.texts,
            "systems": [
                {
                    "policy": policy.name,
                    "answer": policy.next_words[0][0],
                    "right": self.right[policy.name],
                    "kept": kept_runs(self.trace, policy.layers[-1]),
                }
                for policy in self.trace.policies
            ],
        }


def read_story(
    model: Model, names: Sequence[str], *, chunk: int, top_k: int, seed: int, count: int
) -> Story:
    """Let a tiny model read stories with each of the memories, and follow the first of them.

    Examples
    --------
    >>> from attendre_core.evaluation import load_tiny
    >>> model = load_tiny("prefix-lm")
    >>> story = read_story(model, ["MT", "attendre"], chunk=16, top_k=16, seed=0, count=4)
    >>> story.question, story.fact
    ("Tell me: where is Ben's house?", 'By the library stands the narrow house of Ben.')
    >>> story.right, [p.next_words[0][0] for p in story.trace.policies]
    ({'MT': 1, 'attendre': 4}, ['harbour', 'library'])
    """
    from attendre_core.evaluation import measure, system
    from attendre_core.evaluation.tasks import Story as StoryTask
    from attendre_core.evaluation.tracing import trace_text

    task = StoryTask("single")
    texts = list(task.documents(seed, count, chunks=(_CHUNKS, _CHUNKS), chunk=chunk))
    systems = {name: system(name, _ROOM * chunk, chunk, chunk=chunk, top_k=top_k) for name in names}
    document, *_ = texts
    trace = trace_text(
        model, document.tokens.tolist(), {name: each.memory for name, each in systems.items()},
        layers=[model.reading_part.layers - 1], answer=task.word(document.answer),
        naming=lambda tokens: (
            list(document.words)
            if len(tokens) == len(document.words)
            else [task.word(token) for token in tokens]
        ),
    )  # fmt: skip
    right = {name: int(measure(model, texts, each).right.sum()) for name, each in systems.items()}
    place = int(document.values[document.owners == document.question][0])
    question = "".join(document.words[: document.context + 1]).strip()
    return Story(trace, question, _sentence(document.words, place), place, right, count)


def kept_runs(trace: TextTrace, layer: LayerTrace) -> list[str]:
    """Return the words left in a memory at the end, in runs of neighbours."""
    kept = layer.survivors
    runs = np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)
    return ["".join(trace.words[i] for i in run).strip() for run in runs]


def _sentence(words: Sequence[str], place: int) -> str:
    """Return the sentence around a position."""
    ends = [i for i, word in enumerate(words) if word.strip() in (".", "?", "Answer:")]
    start = max((i + 1 for i in ends if i < place), default=0)
    stop = min(i + 1 for i in ends if i >= place)
    return "".join(words[start:stop]).strip()


def words_of(runs: Sequence[str]) -> list[str]:
    """Return runs of words without the marks they begin with; marks alone are left out.

    Examples
    --------
    >>> words_of([", people say,", ".", "it rained."])
    ['people say,', 'it rained.']
    """
    stripped = (run.lstrip(",.:;? ") for run in runs)
    return [run for run in stripped if run]


def _filled(text: str, wide: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, wide, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
