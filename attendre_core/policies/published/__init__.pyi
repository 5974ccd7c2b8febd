from attendre_core.policies.published.expected_attention import (
    ExpectedAttention as ExpectedAttention,
)
from attendre_core.policies.published.h2o import H2O as H2O
from attendre_core.policies.published.keydiff import KeyDiff as KeyDiff
from attendre_core.policies.published.knorm import Knorm as Knorm
from attendre_core.policies.published.lagkv import LagKV as LagKV
from attendre_core.policies.published.leverage import Leverage as Leverage
from attendre_core.policies.published.nexus import Nexus as Nexus
from attendre_core.policies.published.tova import TOVA as TOVA
from attendre_core.policies.published.trams import TRAMS as TRAMS
