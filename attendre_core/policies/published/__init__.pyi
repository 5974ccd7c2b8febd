from attendre_core.policies.published.h2o import H2O as H2O
from attendre_core.policies.published.tova import TOVA as TOVA
