"""The tasks that models with a memory are measured on: documents, questions, streams, texts."""

from attendre_core.evaluation.tasks.contexts import ContextRule
from attendre_core.evaluation.tasks.continuation import Continuation
from attendre_core.evaluation.tasks.counting_words import CommonWords, FrequentWords
from attendre_core.evaluation.tasks.document import Document
from attendre_core.evaluation.tasks.embedding import Embedding
from attendre_core.evaluation.tasks.finding import PassKeys, Retrieval
from attendre_core.evaluation.tasks.haystack import (
    HiddenKeys,
    HiddenQueries,
    HiddenValues,
    Variables,
)
from attendre_core.evaluation.tasks.key_values import KeyValues
from attendre_core.evaluation.tasks.look_ahead import LookAhead
from attendre_core.evaluation.tasks.multi_key import MultiKey
from attendre_core.evaluation.tasks.multi_turn import MultiTurn
from attendre_core.evaluation.tasks.needle import Needle
from attendre_core.evaluation.tasks.own_questions import OwnQuestions, read_questions
from attendre_core.evaluation.tasks.past_only import PastOnly
from attendre_core.evaluation.tasks.perplexity import Perplexity
from attendre_core.evaluation.tasks.story import Story
from attendre_core.evaluation.tasks.synthetic import SyntheticTask
from attendre_core.evaluation.tasks.synthetic_words import VOCABULARY, word
from attendre_core.evaluation.tasks.task import Metric, Task
from attendre_core.evaluation.tasks.triviaqa import TriviaQA
from attendre_core.evaluation.tasks.triviaqa_files import read_triviaqa

__all__ = [
    "SYNTHETIC",
    "VOCABULARY",
    "CommonWords",
    "ContextRule",
    "Continuation",
    "Document",
    "Embedding",
    "FrequentWords",
    "HiddenKeys",
    "HiddenQueries",
    "HiddenValues",
    "KeyValues",
    "LookAhead",
    "Metric",
    "MultiKey",
    "MultiTurn",
    "Needle",
    "OwnQuestions",
    "PassKeys",
    "PastOnly",
    "Perplexity",
    "Retrieval",
    "Story",
    "SyntheticTask",
    "Task",
    "TriviaQA",
    "Variables",
    "read_questions",
    "read_triviaqa",
    "word",
]

#: The synthetic tasks by the names used on the command line.
SYNTHETIC: dict[str, type[SyntheticTask]] = {task.name: task for task in (LookAhead, PastOnly)}
