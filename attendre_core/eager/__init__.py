"""Kernels of ops that may read array values, and may decline.

Each returns the same as the plain body of the op in `attendre_core.ops`, also for ties. They use
array-API functions and work for any library whose arrays can be read; `numpy_kernels` is for NumPy
only.
"""
