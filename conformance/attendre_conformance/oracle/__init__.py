"""The paper in plain Python loops: what a memory must keep, evict, score and return.

Nothing here is shared with the code under test: no arrays, no vectors, no attendre_core. Numbers
are Python floats (float64), an entry is an object, a memory is a list of entries, a batch is a
list of memories. Clarity is worth more than speed. (Layers and position schemes do use NumPy, for
vectors of one head and one position; see `positions` and `layer`.)

The oracle also says how *close* each decision was (``gap``). Where two priorities differ by no more
than rounding, a float32 implementation may rightly decide otherwise, and a comparison has to stop
there. Exact ties are something else: they have a right answer (the older entry goes first), and
must not be skipped. The two are told apart by ``origin``: two scores with the same origin are
equal on every machine, whatever the rounding.
"""

from attendre_conformance.oracle.entries import Attended, Entry
from attendre_conformance.oracle.memory import OracleMemory, OracleQueue
from attendre_conformance.oracle.rules import MemoryRule, PolicyRule

__all__ = ["Attended", "Entry", "MemoryRule", "OracleMemory", "OracleQueue", "PolicyRule"]
