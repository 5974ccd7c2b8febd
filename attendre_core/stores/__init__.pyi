from attendre_core.stores.store import Found as Found
from attendre_core.stores.store import Store as Store
