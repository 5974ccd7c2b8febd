"""Prompts with a question and a context: the paper's template, and those of users."""

from __future__ import annotations

import re
from typing import Literal

from attendre_core.errors import ConfigError

__all__ = ["TEMPLATE", "check_template", "filled", "template_of", "without_context"]

#: The paper's template: the question comes before the context and is not repeated after it.
TEMPLATE = "Question: {question}\n\nContext: {context}\n\nAnswer: "

_LAST = "Context: {context}\n\nQuestion: {question}\n\nAnswer: "


def template_of(question: Literal["first", "last"]) -> str:
    """Return the template in which the question comes before or after the context."""
    if question not in ("first", "last"):
        raise ConfigError(f"template: question is {question!r}, expected 'first' or 'last'.")
    return TEMPLATE if question == "first" else _LAST


def check_template(where: str, template: str) -> None:
    """Refuse a template that does not have ``{question}`` and ``{context}`` once each."""
    for field in ("{question}", "{context}"):
        count = template.count(field)
        if count != 1:
            raise ConfigError(
                f"{where}: the template {template!r} has {field} {count} times, expected once. "
                "Write {question} and {context} where they belong; other braces stay as they are."
            )


def filled(template: str, question: str, context: str) -> str:
    """Put a question and a context into a template; braces in them stay as they are.

    Examples
    --------
    >>> filled("{context} {question}", "Why {context}?", "A text.")
    'A text. Why {context}?'
    """
    texts = {"{question}": question, "{context}": context}
    return re.sub(r"\{(?:question|context)\}", lambda found: texts[found[0]], template)


def without_context(template: str) -> str:
    r"""Return the template of a closed book: without the paragraph, or the line, of the context.

    Examples
    --------
    >>> without_context(TEMPLATE)
    'Question: {question}\n\nAnswer: '
    >>> without_context("Text: {context}\nQ: {question}\nA:")
    'Q: {question}\nA:'
    """
    for between in ("\n\n", "\n"):
        kept = [part for part in template.split(between) if "{context}" not in part]
        if any("{question}" in part for part in kept):
            return between.join(kept)
    return template.replace("{context}", "")
