from attendre_core.policies.published.defensive import Defensive as Defensive
from attendre_core.policies.published.dropkv import DropKV as DropKV
from attendre_core.policies.published.h2o import H2O as H2O
from attendre_core.policies.published.snapkv import SnapKV as SnapKV
from attendre_core.policies.published.tova import TOVA as TOVA
from attendre_core.policies.published.value_norm import ValueNorm as ValueNorm
