"""Synthetic reading tasks on which tiny models can be trained and memories compared."""

from attendre_core.evaluation.tasks.lookahead import LookAhead
from attendre_core.evaluation.tasks.past_only import PastOnly
from attendre_core.evaluation.tasks.task import Document, Task
from attendre_core.evaluation.tasks.vocabulary import VOCABULARY, word

__all__ = ["TASKS", "VOCABULARY", "Document", "LookAhead", "PastOnly", "Task", "word"]

#: Tasks by the names that the command line uses.
TASKS: dict[str, type[Task]] = {task.name: task for task in (LookAhead, PastOnly)}
