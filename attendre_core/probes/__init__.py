"""Ask a memory without changing what it holds: queries attend, the policy scores, nothing enters.

::

    probe   q k v ─┬─► beside the memory, for the probe's own tokens ─┐
                   └─► queries ─► one softmax over both ◄── memory ───┘
                                        │
                                        ├─► output
                                        └─► scores of the stored entries
"""
