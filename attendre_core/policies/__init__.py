"""Eviction policies: one rule per file (paper, section 3.1)."""

from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.fifo import FIFO
from attendre_core.policies.h2o import H2O
from attendre_core.policies.initial_score import (
    AnyInitial,
    ConstantScore,
    InitialScore,
    QuantileScore,
    QuotaScore,
)
from attendre_core.policies.lfa import LFA
from attendre_core.policies.lfu import LFU
from attendre_core.policies.lra import LRA
from attendre_core.policies.lru import LRU
from attendre_core.policies.random import Random
from attendre_core.policies.scores import Clip, Shift
from attendre_core.policies.sink import AttentionSink
from attendre_core.policies.ties import RandomTies
from attendre_core.policies.tova import TOVA
from attendre_core.policies.view import Attention

__all__ = [
    "FIFO",
    "H2O",
    "LFA",
    "LFU",
    "LRA",
    "LRU",
    "TOVA",
    "AnyInitial",
    "Attention",
    "AttentionSink",
    "Clip",
    "ConstantScore",
    "InitialScore",
    "New",
    "Policy",
    "QuantileScore",
    "QuotaScore",
    "Random",
    "RandomTies",
    "Shift",
    "Stored",
]
