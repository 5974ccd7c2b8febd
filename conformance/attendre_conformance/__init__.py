"""Conformance suite of attendre-core: whether a backend obeys the laws of the memories.

Run it with ``pytest --pyargs attendre_conformance --attendre-backend NAME``, where ``NAME`` is an
entry point of the group ``attendre.backends`` or ``module:attribute``. Importing this package
imports nothing else, so that merely having it installed costs nothing.
"""
