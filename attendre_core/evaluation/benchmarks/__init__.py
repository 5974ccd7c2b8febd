"""Tasks that a real checkpoint is measured on, with a memory: what `attendre eval` runs."""

from attendre_core.evaluation.benchmarks.benchmark import Benchmark, Metric
from attendre_core.evaluation.benchmarks.contexts import ContextRule
from attendre_core.evaluation.benchmarks.embedding import Embedding
from attendre_core.evaluation.benchmarks.multi_key import MultiKey
from attendre_core.evaluation.benchmarks.needle import Needle
from attendre_core.evaluation.benchmarks.perplexity import Perplexity
from attendre_core.evaluation.benchmarks.synthetic import Synthetic
from attendre_core.evaluation.benchmarks.trivia import TriviaQA
from attendre_core.evaluation.benchmarks.triviaqa import read_triviaqa

__all__ = [
    "Benchmark",
    "ContextRule",
    "Embedding",
    "Metric",
    "MultiKey",
    "Needle",
    "Perplexity",
    "Synthetic",
    "TriviaQA",
    "read_triviaqa",
]
