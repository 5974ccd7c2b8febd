from attendre_core.outside.index import ExactIndex as ExactIndex
from attendre_core.outside.index import FaissIndex as FaissIndex
from attendre_core.outside.index import Index as Index
from attendre_core.outside.settings import HostStores as HostStores
from attendre_core.outside.store import HostStore as HostStore
from attendre_core.outside.tier import HostTier as HostTier
