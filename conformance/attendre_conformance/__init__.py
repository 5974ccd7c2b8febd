"""Conformance suite of attendre-core: whether a backend, or a policy, obeys the laws.

::

    pip install 'attendre-core[conformance]'
    pytest --pyargs attendre_conformance --attendre-backend torch
    pytest --pyargs attendre_conformance --attendre-backend my_package:backend
    pytest --pyargs attendre_conformance --attendre-policy my_module:MyPolicy

=============================  =====================================================================
``--attendre-backend NAME``    an entry point of the group ``attendre.backends``, or
                               ``module:attribute`` (default: ``numpy``)
``--attendre-policy M:CLASS``  run the laws of eviction policies alone, on this one; the module may
                               lie in the current folder
``--attendre-examples N``      random streams per law (default: 200)
``--attendre-rows N``          streams that run side by side as rows of one batch
``--attendre-profile P``       ``contract`` < ``eager`` < ``laws`` < ``transforms``; each includes
                               those before it (default: all)
``--attendre-no-shrink``       report a failing example as it was found
``-n 2``                       use two cores (pytest-xdist); workers share compiled code
=============================  =====================================================================

*contract* tests names, shapes, dtypes and imports; *eager* every operation against the oracle, and
every kind of bad input; *laws* what must hold whatever the numbers are; *transforms* compiled code,
scans, maps, exports and gradients against single steps.

A law is a test that hypothesis draws streams for: batches of 4 rows, each batch with a spec, a
shape and a plan of its own; on JAX, where every spec and shape has to be compiled, batches of 8 out
of a shorter list. The numbers are small quarters, so that logits are exact in float32 and ties are
plenty: the kept index sets must then be those of the oracle, ties included. Streams of arbitrary
floats are compared up to the first decision that is too close to call.

A failing law names the case, the step, the row and the numbers. hypothesis prints the simplest
stream it found and a line ``@reproduce_failure(...)``; put it above a copy of the test, or pass
``--hypothesis-seed=...``, to see it again. On JAX most of the time is compilation; it takes a fifth
of it with ``XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false
--xla_cpu_parallel_codegen_split_count=1"``. ``JAX_ENABLE_X64=1`` tests the 64-bit mode.

Importing this package imports nothing else, so that merely having it installed costs nothing.
"""
