from attendre_core.policies.published.context_pruning import (
    DynamicContextPruning as DynamicContextPruning,
)
from attendre_core.policies.published.defensive import Defensive as Defensive
from attendre_core.policies.published.dropkv import DropKV as DropKV
from attendre_core.policies.published.expected import ExpectedAttention as ExpectedAttention
from attendre_core.policies.published.expire_span import ExpireSpan as ExpireSpan
from attendre_core.policies.published.h2o import H2O as H2O
from attendre_core.policies.published.keydiff import KeyDiff as KeyDiff
from attendre_core.policies.published.knorm import Knorm as Knorm
from attendre_core.policies.published.lagkv import LagKV as LagKV
from attendre_core.policies.published.leverage import Leverage as Leverage
from attendre_core.policies.published.nexus import Nexus as Nexus
from attendre_core.policies.published.predicted import Predicted as Predicted
from attendre_core.policies.published.rkv import RKV as RKV
from attendre_core.policies.published.salience import Salience as Salience
from attendre_core.policies.published.snapkv import SnapKV as SnapKV
from attendre_core.policies.published.tova import TOVA as TOVA
from attendre_core.policies.published.trams import TRAMS as TRAMS
from attendre_core.policies.published.value_norm import ValueNorm as ValueNorm
