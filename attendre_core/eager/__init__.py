"""The fast voice: kernels of ops that may read values, and may decline.

Each returns what the plain body of the op in `attendre_core.ops` returns, ties included. They are
written in array-API functions, for any library whose arrays can be read; `numpy_kernels` is for
NumPy alone.
"""
